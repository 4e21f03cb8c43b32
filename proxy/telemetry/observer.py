"""One observer that tells several: what they may hear is decided here, and none of them can do any harm."""

from collections.abc import Sequence

from proxy.ports import Content, Observer


def fan_out(observers: Sequence[Observer], *, content: bool) -> Observer:
    """An observer that passes every event on to `observers`, in order.

    Args:
        observers: the log first, for it is told when another one fails.
        content: whether fields of the type `Content` are passed on too (`telemetry.log_content`).
    """
    log, failed = observers[0], set[tuple[int, str]]()

    def observe(event: str, /, **fields: object) -> None:
        if not content:
            fields = {name: value for name, value in fields.items() if not isinstance(value, Content)}
        for number, observer in enumerate(observers):
            try:
                observer(event, **fields)
            except Exception:  # noqa: BLE001 - observers watch and never steer: the request goes on
                if (number, event) not in failed:
                    failed.add((number, event))
                    log("observer.failed", on=event, exc_info=True)

    return observe
