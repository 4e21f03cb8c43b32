"""A web search by a described provider, for every type of search.

arguments, filters -> SearchQuery -> Provider.request -> HTTP -> Provider.read -> hits -> text and sources
"""

from datetime import UTC, datetime
from functools import partial

from msgspec.structs import replace

from proxy.loop.results import ToolOutput
from proxy.tools import browser
from proxy.tools.kind import Resources
from proxy.tools.search.exchange import ask, refusal
from proxy.tools.search.hits import output_of
from proxy.tools.search.provider import Provider
from proxy.tools.search.query import PARAMETERS, query_of, repair
from proxy.tools.search.refusals import Refused
from proxy.tools.threads import DaemonThreads
from proxy.tools.tool import Tool
from proxy.wire.chat import Json
from proxy.wire.search import NO_FILTERS, SearchFilters

DESCRIPTION = (
    "Search the web. Returns titles, URLs, dates and texts of the best results. "
    "Use it for current events and for facts that you are not sure of."
)
MOST_CHARACTERS = 1500
"""The limit for the text of a hit; ten snippets are a few kilobytes."""
# Bytes of an answer that take some ten milliseconds to read; ten snippets are 10 KB.
_LARGE = 128 * 1024


def search_tool_of(
    name: str,
    provider: Provider,
    resources: Resources,
    *,
    description: str = DESCRIPTION,
    most_characters: int = MOST_CHARACTERS,
    block: tuple[str, ...] = (),
) -> Tool:
    """A tool that searches with a provider; it is also gpt-oss's `browser.search`.

    Args:
        name: the name in the configuration.
        provider: the provider.
        resources: the client that sends the requests, the time, and the cache that keeps the pages that were found.
        description: the description for the model.
        most_characters: the limit for the text of a hit.
        block: domains, or paths below a domain, whose pages are never returned.
    """
    threads = DaemonThreads("toolproxy-search", most=2)  # more threads would only compete for the processor

    async def search(arguments: Json, filters: SearchFilters) -> ToolOutput:
        query = query_of(arguments, replace(filters, block=tuple(dict.fromkeys((*filters.block, *block)))))
        today = datetime.fromtimestamp(resources.clock.time(), UTC).date()
        answer = await ask(resources.client, provider.request(query, today))
        read = partial(provider.read, query, answer.status, answer.headers, answer.body, today)
        found = read() if len(answer.body) < _LARGE else await threads.run(read)
        if isinstance(found, Refused):
            raise refusal(found)
        await resources.pages.keep(found.hits)
        direct = {"answer": found.answer, "answer_url": found.answer_url}
        output = output_of(query.text, found.hits, **direct, most_characters=most_characters)
        return replace(output, note=found.note) if found.note else output

    return Tool(
        name=name,
        description=description,
        parameters=PARAMETERS,
        block=block,
        run=partial(search, filters=NO_FILTERS),
        run_filtered=search,
        repair=repair,
        aliases=(browser.SEARCH,),
        searches=True,
    )
