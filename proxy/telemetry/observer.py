"""Passes every event on to the log, the metrics and the record of its request."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from proxy.ports import Content

Handler: TypeAlias = Callable[[Mapping[str, Any]], None]
"""What one subscriber does about one kind of event, given its fields. All handlers are given the same mapping."""


class Subscriber(Protocol):
    """Chooses the events that it handles."""

    def handler(self, event: str) -> Handler | None:
        """The handler for events of that name; None: they are ignored. It is asked once for each name."""
        ...


class FanOut:
    """Gives each event to those subscribers that handle it, in order. Implements `ports.Observer`.

    Args:
        subscribers: the log first: `observer.failed` is written there when a handler raises an exception.
        content: whether `content` is passed on too (`telemetry.log_content`), each of its values as a `Content`.
    """

    def __init__(self, subscribers: Sequence[Subscriber], *, content: bool) -> None:
        self._subscribers = subscribers
        self._content = content
        self._handlers: dict[str, list[Handler]] = {}
        self._failed: set[tuple[int, str]] = set()

    def __call__(self, event: str, /, **fields: Any) -> None:
        """Pass an event on."""
        handlers = self._handlers.get(event)
        if handlers is None:
            handlers = self._handlers_of(event)
        if not handlers:
            return
        content = fields.pop("content", None)
        if content and self._content:
            fields.update((name, Content(value)) for name, value in content.items())
        for handler in handlers:
            try:
                handler(fields)
            except Exception:  # noqa: BLE001 - a fault of an observer must not end the request
                self._report(handler, event)

    def wants(self, event: str) -> bool:
        """Whether any subscriber handles events of that name."""
        handlers = self._handlers.get(event)
        return bool(self._handlers_of(event) if handlers is None else handlers)

    def _handlers_of(self, event: str) -> list[Handler]:
        """Ask every subscriber, once for each name of an event."""
        found = [subscriber.handler(event) for subscriber in self._subscribers]
        handlers = self._handlers[event] = [handler for handler in found if handler is not None]
        return handlers

    def _report(self, handler: Handler, event: str) -> None:
        """Log the exception that is being handled, once for each handler and event."""
        key = id(handler), event
        if key not in self._failed:
            self._failed.add(key)
            write = self._subscribers[0].handler("observer.failed")
            if write is not None:
                write({"on": event, "exc_info": True})
