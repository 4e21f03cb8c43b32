"""The servers behind the proxy while a case is played: its upstreams, its search, its HTTP and MCP tools.

One object answers for all of them by the script of the exchange, and remembers their requests. Sockets reach it as an
ASGI application, a proxy without sockets calls `reply`. A recorded answer comes at once, a hand-written one may have
pauses.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import dropwhile
from typing import Any, Final

import httpx
import orjson
from msgspec import Struct
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from proxy.cases.comparison import is_same
from proxy.cases.mcp_server import McpPlayer
from proxy.cases.replies import HttpReply, json_reply, parsed, parts_of, reply_of
from proxy.cases.strict import refusals
from proxy.recording import recording
from proxy.recording.recording import NOT_MADE
from proxy.upstreams.failures import KeyRefused
from proxy.wire.chat import Json
from proxy.wire.errors import UpstreamDown

_SYSTEM: Final = ("system", "developer")
_ONLY_FIRST: Final = {"error": {"message": "System message must be at the beginning.", "type": "BadRequestError"}}
_DEFAULT: Final = ({"text": "FINAL answer."},)
_FAILURES: Final[Mapping[str, type[httpx.HTTPError]]] = {
    kind.__name__: kind
    for kind in (
        httpx.ConnectError, httpx.ConnectTimeout, httpx.ReadError, httpx.ReadTimeout, httpx.WriteError,
        httpx.WriteTimeout, httpx.PoolTimeout, httpx.RemoteProtocolError, httpx.LocalProtocolError,
    )
}  # fmt: skip
"""The failures of a call, by the names that cases have for them."""


class UpstreamRequest(Struct):
    """A request to an upstream, and the answer of the case that it got, if that was recorded for it."""

    upstream: str
    path: str
    body: bytes
    request: Any
    then: Json | None = None


class FakeServers:
    """The servers of a case.

    Attributes:
        asked: the requests to upstreams, in order.
        refused: the reasons for which strict upstreams refused requests.
        searches: the queries of searches.
        received: the arguments of calls of HTTP and MCP tools.
        mcp: the MCP servers, by the names of their tools in the configuration.
        is_recorded: whether all answers of the exchange were recorded, so that each call must find its own.
    """

    def __init__(self) -> None:
        self.asked: list[UpstreamRequest] = []
        self.refused: list[str] = []
        self.searches: list[str] = []
        self.received: list[Any] = []
        self.mcp: dict[str, McpPlayer] = {}
        self.is_recorded = False
        self._servers: dict[str, dict[str, McpPlayer]] = {}
        self._strict: Sequence[str] = ()
        self._system_first: set[str] = set()
        self._given: list[Json] = []
        self._answers: dict[str, list[Json]] = {}
        self._results: list[Json] = []

    def start(self, case: Json, proxy: str) -> None:
        """Begin a case, played by the proxy of that name: nothing has been given yet that would have to come back."""
        self._strict, self._given = case.get("strict", ()), []
        servers = {
            name: McpPlayer(tool.get("lists"))
            for name, tool in case.get("config", {}).get("tools", {}).items()
            if tool["type"] == "mcp" and not tool.get("recorded")
        }
        self.mcp = self._servers.setdefault(proxy, servers)
        upstreams = case.get("config", {}).get("upstreams", {})
        self._system_first = {name for name, told in upstreams.items() if told.get("system_first")}

    def begin(self, exchange: Json) -> None:
        """Begin an exchange: give the servers their next answers, and empty their journals."""
        answers = exchange.get("upstream", _DEFAULT)
        named = answers if isinstance(answers, dict) else {"up": answers}
        self._answers = {name: [*given] for name, given in named.items()}
        self._results = [*exchange.get("tools", ())]
        given = [answer for answers in self._answers.values() for answer in answers]
        turns = [answer.get("by_stream", {"whole": answer})["whole"] for answer in given]
        self._given += [turn for turn in turns if turn.get("calls")]
        self.is_recorded = "got" in exchange and all(map(is_recorded, given))
        for journal in (self.asked, self.refused, self.searches, self.received):
            journal.clear()
        for player in self.mcp.values():
            player.sessions_opened = 0

    @property
    def unused(self) -> list[tuple[str, Json]]:
        """The recorded answers that nobody has asked for, each with the name of its upstream."""
        return [(name, one) for name, given in self._answers.items() for one in given if is_recorded(one)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        reply = await self.reply(scope, await Request(scope, receive).body())
        await send({"type": "http.response.start", "status": reply.status, "headers": [*reply.headers]})
        with suppress(httpx.RemoteProtocolError):  # an answer that is cut off has no end
            async for part in reply.parts:
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b""})

    async def reply(self, asked: Mapping[str, Any], body: bytes) -> HttpReply:
        """The response to a request; `asked` has its `method`, `path` and `headers`, as an ASGI scope does.

        Raises:
            httpx.HTTPError, UpstreamDown, KeyRefused: the call failed when it was recorded.
        """
        kind, _, rest = asked["path"].strip("/").partition("/")
        if kind == "search":
            return json_reply(200, self._search(orjson.loads(body)["q"]))
        if kind == "tool":
            self.received.append(orjson.loads(body) if body else {})
            return self._result(rest.split("/")[0], {"received": self.received[-1]})
        if kind == "mcp":
            proxy, name = rest.split("/")
            status, headers, answer = self._servers[proxy][name].over_http(asked, body, self._mcp_result)
            return HttpReply(status, headers, parts_of(answer))
        return await self._upstream(kind, rest.removeprefix("v1"), body)

    def _search(self, query: str) -> Json:
        self.searches.append(query)
        for result in self._results:
            if result["name"] == "web_search":
                self._results.remove(result)
                return dict(result["body"])
        numbers = (1, 2)
        pages = [
            {"title": f"Page {n}", "link": f"https://p.example/{n}", "snippet": f"FACT-{n}: {query}"} for n in numbers
        ]
        return {"organic": pages}

    def _result(self, name: str, otherwise: Any) -> HttpReply:
        found = next((result for result in self._results if result["name"] == name), {"body": otherwise})
        status = found.get("status", 200)
        if "text" not in found:
            return json_reply(status, found.get("body"))
        text = found["text"] * found.get("times", 1)
        return HttpReply(status, [(b"content-type", b"text/plain")], parts_of(text.encode()))

    def _mcp_result(self, name: str, arguments: Any) -> Json:
        self.received.append(arguments)
        return {"content": [{"type": "text", "text": f"{name} received {orjson.dumps(arguments).decode()}"}]}

    async def _upstream(self, name: str, path: str, body: bytes) -> HttpReply:
        parsed_body = parsed(body)
        request: Json | None = parsed_body if isinstance(parsed_body, dict) else None
        if name in self._system_first and request is not None and _has_late_system(request):
            return json_reply(400, _ONLY_FIRST)  # which the proxy knew already when the case was recorded
        asked = UpstreamRequest(name, path, body, parsed_body)
        self.asked.append(asked)
        if request is not None and not self.is_recorded:
            strict = [*refusals(request, strict=self._strict, given=self._given)]
            self.refused += strict
            if strict:
                error = {"message": strict[0], "type": "invalid_request_error", "param": None, "code": None}
                return json_reply(400, {"error": error})
        answer = self._next(name, parsed_body, len(body))
        asked.then = answer if is_recorded(answer) else None
        return await reply_of(answer, request or {}, _failure_in(name, answer))

    def _next(self, name: str, request: Any, size: int) -> Json:
        """The answer to a request: the one that was recorded for it, or the next of the script."""
        answers = self._answers.get(name, [])
        recorded = [answer for answer in answers if is_recorded(answer)]
        if recorded:
            recorded = [answer for answer in recorded if answer.get("fails") not in NOT_MADE] or recorded
            found = next((answer for answer in recorded if is_same(answer.get("asked"), request)), recorded[0])
            answers.remove(found)
            return found
        for answer in answers:
            if size > answer.get("refuse_over", size):
                return answer
        scripted = [answer for answer in answers if "refuse_over" not in answer]
        if not scripted:
            return {"status": 500, "body": {"error": {"message": f"The case has no further answer of {name}."}}}
        if len(scripted) > 1:
            answers.remove(scripted[0])
        return scripted[0]


def is_recorded(answer: Json) -> bool:
    """Whether an answer was recorded, with the request that it belongs to; otherwise it was written by hand."""
    return "asked" in answer


def _has_late_system(request: Json) -> bool:
    """Whether a system message stands behind others."""
    roles = [message.get("role") for message in request.get("messages") or () if isinstance(message, dict)]
    return any(role in _SYSTEM for role in [*dropwhile(lambda role: role in _SYSTEM, roles)])


def _failure_in(name: str, answer: Json) -> Exception | None:
    """The failure with which a recorded answer ends."""
    match answer.get("fails"):
        case recording.DOWN:
            return UpstreamDown(name, retry_after=answer.get("wait", 1))
        case recording.SPENT:
            refused = KeyRefused.of(answer["refusal"])
            refused.rest_for(answer.get("wait", 1))
            return refused
        case failure:
            return None if failure is None else _FAILURES.get(failure, httpx.ReadError)(f"The case says {failure}.")
