"""What one request meets, recorded while it is answered, so that it can be played again.

`api.middleware.recording` begins a recording and keeps it; `CURRENT` has it for whoever meets something outside of the
process, or remembered from before: calls of upstreams, results of tools, entries of the state store, sealed texts.
`case_file` makes a file of it. Without a recording, each of these places looks at `CURRENT` once.
"""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, TypeVar

T = TypeVar("T")
Headers: TypeAlias = Sequence[tuple[bytes, bytes]]

MOST_BYTES: Final = 8 * 1024 * 1024
"""The bytes of one recording, and of its case. A larger one is not kept."""

DOWN, SPENT = "UpstreamDown", "KeysSpent"
NOT_MADE: Final = frozenset({DOWN, SPENT})
"""The failures of calls that were not made: the upstream has failed before, or, in cases of 0.2, its keys rested."""

_OF_FAILURES: Final = ("outcome", "why", "cause", "wait", "blame")  # the attributes of `results.ToolError`
_PIECE_BYTES: Final = 120  # of memory, beside its content


@dataclass(slots=True, eq=False)
class UpstreamCall:
    """A call of an upstream.

    Attributes:
        upstream: its name in the configuration.
        target: path and query of the URL.
        asked: the body of the call.
        status: of the response; None: there was none.
        headers: of the response.
        pieces: the body of the response, as it came.
        failure: the name of the exception by which it failed, such as `ReadTimeout`; None: it did not fail.
        has_ended: whether the response was complete or the call had failed; otherwise it was given up.
        wait: seconds until a call that was not made may be made.
    """

    upstream: str
    target: str
    asked: bytes
    status: int | None = None
    headers: Headers = ()
    pieces: list[bytes] = field(default_factory=list)
    failure: str | None = None
    has_ended: bool = False
    wait: int | None = None

    def fail(self, failure: str) -> None:
        """Note the failure by which the call ended."""
        self.failure, self.has_ended = failure, True


@dataclass(slots=True, eq=False)
class ToolRun:
    """A tool's answer to a call, whether it was run or its cache had one; without either the call was given up.

    Attributes:
        name: the tool.
        arguments: of the call, as the tool gets them.
        output: its output, which has a `text`; None: there is none.
        failure: why it failed, as `error`, and the further fields of the exception.
    """

    name: str
    arguments: Any
    output: Any = None
    failure: Mapping[str, Any] | None = None


@dataclass(slots=True, eq=False)
class Recording:
    """Everything outside the loop that a request meets, for a case: calls of upstreams, tools, the store.

    Times are not a part of it. What they have caused is named in `timed`, because it cannot be played again.

    Attributes:
        began_at: when the request came, in seconds since 1970.
        reserve: takes so many bytes of the memory for all recordings; False: there is no more.
        request_id: its id.
        method: its method.
        target: its path and query.
        headers: its headers.
        body: the pieces of its body.
        status: of the answer to it.
        answer_headers: of that answer.
        answer: the pieces of the body of that answer.
        tools: the tools of its user by their names; None: those that everybody has.
        keys: the usable keys of each upstream that has several, before its first call.
        system_first: the upstreams that were known, before their first call, to take system messages at the beginning
            only.
        calls: the calls of upstreams, in order.
        runs: the answers of tools, in the order in which they were asked.
        state: what the state store had under each key; None: nothing.
        opened: what each sealed text holds.
        timed: what time has caused, in words: a deadline that passed, a client that left.
        scope: what the layers around the endpoints know of it: its `caller`, and its `tool_calls_left`.
        size: the bytes of all parts.
        reserved: the bytes of the parts that are kept.
        is_complete: whether all parts are kept.
    """

    began_at: float
    reserve: Callable[[int], bool] = lambda _: True
    request_id: str = ""
    method: str = ""
    target: str = ""
    headers: Headers = ()
    body: list[bytes] = field(default_factory=list)
    status: int | None = None
    answer_headers: Headers = ()
    answer: list[bytes] = field(default_factory=list)
    tools: Mapping[str, Any] | None = None
    keys: dict[str, int] = field(default_factory=dict)
    system_first: set[str] = field(default_factory=set)
    calls: list[UpstreamCall] = field(default_factory=list)
    runs: list[ToolRun] = field(default_factory=list)
    state: dict[str, bytes | None] = field(default_factory=dict)
    opened: dict[str, Any] = field(default_factory=dict)
    timed: list[str] = field(default_factory=list)
    scope: Mapping[str, Any] = field(default_factory=dict)
    size: int = 0
    reserved: int = 0
    is_complete: bool = True

    def has_room(self, size: int) -> bool:
        """Take so many bytes for a part; False: the part is not kept, because the recording has become too large."""
        taken = size + _PIECE_BYTES
        self.size += taken
        if self.is_complete and self.size <= MOST_BYTES and self.reserve(taken):
            self.reserved += taken
            return True
        self.is_complete = False
        return False

    def add(self, pieces: list[bytes], piece: bytes) -> None:
        """Add a piece to a body."""
        if self.has_room(len(piece)):
            pieces.append(bytes(piece))

    def found(self, key: str, value: bytes | None) -> None:
        """Note what the state store has under a key."""
        if self.has_room(len(value or b"")):
            self.state[key] = value

    def open(self, sealed: str, held: Any, size: int) -> None:
        """Note what a sealed text holds, which takes `size` bytes."""
        if self.has_room(size):
            self.opened[sealed] = held

    def knows(self, upstream: str) -> bool:
        """Whether the upstream has been called already."""
        return any(call.upstream == upstream and call.failure not in NOT_MADE for call in self.calls)

    def call(self, upstream: str, target: str, asked: bytes) -> UpstreamCall:
        """A call of an upstream that is sent now."""
        call = UpstreamCall(upstream, target, asked if self.has_room(len(asked)) else b"")
        self.calls.append(call)
        return call

    def refused(self, upstream: str, failure: str, wait: int) -> None:
        """Note a call that was not made: why, and how many seconds before it may be made."""
        self.calls.append(UpstreamCall(upstream, "", b"", failure=failure, has_ended=True, wait=wait))

    async def run(self, name: str, arguments: Any, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`, which is a call of a tool; it is recorded, and so is its failure."""
        run = ToolRun(name, arguments)
        self.runs.append(run)
        try:
            output = await work
        except Exception as exc:
            # Not the exception itself, whose frames hold the conversation.
            told = {name: value for name in _OF_FAILURES if (value := getattr(exc, name, None)) is not None}
            run.failure = {"error": str(exc), **told}
            raise
        if self.has_room(len(getattr(output, "text", ""))):
            run.output = output
        return output


CURRENT: Final[ContextVar[Recording | None]] = ContextVar("toolproxy_recording", default=None)
"""The recording of the request that is being answered."""


def note_timed(what: str) -> None:
    """Note something that time has caused, where a request is recorded."""
    if (recording := CURRENT.get()) is not None and what not in recording.timed:
        recording.timed.append(what)


def note_system_first(upstream: str) -> None:
    """Note that the system messages of the upstream's first call that is recorded had to be at the beginning."""
    if (recording := CURRENT.get()) is not None and not recording.knows(upstream):
        recording.system_first.add(upstream)
