"""What is known of the request that is being answered: its id, client, model, tokens, whatever its log line is to say.

Facts are noted where they come up and read where the request is told of: in each of its log lines, its metrics, its
story. They belong to the request's own context, so whatever it starts notes and reads the same ones.
"""

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Final

_NONE: Final[Mapping[str, object]] = {}
_fields: ContextVar[dict[str, object] | None] = ContextVar("toolproxy_fields", default=None)


def start(request_id: str) -> None:
    """A request has come, of which nothing else is known yet."""
    _fields.set({"request_id": request_id})


def clear() -> None:
    """It is over; what this context does from now on is not for it."""
    _fields.set(None)


def add(fields: Mapping[str, object]) -> None:
    """Know more of it; a newer value takes the place of an older one. Nothing where no request is being answered."""
    current = _fields.get()
    if current is not None:
        current.update(fields)


def fields() -> Mapping[str, object]:
    """All that is known; nothing where no request is being answered."""
    return _fields.get() or _NONE
