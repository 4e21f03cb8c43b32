"""The tokens of an answer, as the Messages API counts them."""

from collections.abc import Callable

from proxy.loop.actions import Respond
from proxy.loop.chat import Json
from proxy.loop.tally import token_count
from proxy.loop.tokens import tokens_of


def usage_of(answer: Respond, server_tool_use: Json | None, input_tokens: Callable[[], int]) -> Json:
    """The tokens of all turns, as this API counts them (cached ones apart), and the `cost` if there are prices.

    Args:
        answer: the end of the run.
        server_tool_use: the numbers of hosted calls; None: the client has not declared hosted tools.
        input_tokens: estimates the tokens of the request, for an upstream that does not count them.
    """
    usage = answer.tally.usage
    if usage is None:
        written = sum(tokens_of(turn.message) for turn in (*answer.earlier_turns, answer.turn))
        usage = {"prompt_tokens": _estimated_input(answer, input_tokens()), "completion_tokens": round(written)}
    cached = token_count(usage, "prompt_tokens_details", "cached_tokens") or 0
    counted: Json = {
        "input_tokens": max(0, (token_count(usage, "prompt_tokens") or 0) - cached),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": token_count(usage, "completion_tokens") or 0,
    }
    if thought := token_count(usage, "completion_tokens_details", "reasoning_tokens"):
        counted["output_tokens_details"] = {"thinking_tokens": thought}
    if server_tool_use is not None:
        counted["server_tool_use"] = server_tool_use
    if (cost := answer.tally.total_cost) is not None:
        counted["cost"] = cost
    return counted


def _estimated_input(answer: Respond, first: int) -> int:
    """The input tokens of all turns of a run: each reads the request (`first`) and what earlier turns have added."""
    turns = len(answer.earlier_turns) + 1
    added: list[float] = []  # tokens, by each turn except the last
    for message in answer.added:
        if message["role"] == "assistant" or not added:
            added.append(0.0)
        added[-1] += tokens_of(message)
    return round(turns * first + sum(size * (turns - 1 - at) for at, size in enumerate(added)))
