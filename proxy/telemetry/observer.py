"""One observer that tells several: what they may hear is decided here, and none of them can do any harm."""

from collections.abc import Callable, Sequence

from proxy.ports import Content, Observer


def fan_out(observers: Sequence[Observer], *, content: bool) -> Observer:
    """An observer that passes every event on to `observers`, in order.

    Args:
        observers: the log first, for it is told when another one fails. One with a method `hears` is asked once for
            each kind of event whether it wants any: most events of a request are nobody's as shipped.
        content: whether fields of the type `Content` are passed on too (`telemetry.log_content`).
    """
    log, failed = observers[0], set[tuple[int, str]]()
    listening: dict[str, list[Observer]] = {}

    def observe(event: str, /, **fields: object) -> None:
        if (listeners := listening.get(event)) is None:
            listeners = listening[event] = [observer for observer in observers if _hears(observer, event)]
        if not listeners:
            return
        if not content:
            for name in [name for name, value in fields.items() if value.__class__ is Content]:
                del fields[name]
        for observer in listeners:
            try:
                observer(event, **fields)
            except Exception:  # noqa: BLE001 - observers watch and never steer: the request goes on
                if (id(observer), event) not in failed:
                    failed.add((id(observer), event))
                    log("observer.failed", on=event, exc_info=True)

    return observe


def _hears(observer: Observer, event: str) -> bool:
    hears: Callable[[str], bool] | None = getattr(observer, "hears", None)
    return hears is None or hears(event)
