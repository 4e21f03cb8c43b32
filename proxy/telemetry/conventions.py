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
from proxy.telemetry.records import RequestRecord, Step, short
from proxy.wire.chat import Json
from proxy.wire.usage import token_count

Attributes: TypeAlias = dict[str, Any]

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
    "request_id": "toolproxy.request_id",
    "first_byte": "toolproxy.first_byte_seconds",
}
"""Fields of a request, and the attributes of its SERVER span."""
CALL: Final[Mapping[str, str]] = {
    "upstream": "gen_ai.provider.name",
    "upstream_model": "gen_ai.request.model",
    "response_model": "gen_ai.response.model",
    "code": "error.type",
    "turn": "toolproxy.turn",
    "rung": "toolproxy.rung",
    "first": "gen_ai.response.time_to_first_chunk",
}
"""Fields of a turn or relay, and the attributes of its CLIENT span."""

TOOL: Final[Mapping[str, str]] = {
    "tool": "gen_ai.tool.name",
    "turn": "toolproxy.turn",
    "call_id": "gen_ai.tool.call.id",
    "argument_bytes": "toolproxy.argument_bytes",
    "characters": "toolproxy.result_characters",
}
"""Fields of a tool call, and the attributes of its INTERNAL span."""

PAGE: Final[Mapping[str, str]] = {
    "tool": "gen_ai.tool.name",
    "page": "toolproxy.page",
    "characters": "toolproxy.result_characters",
}
"""Fields of a page that a search reads, and the attributes of its INTERNAL span."""

OPERATION: Final = "gen_ai.operation.name"
OPERATIONS: Final[Mapping[str, str]] = {"/embeddings": "embeddings", "/completions": "text_completion"}
"""Paths of relayed requests, and their operations; a relay without a path is a chat."""
CHAT: Final = "chat"
EXECUTE_TOOL: Final = "execute_tool"
READ_PAGE: Final = "read page"
TOOL_TYPE: Final = "gen_ai.tool.type"
EXTENSION: Final = "extension"  # the type of a tool that is run by the proxy, not by the client
ROUTE: Final = "http.route"
ERROR: Final = "error.type"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
INPUT_MESSAGES: Final = "gen_ai.input.messages"
OUTPUT_MESSAGES: Final = "gen_ai.output.messages"

USAGE: Final[Mapping[tuple[str, ...], str]] = {
    ("prompt_tokens",): "gen_ai.usage.input_tokens",
    ("completion_tokens",): "gen_ai.usage.output_tokens",
    ("completion_tokens_details", "reasoning_tokens"): "gen_ai.usage.reasoning.output_tokens",
    ("prompt_tokens_details", "cached_tokens"): "gen_ai.usage.cache_read.input_tokens",
}
"""Places of counts in an upstream's `usage`, and the attributes of its CLIENT span."""
CONTENTS: Final[Mapping[str, str]] = {
    "arguments": "gen_ai.tool.call.arguments",
    "result": "gen_ai.tool.call.result",
    "url": "url.full",
}
"""Fields of a tool call or a page that have content, and the attributes of its span."""
EVENTS_IN_ATTRIBUTES: Final = frozenset({"response.started"})
"""Events that a span does not repeat, for its attributes say the same."""


class SpanDescription(Struct, frozen=True):
    """The name of a span, whether it failed, and its attributes."""

    name: str
    failed: bool
    attributes: Attributes


def describe_request(record: RequestRecord) -> SpanDescription:
    """The span of a request."""
    fields = record.fields
    route, status = route_of(str(fields.get("path"))), fields.get("status")
    failed = isinstance(status, int) and status >= HTTPStatus.INTERNAL_SERVER_ERROR
    return SpanDescription(f"{fields.get('method')} {route}", failed, {**_named(fields, REQUEST), ROUTE: route})


def describe_step(step: Step) -> SpanDescription:
    """The span of a turn, a relay, a tool call or a page."""
    match step.kind:
        case "tool":
            name = f"{EXECUTE_TOOL} {step.fields.get('tool')}"
            return _internal(step, name, TOOL, {OPERATION: EXECUTE_TOOL, TOOL_TYPE: EXTENSION})
        case "page":
            return _internal(step, READ_PAGE, PAGE, {})
    return _call(step)


def _internal(step: Step, name: str, table: Mapping[str, str], attributes: Attributes) -> SpanDescription:
    """The span of a tool call, or of a page that a search reads."""
    attributes |= _named(step.fields, table)
    for field, attribute in CONTENTS.items():
        if isinstance(content := step.fields.get(field), Content):
            attributes[attribute] = content.text()
    if failed := step.outcome != "completed":
        attributes[ERROR] = step.outcome
    return SpanDescription(name, failed, attributes)


def _call(step: Step) -> SpanDescription:
    """The span of a turn or a relay."""
    fields = step.fields
    attributes = {**_named(fields, CALL), **usage(fields.get("usage"))}
    if step.outcome == "abandoned":
        attributes[ERROR] = step.outcome
    if reason := fields.get("finish_reason"):
        attributes[FINISH_REASONS] = (str(reason),)
    if isinstance(content := fields.get("messages"), Content):
        attributes[INPUT_MESSAGES] = Content(messages(content.value)).text()
    if isinstance(content := fields.get("message"), Content):
        attributes[OUTPUT_MESSAGES] = messages([content.value], finish_reason=str(reason))
    path = fields.get("path")
    operation = CHAT if path is None else OPERATIONS.get(str(path))
    name = f"relay {fields.get('upstream')}"
    if operation is not None:
        name, attributes[OPERATION] = f"{operation} {fields.get('upstream_model')}", operation
    return SpanDescription(name, step.outcome != "completed", attributes)


def _named(fields: Mapping[str, Any], table: Mapping[str, str]) -> Attributes:
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
    counts = {name: token_count(counted, *place) for place, name in USAGE.items()}
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
