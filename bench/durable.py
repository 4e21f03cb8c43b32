"""State in a SQLite file: does everything that a client has received outlive `kill -9`?

    python -m bench.durable [--workers 4] [--seconds 8]

Clients ask through the SDK for mixed turns and continue chains of responses until every process of the proxy is killed.
Another proxy then starts on the same file, each conversation is continued there, and what the upstream receives must
hold all that came before. Exit code 1: something was lost, or nothing was received. `bench.state` has what it costs.
"""

import argparse
import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import Popen
from typing import Any

import httpx
import openai
import uvicorn

from bench.processes import PYTHON, first_line, running, tree
from bench.targets import ROOT
from proxy.mock.script import Conversation, Script, ScriptedCall, ScriptedTurn
from proxy.mock.server import MockUpstream
from proxy.server.listener import address_of, listen

_CLIENTS = 16
_LENGTH = 10  # of a chain
CONFIG = """
server: {{port: 0}}
upstreams:
  up: {{base_url: "{upstream}/v1", api_key: upstream-key-1, profile: openai}}
models: {{"*": {{upstream: up}}}}
tools: {{current_time: {{type: clock}}}}
state: {{url: "{state}", max_entries: 1000000, max_bytes: 4294967296}}
telemetry: {{log_level: error}}
"""
_MIXED = ScriptedTurn(
    calls=(ScriptedCall(name="current_time"), ScriptedCall(name="lookup", arguments={"word": "tide"}))
)
_SCRIPT = Script(
    conversations=(
        Conversation(when="mixed", turns=(_MIXED, ScriptedTurn(text="Done."))),
        Conversation(turns=(ScriptedTurn(text="Noted."),)),
    )
)
_LOOKUP: Any = {"type": "function", "function": {"name": "lookup", "parameters": {"type": "object"}}}


@dataclass(slots=True)
class Received:
    """What clients have received completely."""

    mixed: dict[str, Any] = field(default_factory=dict)  # the question -> the assistant's message
    chains: dict[str, list[str]] = field(default_factory=dict)  # its last response -> what was said up to it


async def _ask_mixed(sdk: openai.AsyncOpenAI, question: str, *, stream: bool) -> Any:
    request: Any = {"model": "scripted", "messages": [{"role": "user", "content": question}], "tools": [_LOOKUP]}
    if not stream:
        return (await sdk.chat.completions.create(**request)).choices[0].message
    async with sdk.chat.completions.stream(**request) as events:
        return (await events.get_final_completion()).choices[0].message


async def _ask_chain(sdk: openai.AsyncOpenAI, step: str, previous: str | None, *, stream: bool) -> str:
    request: Any = {"model": "scripted", "input": step, "previous_response_id": previous}
    if not stream:
        return str((await sdk.responses.create(**request)).id)
    async with sdk.responses.stream(**request) as events:
        return (await events.get_final_response()).id


async def _client(url: str, name: str, received: Received) -> None:
    """Ask until the proxy is gone."""
    number, previous, steps = 0, None, list[str]()
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as sdk:
        with suppress(openai.APIError, httpx.HTTPError, RuntimeError):  # cut off, in whichever manner
            while True:
                number += 1
                question = f"mixed {name}, {number}."
                received.mixed[question] = await _ask_mixed(sdk, question, stream=number % 2 == 0)
                step = f"Step {number} of {name}."
                steps, previous = ([], None) if number % _LENGTH == 1 else (steps, previous)
                last = await _ask_chain(sdk, step, previous, stream=number % 4 > 1)
                steps, previous = [*steps, step], last
                received.chains[last] = steps


async def _lost(url: str, mock: MockUpstream, received: Received) -> list[str]:
    """The conversations that cannot be continued with all that came before."""
    lost = []
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as sdk:
        for question, message in received.mixed.items():
            (call,) = message.tool_calls
            result: Any = {"role": "tool", "tool_call_id": call.id, "content": "found"}
            said: Any = [{"role": "user", "content": question}, message.model_dump(exclude_none=True), result]
            await sdk.chat.completions.create(model="scripted", messages=said, tools=[_LOOKUP])
            sent = mock.requests[-1]["messages"]
            names = sorted(call["function"]["name"] for one in sent for call in one.get("tool_calls") or ())
            if names != ["current_time", "lookup"] or sum(one["role"] == "tool" for one in sent) != len(names):
                lost.append(question)
        for last, steps in received.chains.items():
            try:
                await _ask_chain(sdk, "And?", last, stream=False)
            except openai.APIStatusError as exc:
                lost.append(f"{steps[-1]} {exc}")
                continue
            if [sent["content"] for sent in mock.requests[-1]["messages"] if sent["role"] == "user"] != [
                *steps,
                "And?",
            ]:
                lost.append(steps[-1])
    return lost


@contextmanager
def proxy(folder: Path, name: str, config: str, workers: int) -> Iterator[tuple[Popen[str], str]]:
    """A proxy, and the URL of its API; what it logs goes to a file."""
    path = folder / f"{name}.yaml"
    path.write_text(config)
    command = [PYTHON, "-m", "proxy", "serve", "--config", str(path), "--workers", str(workers)]
    with running(command, log=folder / f"{name}.log", cwd=ROOT) as process:
        yield process, first_line(process).rpartition(" ")[2]


@asynccontextmanager
async def _scripted() -> AsyncIterator[tuple[MockUpstream, str]]:
    """The scripted upstream in this process, which can be asked what it has received."""
    mock, listener = MockUpstream(_SCRIPT), listen("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(mock, log_config=None, access_log=False, lifespan="off"))
    serving = asyncio.ensure_future(server.serve([listener]))
    yield mock, address_of(listener)
    server.should_exit = True
    await serving


async def _kill(folder: Path, config: str, mock: MockUpstream, options: argparse.Namespace) -> bool:
    """Kill the proxy in the middle, and continue everything on another one."""
    received = Received()
    with proxy(folder, "first", config, options.workers) as (process, url):
        clients = [asyncio.ensure_future(_client(url, f"client {at}", received)) for at in range(_CLIENTS)]
        await asyncio.sleep(options.seconds)
        for pid in tree(process.pid):
            os.kill(pid, signal.SIGKILL)
        process.wait()
        await asyncio.gather(*clients)
    with proxy(folder, "second", config, options.workers) as (_, url):
        lost = await _lost(url, mock, received)
    print(
        f"kill -9, {options.workers} worker(s): {len(received.mixed)} mixed turns and {len(received.chains)} responses"
    )
    print(f"continued after the restart, lost: {len(lost)}", *lost[:5], sep="\n")
    return bool(received.mixed and received.chains) and not lost


async def _measure(options: argparse.Namespace) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        async with _scripted() as (mock, url):
            config = CONFIG.format(upstream=url, state=f"sqlite:///{folder}/state.db")
            return await _kill(Path(folder), config, mock, options)


def main() -> int:
    """Kill, and continue."""
    parser = argparse.ArgumentParser(prog="bench.durable", description="State in a SQLite file over kill -9.")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=8)
    return 0 if asyncio.run(_measure(parser.parse_args())) else 1


if __name__ == "__main__":
    sys.exit(main())
