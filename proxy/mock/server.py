"""The endpoints of the scripted upstream, and the pace at which it answers.

Every piece of an answer has its time from the request on, so that an answer that was late once is not late for good:
the pace holds with hundreds of streams at once, and a whole answer takes as long as its stream would.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count, islice
from random import Random
from typing import Annotated, Any, Final, TypeAlias

import orjson
from msgspec import UNSET, Meta, Struct
from starlette.types import Receive, Scope, Send

from proxy.api.body import read_body
from proxy.api.chat.request import MOST_CHOICES, parse_chat_request
from proxy.api.exchange import CONNECTION, ClientConnection, ClientLeft, send_bytes, send_json, while_wanted
from proxy.api.fields import expect, read_fields
from proxy.api.parsing import parse_object
from proxy.app import SystemClock
from proxy.config.model import ServerConfig
from proxy.mock.answer import ChatAnswer, ScriptedAnswer
from proxy.mock.completions import TextAnswer, as_chat, embeddings
from proxy.mock.demo import DEMO, search_answer
from proxy.mock.journal import MOST_REQUESTS, Attempts, Journal, entry_of, journal_in, requests_in, without_keys
from proxy.mock.script import FIRST_FAILURE, Script, ScriptedTurn
from proxy.wire import sse
from proxy.wire.chat import Json
from proxy.wire.errors import MethodNotAllowed, NotFound, ProxyError

_BOUNDS: Final = ServerConfig()
_CLOCK: Final = SystemClock()
_MOST_TOKENS: Final = 1_000_000
_FIRST_SERVER_ERROR: Final = 500
_OF_SCRIPT: Final = ("delay", "pace", "jitter", "error_rate", "errors")  # what a turn leaves out has the script's value
_LONGEST_SECONDS: Final = 86_400.0
_TYPES: Final = {
    400: "invalid_request_error", 401: "authentication_error", 402: "insufficient_quota", 403: "permission_error",
    404: "not_found_error", 408: "timeout_error", 413: "request_too_large", 429: "rate_limit_error",
}  # fmt: skip
"""OpenAI's `type` of an error, by its status."""


_Length: TypeAlias = Annotated[int, Meta(ge=0, le=_MOST_TOKENS)] | None


class _AnswerBounds(Struct, frozen=True):
    """The fields of a request that bound an answer."""

    model: str | None = None
    max_tokens: _Length = None
    max_completion_tokens: _Length = None
    min_tokens: _Length = None
    stop: str | list[str] | None = None
    n: Annotated[int, Meta(ge=1, le=MOST_CHOICES)] | None = None
    stream_options: Json | None = None


_LENGTHS: Final = ("max_tokens", "max_completion_tokens", "min_tokens")
_DEMANDS: Final = {
    "model": "must be the name of a model",
    **dict.fromkeys(_LENGTHS, f"must be an integer from 0 to {_MOST_TOKENS}"),
    "stop": "must be a text or a list of texts",
    "n": f"must be an integer from 1 to {MOST_CHOICES}",
    "stream_options": "must be an object",
}


class Pace(Struct, frozen=True):
    """The times of an answer in seconds: before its first piece, between two, and by how much a piece may differ."""

    delay: float
    gap: float
    jitter: float

    def times(self, length: int, dice: Random) -> Sequence[float]:
        """The time of each piece, in seconds after the request; none is before the one before it."""
        times, last = [], 0.0
        for number in range(max(1, length)):
            due = self.delay + number * self.gap
            if self.jitter:
                due += dice.uniform(-self.jitter, self.jitter)
            last = max(last, due)
            times.append(last)
        return times


@dataclass(slots=True)
class _Request:
    """A request that is being answered: who sent it, its body, and when it came, by the clock of the event loop."""

    scope: Scope
    receive: Receive
    send: Send
    body: bytes
    came: float


_Endpoint: TypeAlias = "Callable[[_Request], Awaitable[None]]"


class MockUpstream:
    """The scripted upstream as an ASGI application. Each endpoint answers below any path, such as `/v1`.

    Args:
        script: answers requests; it may be replaced at any time.
        journal: remembers the requests.
        attempts: counts how often a turn was asked for.
        answer_search: answers `POST /search`, which the demo has behind its search tool.
        search_seconds: how long a search takes.

    Attributes:
        script: as above.
        searches: the latest searches.
    """

    def __init__(
        self,
        script: Script = DEMO,
        *,
        journal: Journal | None = None,
        attempts: Attempts | None = None,
        answer_search: Callable[[Json], Json] = search_answer,
        search_seconds: float = 0.0,
    ) -> None:
        self.script = script
        self.searches: list[Json] = []
        self._journal = journal or journal_in()
        self._attempts = attempts or Attempts()
        self._answer_search = answer_search
        self._search_seconds = search_seconds
        self._numbers = count()

    @property
    def requests(self) -> list[Json]:
        """The bodies of the latest requests for completions."""
        return [entry["body"] for entry in self.journal if entry["path"].endswith("/completions")]

    @property
    def journal(self) -> list[Json]:
        """The latest requests, the oldest first."""
        return requests_in(self._journal)

    def clear(self) -> None:
        """Forget all requests and attempts."""
        self._journal.clear()
        self._attempts.clear()
        self.searches.clear()
        self._numbers = count()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        if scope["type"] != "http":
            return
        try:
            came = asyncio.get_running_loop().time()
            answer = self._endpoint(scope["method"], scope["path"])
            body = await read_body(scope, receive, _BOUNDS, _CLOCK)
            await answer(_Request(scope, receive, send, body, came))
        except ClientLeft:
            pass
        except ProxyError as exc:
            await send_json(send, exc.envelope(), status=exc.status, headers=exc.headers)

    def _endpoint(self, method: str, path: str) -> _Endpoint:
        """The endpoint of a path. Raises `NotFound` and `MethodNotAllowed`."""
        known: Mapping[str, Mapping[str, _Endpoint]] = {
            "/chat/completions": {"POST": self._chat},
            "/completions": {"POST": self._completions},
            "/embeddings": {"POST": self._embeddings},
            "/models": {"GET": self._models},
            "/health": {"GET": _healthy},
            "/search": {"POST": self._search},
            "/journal": {"GET": self._show_journal, "DELETE": self._clear_journal},
        }
        for end, methods in known.items():
            if path.endswith(end):
                if method not in methods:
                    allowed = ", ".join(methods)
                    raise MethodNotAllowed(f"{path} takes {allowed}, not {method}.", headers={"allow": allowed})
                return methods[method]
        if "/models/" in path and method == "GET":
            return self._model
        raise NotFound(f"The scripted upstream has no {path}.")

    async def _chat(self, request: _Request) -> None:
        body = parse_chat_request(request.body)
        await self._answer(request, body, body, lambda turn: ChatAnswer(turn, body, seed=self.script.seed))

    async def _completions(self, request: _Request) -> None:
        body = parse_object(request.body)
        await self._answer(request, body, as_chat(body), lambda _: TextAnswer(self.script, body))

    async def _answer(
        self, request: _Request, body: Json, chat: Json, answer_of: Callable[[ScriptedTurn], ScriptedAnswer]
    ) -> None:
        """Answer a request for a completion: with a failure, a body that is written out, or what the model says."""
        read_fields(body, _AnswerBounds, _DEMANDS)
        script = self.script
        number, attempts = script.steps(chat)
        turn = attempts[0]
        if len(attempts) > 1:
            conversation = orjson.dumps([number, chat["messages"]])
            turn = attempts[self._attempts.next(conversation, len(attempts))]
        dice = Random(f"{script.seed} {next(self._numbers)}")  # noqa: S311 - the same in every run
        delay, gap, jitter, error_rate, errors = (
            getattr(script, name) if getattr(turn, name) is None else getattr(turn, name) for name in _OF_SCRIPT
        )
        pace, fails = Pace(delay, gap, jitter), dice.random() < error_rate
        status = dice.choice(errors) if fails else turn.status
        self._remember(request, status)
        if fails or status >= FIRST_FAILURE or turn.body is not UNSET:
            body = failure(status) if fails or turn.body is UNSET else turn.body
            work = partial(_send_body, request, status, {} if fails else turn.headers, body, pace.times(1, dice)[0])
        else:
            work = partial(_send_answer, request, turn, answer_of(turn), pace, dice, stream=bool(body.get("stream")))
        await while_wanted(request.scope, request.receive, work, seconds=_LONGEST_SECONDS)

    async def _embeddings(self, request: _Request) -> None:
        found = embeddings(parse_object(request.body), seed=self.script.seed)
        self._remember(request, 200)
        await send_json(request.send, found)

    async def _models(self, request: _Request) -> None:
        await send_json(request.send, {"object": "list", "data": [_model(name) for name in self.script.models]})

    async def _model(self, request: _Request) -> None:
        await send_json(request.send, _model(request.scope["path"].partition("/models/")[2]))

    async def _search(self, request: _Request) -> None:
        query = parse_object(request.body)
        expect(isinstance(query.get("num", 0), int), "num", "must be an integer")
        self.searches = [*self.searches[1 - MOST_REQUESTS :], query]
        await asyncio.sleep(self._search_seconds)
        await send_json(request.send, self._answer_search(query))

    async def _show_journal(self, request: _Request) -> None:
        await send_json(request.send, [without_keys(entry) for entry in self.journal])

    async def _clear_journal(self, request: _Request) -> None:
        self.clear()
        await send_bytes(request.send, 204, (), b"")

    def _remember(self, request: _Request, status: int) -> None:
        scope = request.scope
        self._journal.add(entry_of(scope["method"], scope["path"], scope["headers"], request.body, status))


async def _healthy(request: _Request) -> None:
    await send_json(request.send, {"status": "ok"})


async def _send_answer(
    request: _Request, turn: ScriptedTurn, answer: ScriptedAnswer, pace: Pace, dice: Random, *, stream: bool
) -> None:
    """Send what the model says, each piece at its time; a whole answer at the time of its last piece."""
    times = pace.times(answer.length, dice)
    if not stream:
        await _send_body(request, turn.status, turn.headers, answer.whole(), times[-1], cut=turn.cut)
        return
    await _start(request, turn.status, {"content-type": "text/event-stream", **turn.headers})
    loop = asyncio.get_running_loop()
    connection: ClientConnection | None = request.scope.get("extensions", {}).get(CONNECTION)
    # Each piece is made when it is due: those of hundreds of streams at once would keep the next requests waiting.
    pieces, sent = answer.chunks(), 0
    while sent < len(times):
        await _until(request, times[sent])
        end, now = sent + 1, loop.time() - request.came
        while end < len(times) and times[end] <= now:
            end += 1
        data = b"".join([sse.encode(chunk) for chunks in islice(pieces, end - sent) for chunk in chunks])
        if end == len(times) and not turn.cut:
            data += sse.DONE
        if connection is None or not connection.write_chunk(data):
            await request.send({"type": "http.response.body", "body": data, "more_body": True})
        sent = end
    if not turn.cut:
        await request.send({"type": "http.response.body", "body": b""})


async def _send_body(
    request: _Request, status: int, headers: Mapping[str, str | None], body: Any, after: float, *, cut: bool = False
) -> None:
    """Send a whole body; of one that is cut off, half of it."""
    is_text = isinstance(body, str)
    data = body.encode() if is_text else orjson.dumps(body)
    kind = "application/json"
    if is_text:
        kind = "text/event-stream" if sse.begins_stream(data) else "text/plain; charset=utf-8"
    await _until(request, after)
    await _start(request, status, {"content-type": kind, "content-length": str(len(data)), **headers})
    await request.send(
        {"type": "http.response.body", "body": data[: len(data) // 2] if cut else data, "more_body": cut}
    )


async def _start(request: _Request, status: int, headers: Mapping[str, str | None]) -> None:
    lines = [(name.lower().encode(), value.encode()) for name, value in headers.items() if value is not None]
    await request.send({"type": "http.response.start", "status": status, "headers": lines})


async def _until(request: _Request, seconds: float) -> None:
    """Wait until so many seconds have passed since the request came."""
    left = request.came + seconds - asyncio.get_running_loop().time()
    if left > 0:
        await asyncio.sleep(left)


def failure(status: int) -> Json:
    """The body of a failure, in OpenAI's envelope."""
    kind = _TYPES.get(status, "server_error" if status >= _FIRST_SERVER_ERROR else "invalid_request_error")
    return {
        "error": {"message": f"A scripted failure with the status {status}.", "type": kind, "param": None, "code": None}
    }


def _model(name: str) -> Json:
    return {"id": name, "object": "model", "created": 1_700_000_000, "owned_by": "toolproxy mock-upstream"}
