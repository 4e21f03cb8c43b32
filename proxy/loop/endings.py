"""Why a model stopped, where its server does not say.

Some servers leave `finish_reason` out, or send `null` or `""`, in answers that are whole all the same: xAI behind
OpenRouter where `max_tokens` was reached, Snowflake, Nebius.
"""

from typing import Any

import orjson

from proxy.loop.chat import Json, text_of

_TOKEN_LIMITS = ("max_completion_tokens", "max_tokens")


def inferred_reason(message: Json, request: Json, usage: Any) -> str | None:
    """The finish_reason of an answer that came to an orderly end without one.

    Args:
        message: the assistant message.
        request: what was asked, for its `max_tokens`.
        usage: the upstream's count of tokens, if it sent one.

    Returns:
        `tool_calls` where whole calls were made, else `length` where `max_tokens` was reached, else `stop`; None where
        the message holds nothing whole, so that nothing says that the answer is complete.
    """
    calls = message.get("tool_calls") or ()
    if calls and all(map(_is_whole, calls)):
        return "tool_calls"
    function = message.get("function_call")
    if isinstance(function, dict) and function.get("name"):
        return "function_call"
    if _limit_reached(request, usage):
        return "length"
    return "stop" if not calls and (text_of(message) or message.get("refusal")) else None


def _limit_reached(request: Json, usage: Any) -> bool:
    written = usage.get("completion_tokens") if isinstance(usage, dict) else None
    limits = [limit for name in _TOKEN_LIMITS if isinstance(limit := request.get(name), int)]
    return isinstance(written, int) and bool(limits) and written >= min(limits)


def _is_whole(call: Json) -> bool:
    """Whether the arguments of a call can be its whole arguments: none at all, or JSON."""
    function = call.get("function")
    arguments = function.get("arguments") if isinstance(function, dict) else None
    if not isinstance(arguments, str) or not arguments.strip():
        return True
    try:
        orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return False
    return True
