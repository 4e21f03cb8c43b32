"""What the spans of a record are called, and which attributes they have, by OpenTelemetry's conventions.

The GenAI conventions are still changing (https://github.com/open-telemetry/semantic-conventions-genai); a test compares
the names with those of the installed package `opentelemetry-semantic-conventions`. Attributes without a convention
begin with `toolproxy.`.
"""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final, TypeAlias

from msgspec import Struct

from proxy.loop.tally import token_count
from proxy.ports import Content
from proxy.telemetry.messages import messages
from proxy.telemetry.records import Fields, Step, short

Attributes: TypeAlias = dict[str, Any]
Shape: TypeAlias = tuple[object, ...]
"""The kind of a span, the outcome of a step, and those fields that have few values, in the order of their table. Spans
of equal shape have equal descriptions, so a description is encoded once."""

OTHER_ROUTE: Final = "other"
_ROUTES: Final = frozenset({
    "/chat", "/chat/completions", "/responses", "/debug", "/debug/usage", "/v1/audio/speech",
    "/v1/audio/transcriptions", "/v1/audio/translations", "/v1/batches", "/v1/chat/completions", "/v1/completions",
    "/v1/embeddings", "/v1/files", "/v1/images/edits", "/v1/images/generations", "/v1/messages",
    "/v1/messages/count_tokens", "/v1/models", "/v1/moderations", "/v1/rerank", "/v1/responses",
})  # fmt: skip
_ROUTES_WITH_ID: Final = ("/v1/responses/", "/responses/", "/v1/models/", "/debug/requests/")

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

_CALL_SHAPE: Final = (*CALL, "path", "finish_reason")

OPERATION: Final = "gen_ai.operation.name"
OPERATIONS: Final[Mapping[str, str]] = {"/embeddings": "embeddings", "/completions": "text_completion"}
"""Paths of relayed requests, and their operations; a relay without a path is a chat."""
CHAT: Final = "chat"
EXECUTE_TOOL: Final = "execute_tool"
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

_USAGE: Final = (
    (INPUT_TOKENS, "prompt_tokens", None), (OUTPUT_TOKENS, "completion_tokens", None),
    (REASONING_TOKENS, "completion_tokens_details", "reasoning_tokens"),
    (CACHED_TOKENS, "prompt_tokens_details", "cached_tokens"),
)  # fmt: skip
EVENTS_IN_ATTRIBUTES: Final = frozenset({"response.started"})
"""Events that a span does not repeat, for its attributes say the same."""


class SpanDescription(Struct, frozen=True):
    """The name of spans, whether they failed, and the attributes that they have in common."""

    name: str
    failed: bool
    attributes: Attributes


def request_shape(fields: Mapping[str, Any]) -> Shape:
    """The shape of a request's span, written out: a loop over the table takes twice as long."""
    get = fields.get
    return (
        "request", get("method"), get("path"), get("status"), get("error"), get("model"), get("client"), get("turns"),
        get("tool_calls"), get("stop"), get("rung"),
    )  # fmt: skip


def step_shape(step: Step) -> Shape:
    """The shape of a step's span."""
    kind, get = step.kind, step.fields.get
    if kind == "tool":
        return kind, step.outcome, get("tool"), get("turn")
    return (
        kind, step.outcome, get("upstream"), get("upstream_model"), get("response_model"), get("code"), get("turn"),
        get("rung"), get("path"), get("finish_reason"),
    )  # fmt: skip


def describe(shape: Shape) -> SpanDescription:
    """The description that all spans of a shape share."""
    match shape:
        case ("request", *values):
            return _request(dict(zip(REQUEST, values, strict=True)))
        case ("tool", outcome, *values):
            return _tool(dict(zip(TOOL, values, strict=True)), str(outcome))
        case (_, outcome, *values):
            return _call(dict(zip(_CALL_SHAPE, values, strict=True)), str(outcome))
    raise AssertionError(shape)


def _request(fields: Fields) -> SpanDescription:
    route, status = route_of(str(fields["path"])), fields["status"]
    failed = isinstance(status, int) and status >= HTTPStatus.INTERNAL_SERVER_ERROR
    return SpanDescription(f"{fields['method']} {route}", failed, {**_named(fields, REQUEST), ROUTE: route})


def _tool(fields: Fields, outcome: str) -> SpanDescription:
    attributes = {**_named(fields, TOOL), OPERATION: EXECUTE_TOOL, TOOL_TYPE: EXTENSION}
    failed = outcome != "completed"
    if failed:
        attributes[ERROR] = outcome
    return SpanDescription(f"{EXECUTE_TOOL} {fields['tool']}", failed, attributes)


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


def request_details(fields: Mapping[str, Any]) -> Attributes:
    """The attributes of a request's span that are no part of its shape."""
    details = {}
    if (request_id := fields.get("request_id")) is not None:
        details[REQUEST_ID] = request_id
    if (first_byte := fields.get("first_byte")) is not None:
        details[FIRST_BYTE] = first_byte
    return details


def step_details(step: Step) -> Attributes:
    """The attributes of a step's span that are no part of its shape."""
    return _tool_details(step.fields) if step.kind == "tool" else _call_details(step.fields)


def _call_details(fields: Fields) -> Attributes:
    details = usage(fields["usage"]) if "usage" in fields else {}
    if (first := fields.get("first")) is not None:
        details[FIRST_CHUNK] = first
    # Absent fields are looked for with `in`: `isinstance` takes several times as long to say no.
    if "messages" in fields and isinstance(content := fields["messages"], Content):
        details[INPUT_MESSAGES] = Content(messages(content.value)).text()
    if "message" in fields and isinstance(content := fields["message"], Content):
        details[OUTPUT_MESSAGES] = messages([content.value], finish_reason=str(fields.get("finish_reason")))
    return details


def _tool_details(fields: Fields) -> Attributes:
    details = {}
    if (size := fields.get("argument_bytes")) is not None:
        details[ARGUMENT_BYTES] = size
    if (size := fields.get("characters")) is not None:
        details[RESULT_CHARACTERS] = size
    if "call_id" in fields:
        details[CALL_ID] = short(str(fields["call_id"]))
    if "arguments" in fields and isinstance(content := fields["arguments"], Content):
        details[ARGUMENTS] = content.text()
    if "result" in fields and isinstance(content := fields["result"], Content):
        details[RESULT] = content.text()
    return details


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
    counts = {}
    for name, field, detail in _USAGE:
        if field in counted and (count := token_count(counted, field, detail)) is not None:
            counts[name] = count
    return counts


def route_of(path: str) -> str:
    """A path as one of the routes, or "other"."""
    if path in _ROUTES:
        return path
    return next((f"{prefix}{{id}}" for prefix in _ROUTES_WITH_ID if path.startswith(prefix)), OTHER_ROUTE)
