"""The tokens of an answer, as the Messages API counts them."""

from proxy.loop.actions import Respond
from proxy.wire.chat import Json
from proxy.wire.usage import token_count


def usage_of(answer: Respond, server_tool_use: Json | None) -> Json:
    """The tokens of all turns, as this API counts them (cached ones apart), and the `cost` if there are prices.

    Args:
        answer: the end of the run.
        server_tool_use: the numbers of hosted calls; None: the client has not declared hosted tools.
    """
    usage = answer.tally.usage
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
