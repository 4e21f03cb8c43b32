"""A Chat Completions request, which is checked and not translated."""

from typing import Annotated, Any

from msgspec import Meta, Struct

from proxy.api.fields import MOST, Count, Name, read_fields, refuse
from proxy.api.json_bounds import MOST_MESSAGES
from proxy.api.parsing import MOST_TOOLS, OF_TOOLS, expect_few_blocks, message_fault, parse_object
from proxy.wire.chat import Json

# OpenAI's own limit for `n`.
MOST_CHOICES = 128

_DEMANDS = {
    "model": "must be the name of a model",
    "messages": f"must be a list of 1 to {MOST_MESSAGES} messages",
    "stream": "must be true or false",
    "tool_choice": (
        "must be a string, or an object with a string 'type' and a well-formed 'function' or 'allowed_tools'"
    ),
    "tools": f"must be a list of at most {MOST_TOOLS} {OF_TOOLS}",
    "stream_options": "must be an object",
    "response_format": "must be an object",
    "response_format.json_schema": "must be an object",
    "n": f"must be an integer from 1 to {MOST_CHOICES}",
    "max_tool_calls": f"must be an integer from 0 to {MOST}",
}


class _Function(Struct, frozen=True):
    name: str | None = None


class _Tool(Struct, frozen=True):
    type: str = ""
    function: _Function | None = None


class _AllowedTools(Struct, frozen=True):
    tools: list[_Tool] | None = None


class _Choice(_Tool, frozen=True):
    allowed_tools: _AllowedTools | None = None


class _Format(Struct, frozen=True):
    json_schema: Json | None = None


class _ChatFields(Struct, frozen=True):
    model: Name
    messages: Annotated[list[Any], Meta(min_length=1, max_length=MOST_MESSAGES)]
    stream: bool | None = None
    tool_choice: str | _Choice | None = None
    tools: Annotated[list[_Tool], Meta(max_length=MOST_TOOLS)] | None = None
    stream_options: Json | None = None
    response_format: _Format | None = None
    n: Annotated[int, Meta(ge=1, le=MOST_CHOICES)] | None = None
    max_tool_calls: Count | None = None


def parse_chat_request(body: bytes) -> Json:
    """A Chat Completions request. The fields that the proxy reads are checked; the rest is left to the upstream.

    Raises:
        RequestError: a field is not well formed; its name is `param`.
    """
    request = parse_object(body, param="messages")
    messages = read_fields(request, _ChatFields, _DEMANDS).messages
    expect_few_blocks(messages, "messages", of=body)
    for at, message in enumerate(messages):
        if fault := message_fault(message):
            place, demand = fault
            refuse(f"messages[{at}]{place}", demand)
    return request
