"""Chat messages in the form that OpenTelemetry's GenAI conventions have for them."""

from collections.abc import Iterable

import orjson

from proxy.loop.chat import Json


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
