"""The fields of the current request: id, client, model, tokens and everything else in its log lines.

Fields are added where they become known, and are read by the log, the metrics and the record of the request. They
belong to the request's context, so tasks that it starts add to the same fields and read them.
"""

import re
from collections.abc import Mapping
from contextvars import ContextVar
from secrets import token_hex
from typing import Final

# A client's id is written to headers and logs, so it must not have characters with a meaning there.
_SANE_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,128}")

fields: Final[ContextVar[dict[str, object]]] = ContextVar("toolproxy_fields")
"""The fields, the first of which is `request_id`. Outside of a request, `fields.get({})` is empty."""


def add(more: Mapping[str, object]) -> None:
    """Add fields, or replace their values. Outside of a request, this does nothing."""
    fields.get({}).update(more)


def request_id_of(given: str | None) -> str:
    """The id of a request: the client's, `given` in `x-request-id`, if it is a sane one, or else a new one."""
    return given if given and _SANE_ID.fullmatch(given) else token_hex(16)
