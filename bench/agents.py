"""An agent's conversation, on each surface: twenty tools of 3 KB, and rounds of text, a call and its result.

    python -m bench.agents            each size and surface beside nginx, which relays the same bytes
    python -m bench.agents --quick    one short round

Printed is the processor time of a request in microseconds, and how many times nginx's it is in the same round:

    passed through    no server tool is in play
    in play           a server tool is in play, and the model does not call it
    in a loop         the model calls it once, so that there are two turns

The model's answer is short, whole or a stream of twenty chunks: what is measured is the request.
"""

import argparse
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import product
from statistics import median
from typing import Any

import orjson

from bench.load import Spec
from bench.processes import cpu_seconds
from bench.scenarios import load
from bench.targets import Target, installed_peers, nginx, proxy, upstream

NGINX, PASSED, IN_PLAY, LOOP = "nginx", "passed through", "in play", "in a loop"
_IN_PLAY = (IN_PLAY, LOOP)
TOOLS = 20
SIZES = (20, 100, 300)
SURFACES = ("chat", "messages", "responses")
_PATHS = {"chat": "/v1/chat/completions", "messages": "/v1/messages", "responses": "/v1/responses"}
_TEXT = "I will look at the module, since its tests fail where the history is longer than a page. "
_RESULT = "def proxy(request):\n    # All work and no play makes a dull proxy.\n    return relay(request, tools=None)\n"
_DESCRIPTION = "Reads a file, or a part of it, and returns its lines with their numbers; long lines are cut. " * 26
_FIELDS = {
    f"option_{number}": {"type": "string", "description": "What the tool does with it, in a sentence."}
    for number in range(6)
}


def body_of(surface: str, rounds: int, *, stream: bool = False) -> dict[str, Any]:
    """A request after so many rounds: 20 make some 120 KB, 100 make 330, 300 make 870."""
    return {"chat": _chat, "messages": _messages, "responses": _responses}[surface](rounds) | (
        {"model": "whole", "stream": True} if stream else {"model": "whole"}
    )


def _rounds(rounds: int) -> Iterator[tuple[str, str, str, str]]:
    """The text, the id, the arguments and the result of each round."""
    for number in range(rounds):
        arguments = orjson.dumps({"option_1": f"src/module_{number}.py", "option_2": "1-80"}).decode()
        yield f"{_TEXT}({number})", f"call_{number:08d}", arguments, f"{_RESULT * 21}# {number}\n"


def _parameters() -> dict[str, Any]:
    return {"type": "object", "properties": _FIELDS, "required": ["option_1"]}


def _chat(rounds: int) -> dict[str, Any]:
    functions = [
        {"name": f"tool_{number}", "description": _DESCRIPTION, "parameters": _parameters()} for number in range(TOOLS)
    ]
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": _TEXT * 40}, {"role": "user", "content": "Mend the tests of the module."},
    ]  # fmt: skip
    for text, identity, arguments, result in _rounds(rounds):
        call = {"id": identity, "type": "function", "function": {"name": "tool_1", "arguments": arguments}}
        messages.append({"role": "assistant", "content": text, "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": identity, "content": result})
    return {"messages": messages, "tools": [{"type": "function", "function": one} for one in functions]}


def _messages(rounds: int) -> dict[str, Any]:
    tools = [
        {"name": f"tool_{number}", "description": _DESCRIPTION, "input_schema": _parameters()}
        for number in range(TOOLS)
    ]
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Mend the tests of the module."}]
    for text, identity, arguments, result in _rounds(rounds):
        call = {"type": "tool_use", "id": identity, "name": "tool_1", "input": orjson.loads(arguments)}
        messages.append({"role": "assistant", "content": [{"type": "text", "text": text}, call]})
        answer = {"type": "tool_result", "tool_use_id": identity, "content": result}
        messages.append({"role": "user", "content": [answer]})
    system = [{"type": "text", "text": _TEXT * 40, "cache_control": {"type": "ephemeral"}}]
    return {"system": system, "messages": messages, "tools": tools, "max_tokens": 8000}


def _responses(rounds: int) -> dict[str, Any]:
    tools = [
        {"type": "function", "name": f"tool_{number}", "description": _DESCRIPTION, "parameters": _parameters(),
         "strict": False}
        for number in range(TOOLS)
    ]  # fmt: skip
    items: list[dict[str, Any]] = [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Mend the tests."}]}
    ]
    for text, identity, arguments, result in _rounds(rounds):
        said = [{"type": "output_text", "text": text, "annotations": []}]
        items.append({"type": "message", "role": "assistant", "content": said})
        items.append({"type": "function_call", "call_id": identity, "name": "tool_1", "arguments": arguments})
        items.append({"type": "function_call_output", "call_id": identity, "output": result})
    return {"instructions": _TEXT * 40, "input": items, "tools": tools, "store": False}


@dataclass(frozen=True, slots=True)
class Agent:
    """A request's processor time in microseconds, in several rounds.

    Attributes:
        rounds: of the conversation.
        surface: of the request.
        stream: whether it asks for a stream.
        times: by the kind of request, or the peer.
    """

    rounds: int
    surface: str
    stream: bool
    times: dict[str, list[float]]

    def beside_nginx(self, kind: str) -> float | None:
        """The median of how many times nginx's it is in the same round."""
        pairs = zip(self.times[kind], self.times[NGINX], strict=False)
        ratios = [one / other for one, other in pairs if other]
        return median(ratios) if ratios else None


def cost(target: Target, surface: str, rounds: int, kind: str, *, stream: bool, seconds: float) -> float:
    """Processor time of one request of a kind in microseconds, from the same connections again and again."""
    headers = target.headers if kind in _IN_PLAY else {**target.headers, "x-server-tools": "none"}
    model = "calls" if kind == LOOP else "burst-20" if stream else "whole"
    body = orjson.dumps({**body_of(surface, rounds, stream=stream), "model": model}).decode()
    spec = Spec("closed", target.port, body, headers, 4, seconds, path=_PATHS[surface])
    before = cpu_seconds(target.pid)
    figures = load(spec)
    if figures.failures or not figures.answers:
        raise RuntimeError(f"{target.name} has failed {figures.failures} requests of {surface}")
    return (cpu_seconds(target.pid) - before) * 1e6 / figures.answers


def agents(*, rounds: int, seconds: float, peers: bool = False) -> Iterator[Agent]:
    """Each conversation, measured so often for so long; with the peers that are installed, on the API that all have."""
    with ExitStack() as stack:
        behind = stack.enter_context(upstream())
        targets = {NGINX: stack.enter_context(nginx(behind))}
        targets |= dict.fromkeys((PASSED, IN_PLAY, LOOP), stack.enter_context(proxy(behind)))
        others = stack.enter_context(installed_peers(behind)) if peers else []
        for size, surface, stream in product(SIZES, SURFACES, (False, True)):
            asked = targets | ({other.name: other for other in others} if surface == "chat" else {})
            times: dict[str, list[float]] = {kind: [] for kind in asked}
            for _, (kind, target) in product(range(rounds), asked.items()):
                if target is not None:
                    times[kind].append(cost(target, surface, size, kind, stream=stream, seconds=seconds))
            yield Agent(size, surface, stream, times)


def header(agent: Agent) -> str:
    """The head of a table of rows like this one."""
    names = ("rounds", "API", "answer", *agent.times)
    return f"| {' | '.join(names)} |\n|{'---|' * len(names)}"


def row(agent: Agent) -> str:
    """A row: times, and in brackets how many times nginx's they are."""
    figures = []
    for kind, times in agent.times.items():
        ratio = agent.beside_nginx(kind) if kind != NGINX else None
        figures.append((f"{median(times):.0f}" if times else "-") + (f" ({ratio:.2f} x)" if ratio else ""))
    answer = "stream" if agent.stream else "whole"
    return f"| {' | '.join((str(agent.rounds), agent.surface, answer, *figures))} |"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one short round")
    parser.add_argument("--peers", action="store_true", help="the peers as well that `make bench-peers` has installed")
    asked = parser.parse_args()
    rounds, seconds = (1, 0.7) if asked.quick else (5, 1.0)
    for number, agent in enumerate(agents(rounds=rounds, seconds=seconds, peers=asked.peers)):
        print(*([] if number else [header(agent)]), row(agent), sep="\n" if not number else "", flush=True)


if __name__ == "__main__":
    main()
