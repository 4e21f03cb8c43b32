"""The client of a case: a request in words that no surface owns, written for each, and what comes after an answer."""

from typing import Any, TypeAlias

from proxy.cases.answers import Answer, expect

PATHS = {"chat": "/v1/chat/completions", "relay": "/v1/chat/completions", "responses": "/v1/responses",
    "responses-id": "/v1/responses", "messages": "/v1/messages", "messages-thinking": "/v1/messages"}  # fmt: skip
PICTURE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
PARAMETERS = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}
QUESTION = "What is it?"

Request: TypeAlias = dict[str, Any]
"""A request: `path`, `method`, `headers` and `body`, or `raw` or `base64` in the place of a body."""


def first(ask: dict[str, Any], surface: str, *, stream: bool) -> Request:
    """The request that opens a conversation."""
    headers = {**ask.get("headers", {})}
    tools = ask.get("server_tools", "none" if surface == "relay" else None)
    if tools is not None:
        headers["x-server-tools"] = tools
    said = ask.get("messages") or [{"role": "user", "text": ask.get("text", QUESTION) * ask.get("times", 1)}]
    messages = [{"role": one["role"], "content": _content(one, surface)} for one in said]
    body: dict[str, Any] = {"model": ask.get("model", "m")}
    body[_history_field(surface)] = messages
    if surface.startswith("messages"):
        headers["anthropic-version"] = "2023-06-01"
        body["max_tokens"] = 1000
    offered = [_function(one, surface) for one in ask.get("functions", ())]
    if ask.get("search"):
        hosted = {"type": "web_search_20250305", "name": "web_search"}
        offered = [hosted if surface.startswith("messages") else {"type": "web_search"}, *offered]
    if offered:
        body["tools"] = offered
    if surface == "messages-thinking":
        body["thinking"] = {"type": "enabled", "budget_tokens": 2000}
    body |= ask.get("body", {}) | ({"stream": True} if stream else {})
    return {"path": PATHS[surface], "method": "POST", "headers": headers, "body": body}


def again(before: Request, *, stream: bool) -> Request:
    """A request once more, as a stream or not."""
    if "body" not in before:
        return before
    body = {key: value for key, value in before["body"].items() if key != "stream"}
    return {**before, "body": body | ({"stream": True} if stream else {})}


def later(before: Request, answer: Answer, ask: dict[str, Any], surface: str) -> Request:
    """The request after an answer, which stands in the history as it came: results for its calls, or a question."""
    results = ask.get("results", ())
    ids = [call["id"] for call in answer.calls]
    expect(len(results) == len(ids), f"the case has {len(results)} results for {len(ids)} calls: {answer.calls}")
    answered = [*zip(ids, results, strict=True)]
    said = [{"role": "user", "content": ask["text"]}] if "text" in ask else []
    more: Request = {}
    if surface.startswith("responses"):
        new = [*({"type": "function_call_output", "call_id": one, "output": text} for one, text in answered), *said]
        more = {"previous_response_id": answer.response_id} if surface == "responses-id" else {}
    elif surface.startswith("messages"):
        content = [{"type": "tool_result", "tool_use_id": one, "content": text} for one, text in answered]
        new = [{"role": "user", "content": [*content, *({"type": "text", "text": one["content"]} for one in said)]}]
    else:
        new = [*({"role": "tool", "tool_call_id": one, "content": text} for one, text in answered), *said]
    field, body = _history_field(surface), before["body"]
    kept = [] if more else [*body[field], *answer.history]
    return {**before, "body": {**body, **more, field: [*kept, *new]}}


def _history_field(surface: str) -> str:
    return "input" if surface.startswith("responses") else "messages"


def _content(said: dict[str, Any], surface: str) -> Any:
    """The text of a message, and its picture before the surface's own eyes."""
    if "picture" not in said:
        return said["text"]
    url = "https://p.example/cat.png" if said["picture"] == "url" else f"data:image/png;base64,{PICTURE}"
    if surface.startswith("responses"):
        return [{"type": "input_text", "text": said["text"]}, {"type": "input_image", "image_url": url}]
    if surface.startswith("messages"):
        source = {"type": "url", "url": url}
        if said["picture"] == "data":
            source = {"type": "base64", "media_type": "image/png", "data": PICTURE}
        return [{"type": "text", "text": said["text"]}, {"type": "image", "source": source}]
    return [{"type": "text", "text": said["text"]}, {"type": "image_url", "image_url": {"url": url}}]


def _function(name: str, surface: str) -> dict[str, Any]:
    if surface.startswith("messages"):
        return {"name": name, "description": name, "input_schema": PARAMETERS}
    function = {"name": name, "description": name, "parameters": PARAMETERS}
    is_flat = surface.startswith("responses")
    return {"type": "function", **function} if is_flat else {"type": "function", "function": function}
