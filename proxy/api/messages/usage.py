"""The tokens of an answer, as the Messages API counts them."""

from collections.abc import Callable

from proxy.loop.actions import Respond
from proxy.loop.chat import Json
from proxy.loop.tally import token_count
from proxy.loop.tokens import tokens_of


def usage_of(answer: Respond, server_tool_use: Json | None, input_tokens: Callable[[], int]) -> Json:
    """The tokens of all turns, as this API counts them: cached ones apart; and `cost` where prices are configured.

    Args:
        answer: the run's end.
        server_tool_use: the calls of server tools that the client has declared; None: it has declared none.
        input_tokens: gives our own estimate of the request, for an upstream that does not count.
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
    """The tokens that all turns of a run have read: `first` the request's, and then what each turn has added to it."""
    turns = len(answer.earlier_turns) + 1
    added: list[float] = []  # by each turn but the last
    for message in answer.added:
        if message["role"] == "assistant" or not added:
            added.append(0.0)
        added[-1] += tokens_of(message)
    return round(turns * first + sum(size * (turns - 1 - at) for at, size in enumerate(added)))
