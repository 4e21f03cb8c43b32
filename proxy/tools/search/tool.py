"""A web search by a described provider, for every type of search.

arguments, filters -> SearchQuery -> Provider.request -> HTTP -> Provider.read -> hits -> HitReader -> text and sources

A call may have several queries, which are looked up at the same time.
"""

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime
from functools import partial

from proxy.config.model import only_key, with_single_keys
from proxy.config.rules import Entry
from proxy.loop.call_context import NO_CONTEXT, CallContext
from proxy.loop.results import ToolOutput
from proxy.tools import browser
from proxy.tools.keys import ToolKeys
from proxy.tools.search.exchange import ask, refusal
from proxy.tools.search.output import Lookup, look_up_all, output_of
from proxy.tools.search.provider import Provider, SearchAnswer
from proxy.tools.search.query import PARAMETERS, SearchQuery, query_of, repair
from proxy.tools.search.reading import NONE_READ, HitReader, reading_of
from proxy.tools.search.refusals import Refused
from proxy.tools.threads import DaemonThreads
from proxy.tools.tool import Tool
from proxy.tools.tool_type import Resources
from proxy.wire.chat import Json
from proxy.wire.search import queries_of

DESCRIPTION = (
    "Search the web. Returns titles, URLs, dates and texts of the best results. "
    "Use it for current events and for facts that you are not sure of."
)
_READS = (
    " The first pages are read for you: what fits the query stands under their URLs, with […] where text is left out."
)
MOST_CHARACTERS = 1500
"""The limit for the text of a hit; ten snippets are a few kilobytes."""
# Bytes of an answer that take some ten milliseconds to read; ten snippets are 10 KB.
_LARGE = 128 * 1024


def search_tool_of(
    name: str,
    entry: Entry,
    provider_of: Callable[[Entry], Provider],
    resources: Resources,
    *,
    description: str = DESCRIPTION,
    most_characters: int = MOST_CHARACTERS,
    block: tuple[str, ...] = (),
) -> Tool:
    """A tool that searches with a provider; it is also gpt-oss's `browser.search`."""
    slots = asyncio.Semaphore(entry.max_concurrent_calls) if entry.max_concurrent_calls else nullcontext()
    keys = ToolKeys(name, getattr(entry, "api_key", None), getattr(entry, "base_url", None), resources)
    providers = {
        only_key(getattr(one, "api_key", None)) or "": provider_of(one) for one in with_single_keys(entry).values()
    }
    provider_name = next(iter(providers.values())).name or name
    reader, pages = HitReader(name, resources), resources.pages
    threads = DaemonThreads("toolproxy-search", most=2)  # more threads would only compete for the processor

    async def look_up(query: SearchQuery, scope: str, key: str) -> SearchAnswer:
        """The provider's answer to a query with a key. Raises `ToolError`."""
        today = datetime.fromtimestamp(resources.clock.time(), UTC).date()
        provider = providers[key]
        async with slots:
            answer = await ask(resources.client, provider.request(query, today))
        read = partial(provider.read, query, answer.status, answer.headers, answer.body, today)
        found = read() if len(answer.body) < _LARGE else await threads.run(read)
        if isinstance(found, Refused):
            raise refusal(found, now=resources.clock.time())
        if kept := [hit for hit in found.hits if hit.is_page or hit.address]:
            await pages.keep(scope, kept)
        return found

    async def search(arguments: Json, call: CallContext) -> ToolOutput:
        if "queries" in arguments:
            queries = [query_of({**arguments, "query": text}, call.filters) for text in queries_of(arguments)[0]]
            lookups = await look_up_all(queries, lambda query: keys.use(partial(look_up, query, call.scope)))
        else:
            query = query_of(arguments, call.filters)
            found = await keys.use(partial(look_up, query, call.scope))
            lookups = [Lookup(query.text, found, found.hits)]
        read, reading = NONE_READ, call.filters.reading
        if reading is not None:
            read = await reader.read([(query, hits) for query, _, hits in lookups], call, reading)
        return output_of(lookups, read, provider=provider_name, most_characters=most_characters)

    own_reading = reading_of(getattr(entry, "read", None))
    return Tool(
        name=name,
        description=description + _READS if own_reading and own_reading.pages else description,
        parameters=PARAMETERS,
        block=block,
        reading=own_reading,
        run=lambda arguments: search(arguments, NO_CONTEXT),
        run_filtered=lambda arguments, filters: search(arguments, CallContext(filters=filters)),
        run_in_call=search,
        repair=repair,
        aliases=(browser.SEARCH,),
        searches=True,
        keys=keys.pool,
    )
