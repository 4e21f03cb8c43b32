"""One observer that tells several: what they may hear is decided here, and none of them can do any harm."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from proxy.ports import Content, Observer

Listener: TypeAlias = Callable[[Mapping[str, Any]], None]
"""What an observer does about one kind of event, given its fields. They are its own only where it copies them."""


def fan_out(observers: Sequence[Observer], *, content: bool) -> Observer:
    """An observer that passes every event on to `observers`, in order.

    Args:
        observers: the log first, for it is told when another one fails. One with a method `listener` is asked once for
            each kind of event what it does about it, if anything: most events of a request are nobody's as shipped.
        content: whether what was said is passed on too (`telemetry.log_content`), each of it as a `Content`.
    """
    log, failed = observers[0], set[tuple[int, str]]()
    listening: dict[str, list[Listener]] = {}

    def listeners_to(event: str) -> list[Listener]:
        found = listening.get(event)
        if found is None:
            found = listening[event] = _listeners(observers, event)
        return found

    def observe(event: str, /, **fields: object) -> None:
        listeners = listening.get(event)
        if listeners is None:  # the first of its kind
            listeners = listeners_to(event)
        if not listeners:
            return
        said: Any = fields.pop("content", None)
        if content and said:
            fields.update((name, Content(value)) for name, value in said.items())
        for listener in listeners:
            try:
                listener(fields)
            except Exception:  # noqa: BLE001 - observers watch and never steer: the request goes on
                if (id(listener), event) not in failed:
                    failed.add((id(listener), event))
                    log("observer.failed", on=event, exc_info=True)

    observe.hears = lambda event: bool(listeners_to(event))  # type: ignore[attr-defined]  # for `ports.hears`
    return observe


def _listeners(observers: Sequence[Observer], event: str) -> list[Listener]:
    found = (_listener(observer, event) for observer in observers)
    return [listener for listener in found if listener is not None]


def _listener(observer: Observer, event: str) -> Listener | None:
    find: Callable[[str], Listener | None] | None = getattr(observer, "listener", None)
    return find(event) if find else lambda fields: observer(event, **fields)
