"""What one request meets, recorded while it is answered, so that it can be played again.

`api.middleware.recording` begins a recording and keeps it; `CURRENT` has it for whoever meets something outside of the
process, or remembered from before: calls of upstreams, results of tools, entries of the state store, sealed texts.
`telemetry.case_file` makes a file of it. Without a recording, each of these places looks at `CURRENT` once.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, TypeVar

from proxy.kit.timeouts import resumed

T = TypeVar("T")
Headers: TypeAlias = Sequence[tuple[bytes, bytes]]

MOST_BYTES: Final = 8 * 1024 * 1024
"""The bytes of one recording; what comes after them is left out."""

CUT: Final = b"\x00cut"
"""In the place of what was left out, because the recording would have become too large."""

DOWN, SPENT = "UpstreamDown", "KeysSpent"
NOT_MADE: Final = frozenset({DOWN, SPENT})
"""The failures of calls that were not made: the upstream has failed before, or, in cases of 0.2, its keys rested."""

_OF_FAILURES: Final = ("outcome", "why", "cause", "wait", "blame")  # the attributes of `results.ToolError`
_NANOSECOND: Final = 1e-9
_PIECE_BYTES: Final = 120  # of memory, beside its content


@dataclass(slots=True, eq=False)
class Body:
    """A body in the pieces in which it came, each with its time in seconds since the request."""

    pieces: list[tuple[float, bytes]] = field(default_factory=list)
    is_cut: bool = False  # the rest is left out

    @property
    def whole(self) -> bytes:
        """All pieces, joined."""
        return b"".join(piece for _, piece in self.pieces)


@dataclass(slots=True, eq=False)
class UpstreamCall:
    """A call of an upstream.

    Attributes:
        upstream: its name in the configuration.
        method: the HTTP method.
        target: path and query of the URL.
        at: when it was sent, in seconds since the request.
        asked: the body of the call.
        status: of the response; None: there was none.
        headers: of the response.
        body: of the response.
        failure: the name of the exception by which it failed, such as `ReadTimeout`; None: it did not fail.
        ended_at: when the response was complete or the call had failed; None: neither, because it was given up.
        wait: seconds until a call that was not made may be made.
    """

    upstream: str
    method: str
    target: str
    at: float
    asked: bytes
    status: int | None = None
    headers: Headers = ()
    body: Body = field(default_factory=Body)
    failure: str | None = None
    ended_at: float | None = None
    wait: int | None = None


@dataclass(slots=True, eq=False)
class ToolRun:
    """A tool's answer to a call, whether it was run or its cache had one.

    Attributes:
        name: the tool.
        arguments: of the call, as the tool gets them.
        at: when it was asked, in seconds since the request.
        output: its output, which has a `text`; None: there is none.
        failure: why it failed, as `error`, and the further fields of the exception.
        ended_at: when it answered; None: it was given up.
    """

    name: str
    arguments: Any
    at: float
    output: Any = None
    failure: Mapping[str, Any] | None = None
    ended_at: float | None = None


class Recording:
    """Everything outside the loop that a request meets, for a case: clock, calls of upstreams, tools, the store.

    Args:
        now: seconds on a monotonic clock.
        began_at: when the request came, in seconds since 1970.
        reserve: takes so many bytes of the memory for all recordings; False: there is no more.

    Attributes:
        began_at: as above.
        request_id: its id.
        method: its method.
        target: its path and query.
        headers: its headers.
        body: its body.
        status: of the answer to it.
        answer_headers: of that answer.
        answer: the body of that answer.
        tools: the tools of its user by their names; None: those that everybody has.
        keys: the usable keys of each upstream that has several, before its first call.
        system_first: the upstreams that were known, before their first call, to take system messages at the beginning
            only.
        calls: the calls of upstreams, in order.
        runs: the answers of tools, in the order in which they were asked.
        state: what the state store had under each key; None: nothing.
        opened: what each sealed text holds.
        events: what happened besides, each with its time `at`.
        scope: what the layers around the endpoints know of it: its `caller`, and its `tool_calls_left`.
    """

    def __init__(
        self, now: Callable[[], float], *, began_at: float, reserve: Callable[[int], bool] = lambda _: True
    ) -> None:
        self._now = now
        self._reserve = reserve
        self._began = now()
        self._left = MOST_BYTES
        self._instant: float | None = None
        self.began_at = began_at
        self.request_id = ""
        self.method = ""
        self.target = ""
        self.headers: Headers = ()
        self.body = Body()
        self.status: int | None = None
        self.answer_headers: Headers = ()
        self.answer = Body()
        self.tools: Mapping[str, Any] | None = None
        self.keys: dict[str, int] = {}
        self.system_first: set[str] = set()
        self.calls: list[UpstreamCall] = []
        self.runs: list[ToolRun] = []
        self.state: dict[str, bytes | None] = {}
        self.opened: dict[str, Any] = {}
        self.events: list[dict[str, Any]] = []
        self.scope: Mapping[str, Any] = {}

    @property
    def at(self) -> float:
        """Seconds since the request came.

        What happens in one iteration of the event loop, between which nobody else can do anything, has one time, and
        its order in nanoseconds.
        """
        if self._instant is None:
            instant = self._instant = self._now() - self._began
            self._after_instant()
        else:
            instant = self._instant = self._instant + _NANOSECOND
        return instant

    def _after_instant(self) -> None:
        def forget() -> None:
            self._instant = None

        try:
            asyncio.get_running_loop().call_soon(forget)
        except RuntimeError:  # there is no loop in a thread that works beside it
            forget()

    @property
    def size(self) -> int:
        """The bytes that it takes in memory."""
        return MOST_BYTES - self._left

    def has_room(self, size: int) -> bool:
        """Take so many bytes for a part; False: there is no room, and the part is left out."""
        taken = size + _PIECE_BYTES
        if taken > self._left or not self._reserve(taken):
            return False
        self._left -= taken
        return True

    def add(self, body: Body, piece: bytes) -> None:
        """Add a piece to a body."""
        if body.is_cut or not self.has_room(len(piece)):
            body.is_cut = True
        else:
            body.pieces.append((self.at, bytes(piece)))

    def found(self, key: str, value: bytes | None) -> None:
        """Note what the state store has under a key."""
        self.state[key] = value if self.has_room(len(value or b"")) else CUT

    def open(self, sealed: str, held: Any, size: int) -> None:
        """Note what a sealed text holds, which takes `size` bytes."""
        self.opened[sealed] = held if self.has_room(size) else CUT

    def knows(self, upstream: str) -> bool:
        """Whether the upstream has been called already."""
        return any(call.upstream == upstream and call.failure not in NOT_MADE for call in self.calls)

    def call(self, upstream: str, method: str, target: str, asked: bytes) -> UpstreamCall:
        """A call of an upstream that is sent now."""
        call = UpstreamCall(upstream, method, target, self.at, asked)
        self.calls.append(call)
        if not self.has_room(len(asked)):
            call.asked = CUT
        return call

    def refused(self, upstream: str, failure: str, wait: int) -> None:
        """Note a call that was not made: why, and how many seconds before it may be made."""
        call = UpstreamCall(upstream, "", "", self.at, b"", failure=failure, wait=wait)
        call.ended_at = call.at
        self.calls.append(call)

    async def run(self, name: str, arguments: Any, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`, which is a call of a tool; it is recorded with its time, and so is its failure."""
        run, waited = ToolRun(name, arguments, self.at), Waited()
        self.runs.append(run)
        try:
            output = await watched(work, waited)
        except Exception as exc:
            # Not the exception itself, whose frames hold the conversation.
            told = {name: value for name in _OF_FAILURES if (value := getattr(exc, name, None)) is not None}
            run.failure, run.ended_at = {"error": str(exc), **told}, self.at if waited else run.at
            raise
        run.output = output if self.has_room(len(getattr(output, "text", ""))) else CUT
        run.ended_at = self.at if waited else run.at
        return output

    def note(self, event: str, **fields: Any) -> None:
        """Note something that happens now."""
        self.events.append({"event": event, "at": self.at, **fields})


class Waited:
    """Whether some work has waited for anything. If not, nothing else can have run in the meantime."""

    def __init__(self) -> None:
        self._has = False

    def __bool__(self) -> bool:
        return self._has

    def note(self) -> None:
        """Note that it waits."""
        self._has = True


async def watched(work: Coroutine[Any, Any, T], waited: Waited) -> T:
    """The result of `work`, with a note if it has waited."""
    try:
        waiting = work.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    waited.note()
    return await resumed(work, waiting)


CURRENT: Final[ContextVar[Recording | None]] = ContextVar("toolproxy_recording", default=None)
"""The recording of the request that is being answered."""


def chance() -> float:
    """A random number from 0 to 1, which is noted where a request is recorded."""
    number = random.random()  # noqa: S311 - for waits
    if (recording := CURRENT.get()) is not None:
        recording.note("chance", value=number)
    return number


def note_system_first(upstream: str) -> None:
    """Note that the system messages of the upstream's first call that is recorded had to be at the beginning."""
    if (recording := CURRENT.get()) is not None and not recording.knows(upstream):
        recording.system_first.add(upstream)
