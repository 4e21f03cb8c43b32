"""`toolproxy demo`: conversations of an app with a scripted model through the proxy, and the requests upstream."""

import asyncio
import os
import shutil
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

import msgspec

from proxy.app import configuration, create_app
from proxy.config.model import Config
from proxy.demo.apps import CHAT, MESSAGES, App, app_for
from proxy.demo.pages import WithPages, at
from proxy.kit.terminal import style_of
from proxy.mock.demo import DEMO, search_answer
from proxy.mock.server import MockUpstream
from proxy.server.serving import serving
from proxy.telemetry import log
from proxy.wire.chat import Json

_PACE = 0.02
_SEARCH_SECONDS = 0.3
_SEARCHED = "What is the weather in Nanaimo, and is the ferry running?"
_PLAIN = "Say hello."
_MODEL = "glm-4.7"
_WIDTH = 100
_QUOTED = 100  # characters

_CONFIG = """
upstreams:
  model: {{base_url: {mock}/v1, api_key: demo, profile: glm}}
models:
  glm-4.7: {{upstream: model}}
tools:
  web_search: {{type: serper, api_key: demo, base_url: {mock}, read: {{pages: 2, characters: 300}}}}
  open_page: {{type: web_fetch, allow_hosts: [127.0.0.1], offer: never}}
telemetry: {{log_level: error}}
"""


@dataclass(frozen=True, slots=True)
class Saw:
    """The answer as an application received it."""

    answer: str
    is_whole: bool
    how: str
    used: str


Ask: TypeAlias = Callable[[str], Awaitable[Saw]]


def main() -> None:
    """Run the conversations. Exits with 1 if one of them has a wrong result."""
    sys.exit(asyncio.run(_demo()))


async def _demo() -> int:
    mock = MockUpstream(
        search_seconds=_SEARCH_SECONDS, answer_search=lambda request: at(mock_url, search_answer(request))
    )
    pages = WithPages(mock)
    async with serving(pages, lifespan="off") as mock_url:
        mock.script = at(mock_url, msgspec.structs.replace(DEMO, pace=_PACE))
        loaded = configuration.parse(_CONFIG.format(mock=mock_url), {})
        log.configure(loaded.config.telemetry)
        async with serving(create_app(loaded), lifespan="on") as proxy_url, app_for(proxy_url) as app:
            _introduce(loaded.config, app, proxy_url, mock_url)
            streamed, whole, blocks = partial(_stream, app), partial(_create, app), partial(_blocks, app)
            passed = [
                await _converse(mock, pages, "1. Streamed, with a search", _SEARCHED, streamed, turns=2),
                await _converse(mock, pages, "2. The same question, whole", _SEARCHED, whole, turns=2),
                await _converse(mock, pages, "3. A question that needs no search", _PLAIN, streamed, turns=1),
                await _converse(mock, pages, "4. Anthropic's Messages API", _SEARCHED, blocks, turns=2),
            ]
    style = style_of(sys.stdout)
    right, wrong = "All four answers arrived as ordinary ones.", "SOMETHING WENT WRONG, see above."
    print(style(f"\n{right}", "green") if all(passed) else style(f"\n{wrong}", "red"))
    if all(passed):
        print("\nWhat next", *_next_steps(), sep="\n  ")
    return 0 if all(passed) else 1


def _next_steps() -> Iterator[str]:
    """The commands that lead on from here, as they can be typed in this folder."""
    command = "toolproxy" if shutil.which("toolproxy") else os.path.relpath(sys.argv[0])
    steps = [(f"{command} demo --serve", "the same to try out, with a chat page")]
    if not Path("config.yaml").exists():
        steps.append((f"{command} init", "a config.yaml of your own, and .env.example for keys"))
    steps.append((f"ZAI_API_KEY=YOUR_KEY {command} serve", "a real model, from https://z.ai"))
    width = max(len(line) for line, _ in steps)
    return (f"{line:<{width}}  # {what}" for line, what in steps)


async def _converse(mock: MockUpstream, pages: WithPages, title: str, question: str, ask: Ask, *, turns: int) -> bool:
    mock.clear()
    pages.read.clear()
    style = style_of(sys.stdout)
    print(f"\n{style('-' * _WIDTH, 'dim')}\n{style(title, 'bold')}\n\n  app     {question}")
    print("  answer  ", end="", flush=True)
    saw = await ask(question)
    print()
    _tell_wire(mock, pages.read)
    print(f"    app     got {saw.how}; over all turns {saw.used}")
    return bool(saw.answer) and saw.is_whole and len(mock.requests) == turns


def _asking(question: str) -> Json:
    return {"model": _MODEL, "messages": [{"role": "user", "content": question}]}


async def _stream(app: App, question: str) -> Saw:
    chunks = []
    async for chunk in app.stream(CHAT, {**_asking(question), "stream_options": {"include_usage": True}}):
        chunks.append(chunk)
        _print_more("".join(choice["delta"].get("content") or "" for choice in chunk["choices"]))
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    answer = "".join(choice["delta"].get("content") or "" for choice in choices)
    ids, roles = len({chunk["id"] for chunk in chunks}), sum("role" in choice["delta"] for choice in choices)
    reasons = [choice["finish_reason"] for choice in choices if choice.get("finish_reason")]
    how = f"{len(chunks)} chunks with {ids} id, {roles} role, finish_reason {'+'.join(reasons)}"
    return Saw(answer, (ids, roles, reasons) == (1, 1, ["stop"]), how, _short(chunks[-1].get("usage") or {}))


async def _create(app: App, question: str) -> Saw:
    completion = await app.create(CHAT, _asking(question))
    (choice, *_) = completion["choices"]
    answer, reason = choice["message"].get("content") or "", choice["finish_reason"]
    print(answer, end="")
    how = f"{len(completion['choices'])} choice, finish_reason {reason}"
    is_whole = reason == "stop" and not choice["message"].get("tool_calls")
    return Saw(answer, is_whole, how, _short(completion.get("usage") or {}))


async def _blocks(app: App, question: str) -> Saw:
    """Ask through the Messages API, whose clients see the searches that they declare."""
    tools = [{"type": "web_search_20250305", "name": "web_search"}]
    kinds: list[str] = []
    answer, stop = "", ""
    usage: Json = {}
    async for event in app.stream(MESSAGES, {**_asking(question), "max_tokens": 1000, "tools": tools}):
        match event:
            case {"type": "content_block_start", "content_block": {"type": kind}}:
                kinds.append(kind)
                answer = ""
                _print_more("\n\n" if kind == "text" and len(kinds) > 1 else "")
            case {"type": "content_block_delta", "delta": {"type": "text_delta", "text": text}}:
                answer += text
                _print_more(text)
            case {"type": "message_delta", "delta": {"stop_reason": stop}}:
                usage = event["usage"]
    searches = (usage.get("server_tool_use") or {}).get("web_search_requests", 0)
    is_whole = kinds.count("web_search_tool_result") == searches > 0 and stop == "end_turn"
    used = f"{usage['input_tokens'] + usage['output_tokens']} tokens, {searches} searches"
    return Saw(answer, is_whole, f"{', '.join(kinds)}, stop_reason {stop}", used)


def _print_more(text: str) -> None:
    print(text.replace("\n", "\n          "), end="", flush=True)


def _introduce(config: Config, app: App, proxy_url: str, mock_url: str) -> None:
    print(
        f"toolproxy demo: no keys, no network, nothing leaves this machine.\n\n"
        f"  {f'app ({app.name})':<16}  --->  toolproxy {proxy_url}  --->  scripted GLM {mock_url}\n"
        f"                              |\n"
        f"                              +--->  {', '.join(config.tools)} (scripted results and pages)\n\n"
        f"  The app only knows base_url={proxy_url}/v1 (OpenAI's SDK) or {proxy_url} (Anthropic's)."
    )


def _tell_wire(mock: MockUpstream, read: Sequence[str]) -> None:
    """Print the requests to the scripted model, the search and the pages that it finds, in order."""
    print("\n  On the wire")
    for number, request in enumerate(mock.requests, 1):
        turn = mock.script.turn(request)
        print(f"    turn {number}  proxy -> model   {_roles(request['messages'])}")
        offered = [tool["function"]["name"] for tool in request.get("tools") or ()]
        print(f"            proxy    offers  {', '.join(offered)}")
        if turn.calls:
            print(f"            model -> proxy   {len(turn.calls)} calls in one turn, which the proxy answers:")
            for call in turn.calls:
                print(f"                             {call.name}({call.arguments})")
            print(f"            proxy -> search  {len(mock.searches)} searches, each as soon as its call is complete")
            if read:
                print(f"            proxy -> pages   {', '.join(read)}")
                print("            the model gets the passages of them that fit, such as")
                print(f"                             {_passage(mock.requests[-1])}")
        else:
            print("            model -> proxy   the answer")


def _passage(request: Json) -> str:
    """The beginning of what the model has read of the first page."""
    results = [str(message["content"]) for message in request["messages"] if message["role"] == "tool"]
    _, _, below_url = results[0].partition("http://")
    words = " ".join(below_url.split("\n")[2:]).split()  # below the URL and the day
    return f"{' '.join(words)[:_QUOTED]} ..."


def _roles(messages: Iterable[Json]) -> str:
    return " ".join(
        f"assistant({len(message['tool_calls'])} calls)" if message.get("tool_calls") else str(message["role"])
        for message in messages
    )


def _short(usage: Json) -> str:
    use = usage.get("server_tool_use") or {}
    return f"{usage.get('total_tokens')} tokens, {use.get('turns')} turn(s), {use.get('tool_calls')} tool calls"
