"""What is known of the request that is being answered: id, client, model, tokens and whatever else its log lines have.

Fields are added where they become known, and read by the log, the metrics and the record of the request. They belong to
the context of the request, so tasks that it starts add to and read the same ones.
"""

import re
from collections.abc import Mapping
from contextvars import ContextVar
from secrets import token_hex
from typing import Final

# A client's own id goes into headers and logs: no character that could break out of either.
_SANE_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,128}")

fields: Final[ContextVar[dict[str, object]]] = ContextVar("toolproxy_fields")
"""The fields, beginning with `request_id`; `fields.get({})` has none where no request is being answered."""


def add(more: Mapping[str, object]) -> None:
    """Add fields, or replace their values; nothing happens where no request is being answered."""
    fields.get({}).update(more)


def request_id_of(given: str | None) -> str:
    """The id of a request: the client's own, `given` in `x-request-id`, if it is a sane one, and else a new one."""
    return given if given and _SANE_ID.fullmatch(given) else token_hex(16)
