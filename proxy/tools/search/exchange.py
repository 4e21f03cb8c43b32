"""Sends a request to a search service, and describes its failures for the model and the log."""

import httpx

from proxy.http.client import ServiceClient
from proxy.http.connect import reason
from proxy.loop.results import NotUnderstood, ToolError, ToolUnavailable
from proxy.tools.exchange import ServiceAnswer, ServiceRequest, blame_of, send
from proxy.tools.search.refusals import Refused

UNAVAILABLE = "Web search is not available now ({why}). Answer from what you know and say that you could not search."
BUSY = "The search service is busy. One more try may succeed; otherwise answer without it."

# Ten times the size of ten pages of text with ten thousand characters each.
_MOST_ANSWER_BYTES = 4 * 1024 * 1024
_FIRST_ERROR = 400  # the lowest HTTP status of an error
_WORDS = {
    "key": "its key was refused",
    "quota": "its credit is used up",
    "busy": "it takes no more requests now",
    "input": "it did not understand the request",
    "down": "the search service does not work",
}


async def ask(client: ServiceClient, request: ServiceRequest) -> ServiceAnswer:
    """The answer of a search service, whole unless it is an error.

    Raises:
        ToolUnavailable: the service could not be reached, broke off, or sent more than any search returns.
    """
    try:
        answer = await send(client, request, most=_MOST_ANSWER_BYTES)
    except httpx.DecodingError as exc:
        raise ToolUnavailable(UNAVAILABLE.format(why="its answer could not be read"), why=str(exc)) from exc
    except httpx.HTTPError as exc:
        message = UNAVAILABLE.format(why="the search service could not be reached")
        raise ToolUnavailable(message, why=reason(exc), blame=blame_of(exc)) from exc
    if not answer.whole and answer.status < _FIRST_ERROR:
        raise ToolUnavailable(UNAVAILABLE.format(why="its answer was too large"), why="answer too large")
    return answer


def refusal(refused: Refused, *, now: float) -> ToolError:
    """The error for a provider's refusal; only the log gets the provider's own words. `now`: seconds since 1970."""
    wait = refused.wait
    if wait is None and refused.reset is not None:
        wait = max(1.0, refused.reset.seconds_from(now))
    words = _WORDS[refused.means]
    quoted = f": {refused.words}" if refused.words else ""
    why = f"{words} (HTTP {refused.status}{quoted})" + (f": {refused.hint}" if refused.hint else "")
    match refused.means:
        case "input":
            return NotUnderstood("The search service did not understand the request; word it differently.", why=why)
        case "busy":
            return ToolUnavailable(BUSY, why=why, cause="busy", wait=wait)
        case _:
            message = UNAVAILABLE.format(why=words)
            return ToolUnavailable(message, why=why, cause=refused.means, wait=wait)
