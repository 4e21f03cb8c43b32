"""`toolproxy demo`: conversations of real SDKs with a scripted model through the proxy, and the requests upstream."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import msgspec

from proxy.app import configuration, create_app
from proxy.config.model import Config
from proxy.demo.pages import WithPages, at
from proxy.kit.terminal import style_of
from proxy.mock.demo import DEMO, search_answer
from proxy.mock.server import MockUpstream
from proxy.server.serving import serving
from proxy.telemetry import log
from proxy.wire.chat import Json
from proxy.wire.errors import ConfigurationError

try:
    import anthropic
    import openai
except ImportError as exc:  # pragma: no cover - depends on the installation
    raise ConfigurationError(["the demo needs two SDKs: pip install openai anthropic"]) from exc

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
        async with serving(create_app(loaded), lifespan="on") as proxy_url:
            _introduce(loaded.config, proxy_url, mock_url)
            async with (
                openai.AsyncOpenAI(base_url=f"{proxy_url}/v1", api_key="unused", max_retries=0) as chat,
                anthropic.AsyncAnthropic(base_url=proxy_url, api_key="unused", max_retries=0) as messages,
            ):
                streamed, whole, blocks = partial(_stream, chat), partial(_create, chat), partial(_blocks, messages)
                passed = [
                    await _converse(mock, pages, "1. Streamed, with a search", _SEARCHED, streamed, turns=2),
                    await _converse(mock, pages, "2. The same question, whole", _SEARCHED, whole, turns=2),
                    await _converse(mock, pages, "3. A question that needs no search", _PLAIN, streamed, turns=1),
                    await _converse(mock, pages, "4. Anthropic's Messages API", _SEARCHED, blocks, turns=2),
                ]
    style = style_of(sys.stdout)
    right, wrong = "All four answers arrived as ordinary ones.", "SOMETHING WENT WRONG, see above."
    print(style(right, "green") if all(passed) else style(wrong, "red"))
    return 0 if all(passed) else 1


async def _converse(mock: MockUpstream, pages: WithPages, title: str, question: str, ask: Ask, *, turns: int) -> bool:
    mock.clear()
    pages.read.clear()
    style = style_of(sys.stdout)
    print(
        f"\n{style('-' * _WIDTH, 'dim')}\n{style(title, 'bold')}\n\n  app     {question}\n  answer  ",
        end="",
        flush=True,
    )
    saw = await ask(question)
    print()
    _tell_wire(mock, pages.read)
    print(f"    app     got {saw.how}; over all turns {saw.used}")
    return bool(saw.answer) and saw.is_whole and len(mock.requests) == turns


async def _stream(client: "openai.AsyncOpenAI", question: str) -> Saw:
    answer, chunks, roles = "", 0, 0
    ids: set[str] = set()
    finish_reasons: list[str] = []
    usage: Json = {}
    completion = await client.chat.completions.create(
        model=_MODEL,
        messages=[{"role": "user", "content": question}],
        stream=True,
        stream_options={"include_usage": True},
    )
    async for chunk in completion:
        chunks += 1
        ids.add(chunk.id)
        usage = chunk.usage.model_dump(exclude_none=True) if chunk.usage else usage
        for choice in chunk.choices:
            roles += choice.delta.role is not None
            text = choice.delta.content or ""
            answer += text
            _print_more(text)
            if choice.finish_reason:
                finish_reasons.append(choice.finish_reason)
    how = f"{chunks} chunks with {len(ids)} id, {roles} role, finish_reason {'+'.join(finish_reasons)}"
    return Saw(answer, (len(ids), roles, finish_reasons) == (1, 1, ["stop"]), how, _short(usage))


async def _create(client: "openai.AsyncOpenAI", question: str) -> Saw:
    completion = await client.chat.completions.create(model=_MODEL, messages=[{"role": "user", "content": question}])
    choice = completion.choices[0]
    answer = choice.message.content or ""
    print(answer, end="")
    usage = completion.usage.model_dump(exclude_none=True) if completion.usage else {}
    how = f"{len(completion.choices)} choice, finish_reason {choice.finish_reason}"
    return Saw(answer, choice.finish_reason == "stop" and choice.message.tool_calls is None, how, _short(usage))


async def _blocks(client: "anthropic.AsyncAnthropic", question: str) -> Saw:
    """Ask through the Messages API, whose clients see the searches that they declare."""
    asked: list[anthropic.types.MessageParam] = [{"role": "user", "content": question}]
    tools: list[anthropic.types.ToolUnionParam] = [{"type": "web_search_20250305", "name": "web_search"}]
    async with client.messages.stream(model=_MODEL, max_tokens=1000, messages=asked, tools=tools) as stream:
        async for event in stream:
            if event.type == "content_block_start" and event.index and event.content_block.type == "text":
                _print_more("\n\n")
            elif event.type == "text":
                _print_more(event.text)
        message = await stream.get_final_message()
    kinds = [block.type for block in message.content]
    usage = message.usage
    searches = usage.server_tool_use.web_search_requests if usage.server_tool_use else 0
    is_whole = kinds.count("web_search_tool_result") == searches > 0 and message.stop_reason == "end_turn"
    how = f"{', '.join(kinds)}, stop_reason {message.stop_reason}"
    last = message.content[-1]
    answer = last.text if last.type == "text" else ""
    return Saw(answer, is_whole, how, f"{usage.input_tokens + usage.output_tokens} tokens, {searches} searches")


def _print_more(text: str) -> None:
    print(text.replace("\n", "\n          "), end="", flush=True)


def _introduce(config: Config, proxy_url: str, mock_url: str) -> None:
    print(
        f"toolproxy demo: no keys, no network, nothing leaves this machine.\n\n"
        f"  app (real SDKs)   --->  toolproxy {proxy_url}  --->  scripted GLM {mock_url}\n"
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
        print(f"            proxy    offers  {', '.join(_names(request.get('tools') or ()))}")
        if turn.calls:
            print(f"            model -> proxy   {len(turn.calls)} calls in one turn, which the proxy answers:")
            for call in turn.calls:
                print(f"                             {call.name}({call.arguments})")
            most = mock.most_searches_at_once  # a machine that is busy may run them one after the other
            at_once = f"{most} of them at the same time" if most > 1 else "one after the other"
            print(f"            proxy -> search  {len(mock.searches)} searches, {at_once}")
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


def _names(tools: Iterable[Json]) -> list[str]:
    return [str(tool["function"]["name"]) for tool in tools]


def _short(usage: Json) -> str:
    use = usage.get("server_tool_use") or {}
    return f"{usage.get('total_tokens')} tokens, {use.get('turns')} turn(s), {use.get('tool_calls')} tool calls"
