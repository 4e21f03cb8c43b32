"""`type: serper`: Google's results from serper.dev: the web, and by `endpoint` news, scholar, images, places, shopping.

`POST {base_url}/{endpoint}` with `X-API-KEY`.
"""

import re
from collections.abc import Mapping
from typing import Any

import httpx
import orjson

from proxy.config import SerperConfig
from proxy.http.connect import reason
from proxy.loop.chat import Json, ToolOutput
from proxy.loop.errors import ToolError, ToolUnavailable
from proxy.tools import browser
from proxy.tools.search.results import as_text, sources_in
from proxy.tools.tool import Tool

DESCRIPTIONS = {
    "search": "Search the web with Google. Returns titles, URLs, snippets and dates of the best results. "
    "Use it for current events and for facts that you are not sure of.",
    "news": "Search the news with Google. Returns headlines, URLs, sources and dates.",
    "scholar": "Search scientific papers with Google Scholar. Returns titles, URLs and how often each is cited.",
    "images": "Search pictures with Google. Returns titles, the URLs of the pictures and of the pages that show them.",
    "places": "Search places with Google Maps: shops, restaurants, offices. Returns addresses, ratings and websites.",
    "shopping": "Search products with Google Shopping. Returns shops, prices and URLs.",
}
DEFAULT_RESULTS = 5
MOST_RESULTS = 10  # more than ten cost two credits, and Google has capped a page there since September 2025
PARAMETERS: Json = {
    "type": "object",
    "properties": {
        "query": {"type": "string", "minLength": 1, "description": "what to search for"},
        "num_results": {
            "type": "integer",
            "minimum": 1,
            "maximum": MOST_RESULTS,
            "description": f"how many results; {DEFAULT_RESULTS} if left out",
        },
        "gl": {"type": "string", "description": "country of the search, two letters, e.g. ca"},
        "hl": {"type": "string", "description": "language of the results, e.g. en"},
        "tbs": {"type": "string", "description": "age: qdr:h, qdr:d, qdr:w, qdr:m or qdr:y (past hour ... year)"},
    },
    "required": ["query"],
}

# What models and apps write instead: `topn` is gpt-oss's own browser, `numResults` the AI SDK's habit.
_NAMES = {"q": "query", **dict.fromkeys(("numResults", "num", "topn", "count"), "num_results")}
_DIGITS = re.compile(r"[0-9]{1,4}")
# An answer has at most ten results of a few hundred bytes each; the scrape of a whole page is another endpoint.
_MAX_ANSWER_BYTES = 4 * 1024 * 1024

UNAVAILABLE = "Web search is not available now ({why}). Answer from what you know and say that you could not search."


def serper_tool(name: str, config: SerperConfig, client: httpx.AsyncClient) -> Tool:
    """A search by that name; a search of the web is gpt-oss's `browser.search` too."""
    url = f"{config.base_url.rstrip('/')}/{config.endpoint}"

    async def run(arguments: Json) -> ToolOutput:
        payload = {"q": arguments["query"], "num": arguments.get("num_results", DEFAULT_RESULTS)}
        for key in ("gl", "hl", "tbs"):
            if arguments.get(key):
                payload[key] = arguments[key]
        answer = await post(client, url, config.api_key, payload)
        return ToolOutput(as_text(arguments["query"], answer, most=payload["num"]), sources_in(answer))

    return Tool(
        name=name,
        description=DESCRIPTIONS[config.endpoint],
        parameters=PARAMETERS,
        run=run,
        repair=repair,
        aliases=(browser.SEARCH,) if config.endpoint == "search" else (),
        searches=True,
    )


def repair(arguments: Json) -> Json:
    """The same request in the schema's words: one name for the count, as a number, within its range."""
    repaired: Json = {}
    for key, value in arguments.items():
        if value is None:
            continue
        if key in _NAMES:
            repaired.setdefault(_NAMES[key], value)
        else:
            repaired[key] = value
    count = repaired.get("num_results")
    if isinstance(count, str) and _DIGITS.fullmatch(count.strip()):
        count = int(count)
    if isinstance(count, float) and count.is_integer():
        count = int(count)
    if isinstance(count, int) and not isinstance(count, bool):
        repaired["num_results"] = min(max(count, 1), MOST_RESULTS)
    return repaired


async def post(client: httpx.AsyncClient, url: str, api_key: str, payload: Json) -> Json:
    """The JSON object that the service answers with. Raises `ToolError`."""
    headers = {"X-API-KEY": api_key, "content-type": "application/json", "accept-encoding": "identity"}
    status, body = await read_bounded(client, url, headers, orjson.dumps(payload))
    good = httpx.codes.is_success(status)
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError as exc:
        if good:
            raise unavailable("the search service answered with something else") from exc
        answer = {}
    if not good:
        raise _error(status, answer)
    return answer if isinstance(answer, dict) else {}


async def read_bounded(
    client: httpx.AsyncClient, url: str, headers: Mapping[str, str], content: bytes
) -> tuple[int, bytes]:
    """Status and body of a search service's answer to a POST.

    Raises:
        ToolError: it could not be reached, or answered with more than any search does.
    """
    body = bytearray()
    try:
        async with client.stream("POST", url, content=content, headers=headers) as response:
            async for data in response.aiter_bytes():
                body += data
                if len(body) > _MAX_ANSWER_BYTES:
                    raise unavailable("its answer was too large")
    except httpx.HTTPError as exc:
        message = UNAVAILABLE.format(why="the search service could not be reached")
        raise ToolUnavailable(message, why=reason(exc)) from exc
    return response.status_code, bytes(body)


def _error(status: int, answer: Any) -> ToolError:
    """Serper's errors are flat, `{"message", "statusCode"}`; a wrong key is 403, not 401."""
    message = str(answer.get("message") or "") if isinstance(answer, dict) else ""
    if status in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
        return unavailable("its key was refused")
    if "credit" in message.lower():
        return unavailable("its credits are used up")
    if status == httpx.codes.TOO_MANY_REQUESTS:
        return ToolUnavailable("The search service is busy. One more try may succeed; otherwise answer without it.")
    if status == httpx.codes.BAD_REQUEST:
        return ToolError(f"The search service did not understand the request: {message or 'no reason given'}")
    return unavailable(f"HTTP {status}", kind=ToolUnavailable if httpx.codes.is_server_error(status) else ToolError)


def unavailable(why: str, *, kind: type[ToolError] = ToolError) -> ToolError:
    """The error of a search that cannot be made, for the model and for the log."""
    return kind(UNAVAILABLE.format(why=why), why=why)
