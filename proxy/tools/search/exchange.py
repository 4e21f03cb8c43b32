"""Sends a request to a search service, and describes its failures for the model and the log."""

from collections.abc import Mapping

import httpx

from proxy.http.connect import reason
from proxy.loop.results import NotUnderstood, ToolError, ToolUnavailable
from proxy.tools.search.provider import SearchRequest
from proxy.tools.search.refusals import Refused

UNAVAILABLE = "Web search is not available now ({why}). Answer from what you know and say that you could not search."
BUSY = "The search service is busy. One more try may succeed; otherwise answer without it."

# Ten times the size of ten pages of text with ten thousand characters each.
_MAX_ANSWER_BYTES = 4 * 1024 * 1024
_WORDS = {
    "key": "its key was refused",
    "quota": "its credit is used up",
    "busy": "it takes no more requests now",
    "input": "it did not understand the request",
    "down": "the search service does not work",
}


async def send(client: httpx.AsyncClient, request: SearchRequest) -> tuple[int, Mapping[str, str], bytes]:
    """Status, headers (case-insensitive) and body of a provider's answer.

    Raises:
        ToolUnavailable: the provider could not be reached, broke off, or sent more than any search returns.
    """
    headers = {"accept-encoding": "identity", **request.headers}
    if request.body is not None:
        headers["content-type"] = "application/json"
    body = bytearray()
    try:
        async with client.stream(request.method, request.url, content=request.body, headers=headers) as response:
            async for data in response.aiter_bytes():
                body += data
                if len(body) > _MAX_ANSWER_BYTES:
                    raise ToolUnavailable(UNAVAILABLE.format(why="its answer was too large"), why="answer too large")
    except httpx.HTTPError as exc:
        told = UNAVAILABLE.format(why="the search service could not be reached")
        raise ToolUnavailable(told, why=reason(exc)) from exc
    return response.status_code, response.headers, bytes(body)


def refusal(refused: Refused) -> ToolError:
    """The error for a provider's refusal; only the log gets the provider's own words."""
    words = _WORDS[refused.means]
    said = f": {refused.said}" if refused.said else ""
    why = f"{words} (HTTP {refused.status}{said})" + (f": {refused.hint}" if refused.hint else "")
    match refused.means:
        case "input":
            return NotUnderstood("The search service did not understand the request; word it differently.", why=why)
        case "busy":
            return ToolUnavailable(BUSY, why=why, cause="busy", wait=refused.wait)
        case _:
            told = UNAVAILABLE.format(why=words)
            return ToolUnavailable(told, why=why, cause=refused.means, wait=refused.wait)
