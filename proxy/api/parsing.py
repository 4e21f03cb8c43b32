"""The body of a request as JSON within bounds, and the checks that the histories of all APIs share."""

from typing import Any, TypeAlias

import orjson

from proxy.api.fields import expect
from proxy.api.json_bounds import MOST_BLOCKS, MOST_VALUES, blocks_in
from proxy.api.known import History, Known
from proxy.wire.chat import Json
from proxy.wire.errors import InvalidJson, RequestError
from proxy.wire.json_values import holds_too_many_values

# Every tool is checked before any work is done. OpenAI takes 128; some clients have more.
MOST_TOOLS = 1024

OF_TOOLS = "objects whose 'type' and function 'name' are strings"
"""What a list of tools or calls of Chat Completions has to hold."""

Fault: TypeAlias = tuple[str, str]
"""The place of a fault within a message, and what the value there must be."""


def parse_object(body: bytes, history: History | None = None, *, param: str | None = None) -> Json:
    """The body as a JSON object.

    Args:
        body: the body.
        history: how its history is parsed; None: it has none.
        param: the field that a body of too many values is said to be wrong in; that of the history if there is one.

    Raises:
        InvalidJson: the body is not JSON, or is nested more than 1024 levels deep.
        RequestError: the body holds too many values, or is JSON, but not an object.
    """
    if holds_too_many_values(body, MOST_VALUES):
        field = param if history is None else history.field
        raise RequestError(f"The request body may have at most {MOST_VALUES} values.", param=field)
    if history is not None and (fields := history.parse(body)) is not None:
        return fields
    try:
        request = orjson.loads(body) if history is None else history.loads(body)
    except orjson.JSONDecodeError as exc:
        raise InvalidJson(f"The request body is not valid JSON: {exc.msg}.") from exc
    if not isinstance(request, dict):
        raise RequestError("The request body must be a JSON object.")
    return request


def message_fault(message: Any) -> Fault | None:
    """The first fault of a message, None without one. It must be fast: there may be thousands of messages."""
    if not isinstance(message, dict):
        return "", "must be an object"
    role, content, calls = message.get("role"), message.get("content"), message.get("tool_calls")
    if role is not None and not isinstance(role, str):
        return ".role", "must be a string"
    if isinstance(content, list) and not _are_well_typed(content):
        return ".content", "must hold well-formed parts only"
    if calls is not None and not _are_well_typed(calls):
        return ".tool_calls", f"must be a list of {OF_TOOLS}"
    return None


def _are_well_typed(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, dict) and _is_well_typed(item) for item in value)


def _is_well_typed(item: Json) -> bool:
    function = item.get("function")
    named = function is None or (isinstance(function, dict) and isinstance(function.get("name"), str | None))
    return named and isinstance(item.get("type", ""), str)


def expect_few_blocks(messages: Any, param: str, *, of: bytes) -> None:
    """Raise `RequestError` if the messages or items of a request, read from the body `of`, have too many blocks."""
    if len(of) > MOST_BLOCKS and isinstance(messages, list):  # each block takes a byte at least
        count = sum([message.blocks for message in messages if isinstance(message, Known)])
        count += blocks_in([message for message in messages if not isinstance(message, Known)])
        expect(count <= MOST_BLOCKS, param, f"may hold {MOST_BLOCKS} blocks or parts at most")
