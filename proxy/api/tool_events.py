"""Progress events: which of them a client is told, by its header `x-tool-events` or else by the configuration."""

from collections.abc import Awaitable
from typing import Final

from proxy.config import ToolEvents
from proxy.loop.chat import Json
from proxy.ports import Tell

_HEADER: Final[dict[str, ToolEvents]] = {"true": "calls", "results": "results", "false": "none", "none": "none"}


def wanted_events(header: str | None, *, otherwise: ToolEvents) -> ToolEvents:
    """The events for a request: what its header says, or what the operator has chosen where it says nothing."""
    return _HEADER.get((header or "").strip().lower(), otherwise)


def telling(tell: Tell, events: ToolEvents) -> Tell | None:
    """The function that tells a client the events that it wants; None: it wants none."""
    if events == "none":
        return None
    if events == "results":
        return tell

    def tell_calls(event: Json) -> Awaitable[bool]:
        return tell({name: value for name, value in event.items() if name != "results"})

    return tell_calls
