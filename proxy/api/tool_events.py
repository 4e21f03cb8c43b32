"""Progress events: which of them a client is told."""

from collections.abc import Awaitable, Mapping
from typing import Final

from proxy.config import ToolEvents
from proxy.loop.chat import Json
from proxy.ports import Tell

IN_HEADER: Final[Mapping[str, ToolEvents]] = {"true": "calls", "results": "results", "false": "none", "none": "none"}
"""The values of a request's header `x-tool-events`; with any other one, what the operator has configured counts."""


def telling(tell: Tell, events: ToolEvents) -> Tell | None:
    """The function that tells a client the events that it wants; None: it wants none."""
    if events == "none":
        return None
    if events == "results":
        return tell

    def tell_calls(event: Json) -> Awaitable[bool]:
        return tell({name: value for name, value in event.items() if name != "results"})

    return tell_calls
