"""What is known of the request that is being answered: id, client, model, tokens and whatever else its log lines have.

Fields are added where they become known, and read by the log, the metrics and the record of the request. They belong to
the context of the request, so tasks that it starts add to and read the same ones.
"""

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Final

fields: Final[ContextVar[dict[str, object]]] = ContextVar("toolproxy_fields")
"""The fields, beginning with `request_id`; `fields.get({})` has none where no request is being answered."""


def add(more: Mapping[str, object]) -> None:
    """Add fields, or replace their values; nothing happens where no request is being answered."""
    fields.get({}).update(more)
