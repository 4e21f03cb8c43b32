"""Plays a case: sends its requests to the proxy of today, between the fake servers of the case and its expectations.

`mounts` starts the proxies in this process and without sockets, as `toolproxy replay` plays; the project's tests call
them over real sockets with the vendors' SDKs.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from hashlib import sha256
from typing import Any, Final, Protocol, TypeAlias

import orjson

from proxy.cases import requests
from proxy.cases.answers import Answer, ExpectationFailed, fold
from proxy.cases.case_format import Play, surface_of
from proxy.cases.comparison import MISSING, Comparison, Difference, without_ids
from proxy.cases.expectations import Outcome, Received, check, expected
from proxy.cases.fake_servers import FakeServers
from proxy.cases.played_tools import PlayedResults
from proxy.cases.replies import content_of
from proxy.cases.requests import Request
from proxy.cases.turns import written
from proxy.wire.chat import Json

_OK: Final = 200
# The headers of an answer that are the proxy's own.
_COMPARED_HEADERS: Final = ("content-type", "x-tool-turns", "x-tool-calls", "x-tool-stop", "x-tools-ignored")
# What has to be the same in a whole answer and in its stream.
_FOLDED: Final = {
    "responses": ("output", "usage", "status", "model", "incomplete_details"),
    "messages": ("content", "usage", "stop_reason", "stop_sequence", "model"),
}


class CaseProxy(Protocol):
    """A running proxy with the configuration of a case."""

    async def send(self, request: Request, state: list[Json]) -> Received:
        """Send a request and read its answer to the end, with `state` of the exchange in the state store."""
        ...


StartProxy: TypeAlias = Callable[[str, Json, float], Awaitable[CaseProxy]]
"""Starts a proxy in front of the fake servers: its name there, the configuration of the case, seconds since 1970.

Raises `ConfigurationError` where the configuration is not valid.
"""


class Player:
    """Plays cases. Cases of one configuration share a proxy, but for recorded ones.

    Args:
        start: starts the proxies.
        servers: what stands behind them.
        results: the results of tools that are not the proxy's own.
    """

    def __init__(self, start: StartProxy, servers: FakeServers, results: PlayedResults) -> None:
        self.servers = servers
        self.results = results
        self._start = start
        self._proxies: dict[str, CaseProxy] = {}

    async def play(self, play: Play) -> list[Difference]:
        """The places in which something is not what it was, or not what the case expects.

        Raises:
            ConfigurationError: the configuration of the case is not valid.
        """
        case = play.case
        config = case.get("config", {})
        key = orjson.dumps(config, option=orjson.OPT_SORT_KEYS).decode()
        if '"mcp"' in key:  # its sessions and its failures are the proxy's state
            key += play.name
        if "recorded" in case:
            key = f"recorded {len(self._proxies)}"
        name = f"proxy-{sha256(key.encode()).hexdigest()[:20]}"
        self.servers.start(case, name)
        if name not in self._proxies:
            self._proxies[name] = await self._start(name, config, case.get("recorded", {}).get("at", time.time()))
        proxy = self._proxies[name]
        streams = (False, True) if play.mode == "fold" else (play.mode == "stream",)
        found: list[Difference] = []
        answers: list[list[Answer]] = []
        for stream in streams:
            pairs = [pair async for pair in self._conversation(play, proxy, stream=stream)]
            found += [one for differences, _ in pairs for one in differences]
            answers.append([answer for _, answer in pairs])
        return found if found or play.mode != "fold" else [*_unlike(play.surface, *answers)]

    async def _conversation(
        self, play: Play, proxy: CaseProxy, *, stream: bool
    ) -> AsyncIterator[tuple[list[Difference], Answer]]:
        """The differences in each exchange, with its answer; the first exchange that differs is the last one."""
        before: Request | None = None
        answer = Answer()
        for number, exchange in enumerate(play.case["exchanges"], 1):
            if "forget" in exchange:
                self.servers.mcp[exchange["forget"]].forget()
            await asyncio.sleep(exchange.get("wait", 0))
            request = _request(play, exchange, before, answer, stream=stream)
            self.servers.begin(exchange)
            self.results.begin(exchange)
            began = asyncio.get_running_loop().time()
            received = await proxy.send(request, exchange.get("state", []))
            seconds = asyncio.get_running_loop().time() - began
            try:
                answer = _folded(received, surface_of(request["path"]) if "got" in exchange else play.surface)
                outcome = Outcome(play.surface, request, received, answer, self.servers, seconds)
                differences = [*self._differences(number, exchange, play, outcome)]
            except ExpectationFailed as exc:
                differences = [Difference(number, "the answer", "", "what a client can read", str(exc))]
            yield differences, answer
            if differences:
                return
            before = request

    def _differences(self, number: int, exchange: Json, play: Play, outcome: Outcome) -> Iterator[Difference]:
        if "got" in exchange:
            yield from self._since_then(number, exchange["got"], outcome)
            return
        words = expected(play.case, exchange, play.surface)
        try:
            check(words, outcome)
        except ExpectationFailed as exc:
            (word, *_) = getattr(exc, "__notes__", ["the answer"])
            title = f" ({exchange['title']})" if "title" in exchange else ""
            yield Difference(number, f"expect{title}", word, words.get(word, MISSING), str(exc))

    def _since_then(self, number: int, got: Json, outcome: Outcome) -> Iterator[Difference]:
        """The differences from the recorded exchange: calls of upstreams, and the answer.

        Calls of tools whose results nobody sees, because their turn failed, are not compared: whether they had begun
        already is chance.
        """
        received, comparison = outcome.received, Comparison()
        if got.get("status", _OK) != received.status:
            yield Difference(number, "the answer", "status", got.get("status", _OK), received.status)
        before = _recorded_answer(got, surface_of(outcome.request["path"]))
        # Of several runs of one request, no id of one run is an id of the same run again.
        yield from self._calls_since_then(number, None if _is_of_several_runs(outcome.request) else comparison)
        for name in _COMPARED_HEADERS if "headers" in got else ():
            then, now = got["headers"].get(name, MISSING), received.headers.get(name, MISSING)
            if then != now:
                yield Difference(number, "the answer", name, then, now)
        whole = _words_of if _is_in_short(got) else _whole_of
        for field, then, now in comparison.differences(whole(before), whole(outcome.answer)):
            yield Difference(number, "the answer", field, then, now)

    def _calls_since_then(self, number: int, comparison: Comparison | None) -> Iterator[Difference]:
        for at, asked in enumerate(self.servers.asked, 1):
            where = f"call {at} upstream ({asked.upstream})"
            if asked.then is None and self.servers.is_recorded:
                yield Difference(number, where, "", MISSING, asked.request)
            elif asked.then and asked.then["asked"] is not None and asked.request is not None:
                compared = comparison or Comparison()
                for field, then, now in compared.differences(asked.then["asked"], asked.request):
                    yield Difference(number, where, field, then, now)
        for upstream, call in self.servers.unused:
            if not call.get("left"):  # whether it had begun already when it was given up is chance
                yield Difference(number, f"a call upstream ({upstream})", "", call.get("asked"), MISSING)


def _folded(received: Received, surface: str) -> Answer:
    """The answer of a response, a stream folded into a whole. Raises `ExpectationFailed` if no client can read it."""
    if received.status is None:
        return Answer()
    try:
        return fold(received.body, surface, streamed=received.is_stream)
    except (KeyError, TypeError, IndexError) as exc:
        raise ExpectationFailed(f"{exc!r} in {received.body[:500]!r}") from exc


def _request(play: Play, exchange: Json, before: Request | None, answer: Answer, *, stream: bool) -> Request:
    """The request of an exchange: as it is written out, or in words, or the last one again."""
    ask = {**exchange.get("ask", {})}
    ask |= ask.get("on", {}).get(play.surface, {})
    if "request" in exchange:
        request = {"method": "POST", "headers": {}, **exchange["request"]}
        return request if play.mode == "as_asked" else requests.again(request, stream=stream)
    if before is None:
        return requests.first(ask, play.surface, stream=stream)
    if {"results", "text"} & ask.keys():
        return requests.later(before, answer, ask, play.surface)
    return requests.again(before, stream=stream)


def _is_of_several_runs(request: Request) -> bool:
    """Whether a chat completion asks for several choices, which are made at the same time."""
    body = request.get("body")
    return isinstance(body, dict) and body.get("n") not in (None, 1)


def _is_in_short(got: Json) -> bool:
    """Whether a recorded answer was written by hand, in the short form: chunks that have only a `delta`."""
    pieces = [part for piece in got.get("pieces", ()) for part in (piece if isinstance(piece, list) else [piece])]
    return any(isinstance(part, dict) and "delta" in part for part in pieces)


def _whole_of(answer: Answer) -> Any:
    """The whole answer. Events of tools, and choices of several runs, are a set: which of them is first is chance."""
    whole = answer.whole
    if not isinstance(whole, dict):
        return whole
    return {**whole, **{name: _as_set(whole[name]) for name in ("choices", "tool_events") if name in whole}}


def _as_set(values: Any) -> Any:
    """JSON objects without what differs from run to run, in an order that follows from the rest; one is as it was."""
    is_of_objects = isinstance(values, list) and all(isinstance(value, dict) for value in values)
    if not is_of_objects or len(values) == 1:
        return values
    kept = [without_ids({key: value[key] for key in value.keys() - {"index", "choice"}}) for value in values]
    return sorted(kept, key=lambda value: orjson.dumps(value, option=orjson.OPT_SORT_KEYS))


def _words_of(answer: Answer) -> Json:
    """The parts of an answer that the short form has: text, reasoning, calls, ending and error."""
    calls = [{"name": call["name"], "arguments": call["arguments"]} for call in answer.calls]
    code = (answer.error or {}).get("code")
    return {"text": answer.text, "reasoning": answer.reasoning, "finish": answer.finish, "calls": calls, "error": code}


def _recorded_answer(got: Json, surface: str) -> Answer:
    """The answer that was recorded, folded; as it is where no client could have read it."""
    streamed = "pieces" in got
    pieces = [piece for piece in got.get("pieces", ()) if not isinstance(piece, int | float)]
    raw = b"".join(written(piece, "") for piece in pieces) if streamed else content_of(got)
    try:
        return fold(raw, surface, streamed=streamed)
    except (ExpectationFailed, KeyError, TypeError, IndexError):
        return Answer(whole=raw.decode("utf-8", "backslashreplace"))


def _unlike(surface: str, whole: list[Answer], streamed: list[Answer]) -> Iterator[Difference]:
    """Where a stream, folded, is not the whole answer."""
    kind = surface.partition("-")[0]
    for number, (one, other) in enumerate(zip(whole, streamed, strict=True), 1):
        for field in _FOLDED.get(kind, ()):
            for path, then, now in Comparison().differences(one.whole.get(field), other.whole.get(field), field):
                yield Difference(number, "the stream, beside the whole answer", path, then, now)
