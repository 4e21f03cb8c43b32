"""What is known of the request that is being answered: id, client, model, tokens and whatever else its log lines have.

Fields are added where they become known, and read by the log, the metrics and the record of the request. They belong to
the context of the request, so tasks that it starts add to and read the same ones.
"""

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Final

_NONE: Final[Mapping[str, object]] = {}
_fields: ContextVar[dict[str, object] | None] = ContextVar("toolproxy_fields", default=None)


def start(request_id: str) -> None:
    """Begin the fields of a request with its id."""
    _fields.set({"request_id": request_id})


def clear() -> None:
    """Detach this context from the request, which has ended."""
    _fields.set(None)


def add(fields: Mapping[str, object]) -> None:
    """Add fields, or replace their values; nothing happens where no request is being answered."""
    current = _fields.get()
    if current is not None:
        current.update(fields)


def fields() -> Mapping[str, object]:
    """All fields; none where no request is being answered."""
    return _fields.get() or _NONE
