"""A web search by a described provider, for every type of search.

arguments, filters -> SearchQuery -> Provider.request -> HTTP -> Provider.read -> hits -> HitReader -> text and sources

A call may have several queries, which are looked up at the same time.
"""

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime
from functools import partial
from typing import Any

from msgspec.structs import replace

from proxy.config.model import only_key, with_single_keys
from proxy.loop.call_context import NO_CONTEXT, CallContext
from proxy.loop.results import ToolOutput
from proxy.tools import browser
from proxy.tools.keys import ToolKeys
from proxy.tools.search.exchange import ask, refusal
from proxy.tools.search.provider import Provider, SearchAnswer
from proxy.tools.search.query import PARAMETERS, SearchQuery, query_of, repair, several_of
from proxy.tools.search.reading import NONE_READ, HitReader
from proxy.tools.search.refusals import Refused
from proxy.tools.search.several import output_of_found, search_all
from proxy.tools.threads import DaemonThreads
from proxy.tools.tool import Tool
from proxy.tools.tool_type import Entry, Resources
from proxy.wire.chat import Json
from proxy.wire.search import Reading

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
    reading: Reading | None = None,
) -> Tool:
    """A tool that searches with a provider; it is also gpt-oss's `browser.search`."""
    slots = asyncio.Semaphore(entry.max_concurrent_calls) if entry.max_concurrent_calls else nullcontext()
    api_key, base_url = getattr(entry, "api_key", None), getattr(entry, "base_url", None)
    keys = ToolKeys(name, api_key, base_url, resources)
    providers = {
        only_key(getattr(one, "api_key", None)) or "": provider_of(one) for one in with_single_keys(entry).values()
    }
    provider_name = next(iter(providers.values())).name or name
    written: dict[str, Any] = {"provider": provider_name, "most_characters": most_characters}
    reader = HitReader(name, resources)
    threads = DaemonThreads("toolproxy-search", most=2)  # more threads would only compete for the processor

    async def look_up(scope: str, query: SearchQuery) -> SearchAnswer:
        """The provider's answer to a query, with the first key that works. Raises `ToolError`."""
        return await keys.use(lambda key: look_up_at(providers[key], scope, query))

    async def look_up_at(provider: Provider, scope: str, query: SearchQuery) -> SearchAnswer:
        today = datetime.fromtimestamp(resources.clock.time(), UTC).date()
        async with slots:
            answer = await ask(resources.client, provider.request(query, today))
        read = partial(provider.read, query, answer.status, answer.headers, answer.body, today)
        found = read() if len(answer.body) < _LARGE else await threads.run(read)
        if isinstance(found, Refused):
            raise refusal(found, now=resources.clock.time())
        await resources.pages.keep(scope, found.hits)
        return found

    async def search(arguments: Json, call: CallContext) -> ToolOutput:
        filters = replace(call.filters, block=tuple(dict.fromkeys((*call.filters.block, *block))))
        call = replace(call, filters=filters)
        if "queries" in arguments:
            queries = several_of(arguments, filters)
            return await search_all(queries, partial(look_up, call.scope), partial(reader.read, call=call), **written)
        query = query_of(arguments, filters)
        found = await look_up(call.scope, query)
        read = await reader.read([(query.text, found.hits)], call) if filters.reading else NONE_READ
        return output_of_found(query.text, found, read, **written)

    return Tool(
        name=name,
        description=description + _READS if reading is not None and reading.pages else description,
        parameters=PARAMETERS,
        block=block,
        reading=reading,
        run=lambda arguments: search(arguments, NO_CONTEXT),
        run_filtered=lambda arguments, filters: search(arguments, CallContext(filters=filters)),
        run_in_call=search,
        repair=repair,
        aliases=(browser.SEARCH,),
        searches=True,
        keys=keys.pool,
    )
