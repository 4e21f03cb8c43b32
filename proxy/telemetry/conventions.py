"""What the spans of a record are called, and which attributes they have, by OpenTelemetry's conventions.

The GenAI conventions are still changing (https://github.com/open-telemetry/semantic-conventions-genai); a test compares
the names with those of the installed package `opentelemetry-semantic-conventions`. Attributes without a convention
begin with `toolproxy.`.
"""

from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any, Final, TypeAlias

import orjson
from msgspec import Struct

from proxy.paths import route_of
from proxy.telemetry.events import Content
from proxy.telemetry.records import Fields, RequestRecord, Step, short
from proxy.wire.chat import Json
from proxy.wire.usage import token_count

Attributes: TypeAlias = dict[str, Any]
Shape: TypeAlias = tuple[object, ...]
"""The kind of a span, the outcome of a step, and those fields that have few values, in the order of their table. Spans
of equal shape have equal descriptions, so a description is encoded once."""

REQUEST: Final[Mapping[str, str]] = {
    "method": "http.request.method",
    "path": "url.path",
    "status": "http.response.status_code",
    "error": "error.type",
    "model": "gen_ai.request.model",
    "client": "toolproxy.client",
    "turns": "toolproxy.turns",
    "tool_calls": "toolproxy.tool_calls",
    "stop": "toolproxy.stop",
    "rung": "toolproxy.rung",
}
"""Fields of a request that have few values, and the attributes of its SERVER span."""
CALL: Final[Mapping[str, str]] = {
    "upstream": "gen_ai.provider.name",
    "upstream_model": "gen_ai.request.model",
    "response_model": "gen_ai.response.model",
    "code": "error.type",
    "turn": "toolproxy.turn",
    "rung": "toolproxy.rung",
}
"""Fields of a turn or relay that have few values, and the attributes of its CLIENT span."""

TOOL: Final[Mapping[str, str]] = {"tool": "gen_ai.tool.name", "turn": "toolproxy.turn"}
"""Fields of a tool call that have few values, and the attributes of its INTERNAL span."""

PAGE: Final[Mapping[str, str]] = {"tool": "gen_ai.tool.name", "page": "toolproxy.page"}
"""Fields of a page that a search reads, and the attributes of its INTERNAL span."""

_CALL_SHAPE: Final = (*CALL, "path", "finish_reason")
_TABLES: Final = {"tool": TOOL, "page": PAGE}

OPERATION: Final = "gen_ai.operation.name"
OPERATIONS: Final[Mapping[str, str]] = {"/embeddings": "embeddings", "/completions": "text_completion"}
"""Paths of relayed requests, and their operations; a relay without a path is a chat."""
CHAT: Final = "chat"
EXECUTE_TOOL: Final = "execute_tool"
READ_PAGE: Final = "read page"
URL: Final = "url.full"
TOOL_TYPE: Final = "gen_ai.tool.type"
EXTENSION: Final = "extension"  # the type of a tool that is run by the proxy, not by the client
ROUTE: Final = "http.route"
ERROR: Final = "error.type"
REQUEST_ID: Final = "toolproxy.request_id"
FIRST_BYTE: Final = "toolproxy.first_byte_seconds"
FIRST_CHUNK: Final = "gen_ai.response.time_to_first_chunk"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
REASONING_TOKENS: Final = "gen_ai.usage.reasoning.output_tokens"
CACHED_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
INPUT_MESSAGES: Final = "gen_ai.input.messages"
OUTPUT_MESSAGES: Final = "gen_ai.output.messages"
CALL_ID: Final = "gen_ai.tool.call.id"
ARGUMENT_BYTES: Final = "toolproxy.argument_bytes"
RESULT_CHARACTERS: Final = "toolproxy.result_characters"
ARGUMENTS: Final = "gen_ai.tool.call.arguments"
RESULT: Final = "gen_ai.tool.call.result"

_SIZES: Final = {"argument_bytes": ARGUMENT_BYTES, "characters": RESULT_CHARACTERS}
EVENTS_IN_ATTRIBUTES: Final = frozenset({"response.started"})
"""Events that a span does not repeat, for its attributes say the same."""


class SpanDescription(Struct, frozen=True):
    """The name of spans, whether they failed, and the attributes that they have in common."""

    name: str
    failed: bool
    attributes: Attributes


def request_shape(record: RequestRecord) -> Shape:
    """The shape of a request's span."""
    return ("request", *map(record.fields.get, REQUEST))


def step_shape(step: Step) -> Shape:
    """The shape of a step's span."""
    table = _TABLES.get(step.kind, _CALL_SHAPE)
    return (step.kind, step.outcome, *map(step.fields.get, table))


def describe(shape: Shape) -> SpanDescription:
    """The description that all spans of a shape share."""
    match shape:
        case ("request", *values):
            return _request(dict(zip(REQUEST, values, strict=True)))
        case ("tool", outcome, *values):
            return _internal(dict(zip(TOOL, values, strict=True)), str(outcome), TOOL)
        case ("page", outcome, *values):
            return _internal(dict(zip(PAGE, values, strict=True)), str(outcome), PAGE)
        case (_, outcome, *values):
            return _call(dict(zip(_CALL_SHAPE, values, strict=True)), str(outcome))
    raise AssertionError(shape)


def _request(fields: Fields) -> SpanDescription:
    route, status = route_of(str(fields["path"])), fields["status"]
    failed = isinstance(status, int) and status >= HTTPStatus.INTERNAL_SERVER_ERROR
    return SpanDescription(f"{fields['method']} {route}", failed, {**_named(fields, REQUEST), ROUTE: route})


def _internal(fields: Fields, outcome: str, table: Mapping[str, str]) -> SpanDescription:
    """A tool call, or a page that a search reads."""
    attributes, name = _named(fields, table), READ_PAGE
    if table is TOOL:
        attributes |= {OPERATION: EXECUTE_TOOL, TOOL_TYPE: EXTENSION}
        name = f"{EXECUTE_TOOL} {fields['tool']}"
    failed = outcome != "completed"
    if failed:
        attributes[ERROR] = outcome
    return SpanDescription(name, failed, attributes)


def _call(fields: Fields, outcome: str) -> SpanDescription:
    attributes, path = _named(fields, CALL), fields["path"]
    if outcome == "abandoned":
        attributes[ERROR] = outcome
    if reason := fields["finish_reason"]:
        attributes[FINISH_REASONS] = (str(reason),)
    operation = CHAT if path is None else OPERATIONS.get(str(path))
    name = f"relay {fields['upstream']}"
    if operation is not None:
        name, attributes[OPERATION] = f"{operation} {fields['upstream_model']}", operation
    return SpanDescription(name, outcome != "completed", attributes)


def request_attributes(record: RequestRecord) -> Attributes:
    """The attributes of a request's span that are no part of its shape."""
    fields, attributes = record.fields, {}
    if (request_id := fields.get("request_id")) is not None:
        attributes[REQUEST_ID] = request_id
    if (first_byte := fields.get("first_byte")) is not None:
        attributes[FIRST_BYTE] = first_byte
    return attributes


def step_attributes(step: Step) -> Attributes:
    """The attributes of a step's span that are no part of its shape."""
    fields = step.fields
    return _call_attributes(fields) if step.kind not in _TABLES else _internal_attributes(fields)


def _internal_attributes(fields: Fields) -> Attributes:
    attributes = {name: value for field, name in _SIZES.items() if (value := fields.get(field)) is not None}
    if "call_id" in fields:
        attributes[CALL_ID] = short(str(fields["call_id"]))
    for field, name in ("arguments", ARGUMENTS), ("result", RESULT), ("url", URL):
        if isinstance(content := fields.get(field), Content):
            attributes[name] = content.text()
    return attributes


def _call_attributes(fields: Fields) -> Attributes:
    attributes = usage(fields["usage"]) if "usage" in fields else {}
    if (first := fields.get("first")) is not None:
        attributes[FIRST_CHUNK] = first
    if isinstance(content := fields.get("messages"), Content):
        attributes[INPUT_MESSAGES] = Content(messages(content.value)).text()
    if isinstance(content := fields.get("message"), Content):
        attributes[OUTPUT_MESSAGES] = messages([content.value], finish_reason=str(fields.get("finish_reason")))
    return attributes


def _named(fields: Fields, table: Mapping[str, str]) -> Attributes:
    """The fields that the table has, under their attributes' names."""
    return {
        name: value if isinstance(value, (int, float)) else short(str(value))
        for field, name in table.items()
        if (value := fields.get(field)) is not None
    }


def usage(counted: Any) -> Attributes:
    """An upstream's `usage`, if it is one: the tokens that it read and wrote, thought, and found in its cache."""
    if not isinstance(counted, dict):
        return {}
    counts = {
        INPUT_TOKENS: token_count(counted, "prompt_tokens"),
        OUTPUT_TOKENS: token_count(counted, "completion_tokens"),
        REASONING_TOKENS: token_count(counted, "completion_tokens_details", "reasoning_tokens"),
        CACHED_TOKENS: token_count(counted, "prompt_tokens_details", "cached_tokens"),
    }
    return {name: count for name, count in counts.items() if count is not None}


def messages(chat: Iterable[Json], *, finish_reason: str | None = None) -> str:
    """Chat messages in the conventions' form, role and parts, as JSON."""
    extra = {"finish_reason": finish_reason} if finish_reason else {}
    written = [{"role": str(message.get("role")), "parts": list(_parts(message)), **extra} for message in chat]
    return orjson.dumps(written, default=str).decode()


def _parts(message: Json) -> Iterable[Json]:
    content = message.get("content")
    if message.get("role") == "tool":
        yield {"type": "tool_call_response", "id": message.get("tool_call_id"), "response": content}
        return
    if thoughts := message.get("reasoning_content") or message.get("reasoning"):
        yield {"type": "reasoning", "content": thoughts}
    if isinstance(content, str) and content:
        yield {"type": "text", "content": content}
    for part in content if isinstance(content, list) else ():
        if isinstance(part, dict):
            yield {"type": "text", "content": part["text"]} if "text" in part else {"type": str(part.get("type"))}
    for call in message.get("tool_calls") or ():
        function = call.get("function") or {}
        yield {
            "type": "tool_call",
            "id": call.get("id"),
            "name": function.get("name"),
            "arguments": function.get("arguments"),
        }
