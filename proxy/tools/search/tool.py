"""`type: search`: a web search by a described provider.

arguments, filters -> SearchQuery -> Provider.request -> HTTP -> Provider.read -> hits -> text and sources
"""

from datetime import UTC, date, datetime
from functools import partial

import httpx
from msgspec.structs import replace

from proxy.config import SearchConfig
from proxy.http.connect import reason
from proxy.loop.chat import Json, ToolOutput
from proxy.loop.errors import NotUnderstood, ToolError, ToolUnavailable
from proxy.loop.search import NO_FILTERS, SearchFilters
from proxy.ports import Clock
from proxy.tools import browser
from proxy.tools.search.description import description_of
from proxy.tools.search.hits import output_of
from proxy.tools.search.provider import Provider, Refused, SearchRequest
from proxy.tools.search.query import PARAMETERS, query_of, repair
from proxy.tools.tool import Tool

DESCRIPTION = (
    "Search the web. Returns titles, URLs, dates and texts of the best results. "
    "Use it for current events and for facts that you are not sure of."
)
UNAVAILABLE = "Web search is not available now ({why}). Answer from what you know and say that you could not search."
BUSY = "The search service is busy. One more try may succeed; otherwise answer without it."

# Ten pages of text at ten thousand characters are a tenth of it.
_MAX_ANSWER_BYTES = 4 * 1024 * 1024
# Characters of one hit's text: ten snippets are a few kilobytes, and ten pages fit into `limits.max_result_bytes`.
_MOST_CHARACTERS = {"snippets": 1500, "page": 6000}
_WORDS = {"key": "its key was refused", "quota": "its credit is used up", "down": "the search service does not work"}


def search_tool(name: str, config: SearchConfig, client: httpx.AsyncClient, clock: Clock) -> Tool:
    """A search by that name; gpt-oss's `browser.search` too."""
    provider = provider_of(config)
    most = config.max_characters_per_result or _MOST_CHARACTERS[config.content]

    async def search(arguments: Json, filters: SearchFilters) -> ToolOutput:
        query = query_of(arguments, replace(filters, block=(*filters.block, *config.block_domains)))
        today = _today(clock)
        status, headers, body = await send(client, provider.request(query, today))
        found = provider.read(query, status, headers, body, today)
        if isinstance(found, Refused):
            raise refusal(found)
        return output_of(query.text, found.hits, answer=found.answer, most_characters=most)

    return Tool(
        name=name,
        description=DESCRIPTION,
        parameters=PARAMETERS,
        run=partial(search, filters=NO_FILTERS),
        run_filtered=search,
        repair=repair,
        aliases=(browser.SEARCH,),
        searches=True,
    )


def provider_of(config: SearchConfig) -> Provider:
    """The provider of an entry without faults."""
    return Provider(
        description_of(config.provider),
        api_key=config.api_key,
        base_url=config.base_url,
        options=config.options,
        page=config.content == "page",
    )


async def send(client: httpx.AsyncClient, request: SearchRequest) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of a provider's answer.

    Raises:
        ToolUnavailable: it could not be reached, broke off, or answered with more than any search does.
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
    return response.status_code, dict(response.headers), bytes(body)


def refusal(refused: Refused) -> ToolError:
    """A provider's refusal for the model and for the log; the provider's own words may hold a key, and stay here."""
    why = f"{refused.means}, HTTP {refused.status}" + (f": {refused.hint}" if refused.hint else "")
    match refused.means:
        case "input":
            return NotUnderstood("The search service did not understand the request; word it differently.", why=why)
        case "busy":
            return ToolUnavailable(BUSY, why=why, cause="busy", wait=refused.wait)
        case _:
            told = UNAVAILABLE.format(why=_WORDS[refused.means])
            return ToolUnavailable(told, why=why, cause=refused.means, wait=refused.wait)


def _today(clock: Clock) -> date:
    return datetime.fromtimestamp(clock.time(), UTC).date()
