"""OpenTelemetry's names for what a story holds, in one table: the GenAI conventions are still changing.

https://github.com/open-telemetry/semantic-conventions-genai. A test compares the names with those of the installed
package `opentelemetry-semantic-conventions`. What no convention has a name for begins with `toolproxy.`.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import orjson

from proxy.loop.chat import Json

REQUEST: Final[Mapping[str, str]] = {
    "method": "http.request.method",
    "path": "url.path",
    "status": "http.response.status_code",
    "error": "error.type",
    "model": "gen_ai.request.model",
    "request_id": "toolproxy.request_id",
    "client": "toolproxy.client",
    "turns": "toolproxy.turns",
    "tool_calls": "toolproxy.tool_calls",
    "stop": "toolproxy.stop",
    "rung": "toolproxy.rung",
    "first_byte": "toolproxy.first_byte_seconds",
}
"""A request's fields -> attributes of its SERVER span."""

CALL: Final[Mapping[str, str]] = {
    "upstream": "gen_ai.provider.name",
    "upstream_model": "gen_ai.request.model",
    "response_model": "gen_ai.response.model",
    "first": "gen_ai.response.time_to_first_chunk",
    "code": "error.type",
    "turn": "toolproxy.turn",
    "rung": "toolproxy.rung",
}
"""A turn's or relay's fields -> attributes of its CLIENT span."""

TOOL: Final[Mapping[str, str]] = {
    "tool": "gen_ai.tool.name",
    "call_id": "gen_ai.tool.call.id",
    "argument_bytes": "toolproxy.argument_bytes",
    "characters": "toolproxy.result_characters",
    "turn": "toolproxy.turn",
}
"""A tool call's fields -> attributes of its INTERNAL span."""

OPERATION: Final = "gen_ai.operation.name"
OPERATIONS: Final[Mapping[str, str]] = {"/embeddings": "embeddings", "/completions": "text_completion"}
"""What is handed through -> its operation; without a path it is a chat."""
CHAT: Final = "chat"
EXECUTE_TOOL: Final = "execute_tool"
TOOL_TYPE: Final = "gen_ai.tool.type"
EXTENSION: Final = "extension"  # run on this side, not by the client
ROUTE: Final = "http.route"
ERROR: Final = "error.type"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
REASONING_TOKENS: Final = "gen_ai.usage.reasoning.output_tokens"
CACHED_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
INPUT_MESSAGES: Final = "gen_ai.input.messages"
OUTPUT_MESSAGES: Final = "gen_ai.output.messages"
ARGUMENTS: Final = "gen_ai.tool.call.arguments"
RESULT: Final = "gen_ai.tool.call.result"


def usage(counted: Any) -> dict[str, int]:
    """An upstream's `usage` as attributes."""
    if not isinstance(counted, dict):
        return {}
    found = {
        INPUT_TOKENS: counted.get("prompt_tokens"),
        OUTPUT_TOKENS: counted.get("completion_tokens"),
        REASONING_TOKENS: (counted.get("completion_tokens_details") or {}).get("reasoning_tokens"),
        CACHED_TOKENS: (counted.get("prompt_tokens_details") or {}).get("cached_tokens"),
    }
    return {name: value for name, value in found.items() if isinstance(value, int)}


def messages(said: Iterable[Json], *, finish_reason: str | None = None) -> str:
    """Chat messages in the conventions' form, role and parts, as JSON."""
    extra = {"finish_reason": finish_reason} if finish_reason else {}
    written = [{"role": str(message.get("role")), "parts": list(_parts(message)), **extra} for message in said]
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
        yield {"type": "text", "content": part["text"]} if "text" in part else {"type": str(part.get("type"))}
    for call in message.get("tool_calls") or ():
        function = call.get("function") or {}
        yield {
            "type": "tool_call",
            "id": call.get("id"),
            "name": function.get("name"),
            "arguments": function.get("arguments"),
        }
