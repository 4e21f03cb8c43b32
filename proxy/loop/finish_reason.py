"""The finish_reason of an answer whose upstream sent none."""

from typing import Any

from proxy.loop.chat import Json, is_json, text_of

_TOKEN_LIMITS = ("max_completion_tokens", "max_tokens")


def inferred_reason(message: Json, request: Json, usage: Any) -> str | None:
    """The finish_reason of an answer that came to an orderly end without one.

    xAI behind OpenRouter (when `max_tokens` was reached), Snowflake and Nebius leave it out, or send `null` or `""`.

    Args:
        message: the assistant message.
        request: the request that it answers, for its `max_tokens`.
        usage: the upstream's count of tokens, if it sent one.

    Returns:
        `tool_calls` if all calls are complete, else `length` if `max_tokens` was reached, else `stop`; None: nothing in
        the answer is complete.
    """
    calls = message.get("tool_calls") or ()
    if calls and all(map(_is_whole, calls)):
        return "tool_calls"
    function = message.get("function_call")
    if isinstance(function, dict) and function.get("name"):
        return "function_call"
    written = usage.get("completion_tokens") if isinstance(usage, dict) else None
    limits = [limit for name in _TOKEN_LIMITS if isinstance(limit := request.get(name), int)]
    if isinstance(written, int) and limits and written >= min(limits):
        return "length"
    return "stop" if not calls and (text_of(message) or message.get("refusal")) else None


def _is_whole(call: Json) -> bool:
    """Whether the arguments of a call can be complete: they are empty, or JSON."""
    function = call.get("function")
    arguments = function.get("arguments") if isinstance(function, dict) else None
    return not isinstance(arguments, str) or not arguments.strip() or is_json(arguments)
