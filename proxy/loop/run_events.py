"""The events of a run between its chunks, in order, for the audience that shows it to a client: a closed union.

    TurnBegan   ( a chunk | CallBegan )*   CallEnded*   ( CallBegan?   CallEnded )*   CallsAnswered?

A call begins at its place in the turn, whether it is run at once or only when the turn is complete. A call without any
argument text begins at the end of the turn, after the client's calls, because its arguments may still come; so do the
server's calls after it. A call ends when its turn is complete: a turn that is cut off runs nothing. Calls that are
answered without being run, such as repeated calls, come last.
"""

from typing import TypeAlias, final

from msgspec import Struct

from proxy.loop.actions import AnsweredCall
from proxy.loop.results import ToolResult
from proxy.wire.chat import ToolCall


@final
class TurnBegan(Struct, frozen=True):
    """An upstream call has begun; `number` counts from 1."""

    number: int


@final
class CallBegan(Struct, frozen=True):
    """A call of a server tool is complete. It would run if the turn ended here, or it was answered without running.

    The call has its tool's own name. `model` is the upstream's name for the model, which no chunk may have had yet.
    """

    turn: int
    call: ToolCall
    model: str | None


@final
class CallEnded(Struct, frozen=True):
    """A call that has begun now has its result. The result can also be the answer to a call that was not run."""

    turn: int
    call: ToolCall
    result: ToolResult
    seconds: float


@final
class CallsAnswered(Struct, frozen=True):
    """All server calls of the turn are answered, including calls that were not run. They are in call order.

    Each call has its result as the model reads it.
    """

    calls: tuple[AnsweredCall, ...]


class StopGenerating(Exception):
    """Raised by a `Show` if the client needs no more of the answer. The answer then ends here, as a success."""


RunEvent: TypeAlias = TurnBegan | CallBegan | CallEnded | CallsAnswered
