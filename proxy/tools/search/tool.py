"""`type: search`: a web search by a described provider.

arguments, filters -> SearchQuery -> Provider.request -> HTTP -> Provider.read -> hits -> text and sources
"""

from datetime import UTC, datetime
from functools import partial

import httpx
from msgspec.structs import replace

from proxy.config.model import SearchConfig
from proxy.loop.results import ToolOutput
from proxy.ports import Clock
from proxy.tools import browser
from proxy.tools.search.description import description_of
from proxy.tools.search.exchange import ask, refusal
from proxy.tools.search.hits import output_of
from proxy.tools.search.provider import Provider
from proxy.tools.search.query import PARAMETERS, query_of, repair
from proxy.tools.search.refusals import Refused
from proxy.tools.threads import DaemonThreads
from proxy.tools.tool import Tool
from proxy.tools.web.pages import PageCache
from proxy.wire.chat import Json
from proxy.wire.search import NO_FILTERS, SearchFilters, domain_rule

DESCRIPTION = (
    "Search the web. Returns titles, URLs, dates and texts of the best results. "
    "Use it for current events and for facts that you are not sure of."
)
# The limits for the text of a hit: ten snippets are a few kilobytes, and ten pages fit `limits.max_result_bytes`.
MOST_CHARACTERS = 1500
# Bytes of an answer that take some ten milliseconds to read; ten snippets are 10 KB.
_LARGE = 128 * 1024
_MOST_CHARACTERS = {"snippets": MOST_CHARACTERS, "page": 6000}


def search_tool(
    name: str, config: SearchConfig, client: httpx.AsyncClient, clock: Clock, pages: PageCache | None = None
) -> Tool:
    """The tool of an entry `type: search`."""
    most = config.max_characters_per_result or _MOST_CHARACTERS[config.content]
    block = tuple(filter(None, map(domain_rule, config.block_domains)))
    return search_tool_of(name, provider_of(config), client, clock, most_characters=most, block=block, pages=pages)


def search_tool_of(
    name: str,
    provider: Provider,
    client: httpx.AsyncClient,
    clock: Clock,
    *,
    description: str = DESCRIPTION,
    most_characters: int = MOST_CHARACTERS,
    block: tuple[str, ...] = (),
    pages: PageCache | None = None,
) -> Tool:
    """A tool that searches with a provider; it is also gpt-oss's `browser.search`.

    Args:
        name: the name in the configuration.
        provider: the provider.
        client: sends the requests.
        clock: for dates relative to today.
        description: the description for the model.
        most_characters: the limit for the text of a hit.
        block: domains, or paths below a domain, whose pages are never returned.
        pages: keeps the pages that were found, for the tools that read pages.
    """
    threads = DaemonThreads("toolproxy-search", most=2)  # more threads would only compete for the processor

    async def search(arguments: Json, filters: SearchFilters) -> ToolOutput:
        query = query_of(arguments, replace(filters, block=tuple(dict.fromkeys((*filters.block, *block)))))
        today = datetime.fromtimestamp(clock.time(), UTC).date()
        answer = await ask(client, provider.request(query, today))
        read = partial(provider.read, query, answer.status, answer.headers, answer.body, today)
        found = read() if len(answer.body) < _LARGE else await threads.run(read)
        if isinstance(found, Refused):
            raise refusal(found)
        if pages is not None:
            await pages.keep(found.hits)
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


def provider_of(config: SearchConfig) -> Provider:
    """The provider for an entry without faults."""
    return Provider(
        description_of(config.provider),
        api_key=config.api_key,
        base_url=config.base_url,
        options=config.options,
        page=config.content == "page",
    )
