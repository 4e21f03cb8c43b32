"""The output of a search: what was found for its query, or for each of several that are looked up at once."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeAlias

from msgspec.structs import replace

from proxy.loop.results import ToolError, ToolOutput, ToolUnavailable
from proxy.tools.search.hits import output_of
from proxy.tools.search.provider import Found
from proxy.tools.search.query import SearchQuery
from proxy.tools.web.urls import page_key
from proxy.wire.search import SearchHit

Outcome: TypeAlias = tuple[str, Found | ToolError]
"""A query, and what was found for it or why nothing could be."""


def output_of_found(query: str, found: Found, *, provider: str, most_characters: int) -> ToolOutput:
    """The output of a search with one query."""
    direct = {"answer": found.answer, "answer_url": found.answer_url}
    output = output_of(query, found.hits, **direct, provider=provider, most_characters=most_characters)
    return replace(output, note=found.note) if found.note else output


async def search_all(
    queries: Iterable[SearchQuery],
    look_up: Callable[[SearchQuery], Awaitable[Found]],
    *,
    provider: str,
    most_characters: int,
) -> ToolOutput:
    """The output of a search with several queries. Raises `ToolError` if none of them could be looked up."""

    async def outcome(query: SearchQuery) -> Outcome:
        try:
            return query.text, await look_up(query)
        except ToolError as exc:
            return query.text, exc

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(outcome(query)) for query in queries]
    outcomes = [task.result() for task in tasks]
    failures = [found for _, found in outcomes if isinstance(found, ToolError)]
    if len(failures) == len(outcomes):
        raise next((error for error in failures if isinstance(error, ToolUnavailable)), failures[0])
    return output_of_several(outcomes, provider=provider, most_characters=most_characters)


def output_of_several(outcomes: Sequence[Outcome], *, provider: str, most_characters: int) -> ToolOutput:
    """The pages of several queries, below each query in their order; a page is listed once, below the first one."""
    texts, notes = list[str](), list[str]()
    hits, sources = list[SearchHit](), dict[str, str]()
    listed: set[str] = set()
    searches = 0
    for query, found in outcomes:
        if isinstance(found, ToolError):
            texts.append(f'No results for "{query}": {found}')
            continue
        searches += 1
        new = tuple([hit for hit in found.hits if page_key(hit.url) not in listed])
        listed.update(page_key(hit.url) for hit in new)
        output = output_of_found(query, replace(found, hits=new), provider=provider, most_characters=most_characters)
        is_known = found.hits and not new and not found.answer
        texts.append(f'Results for "{query}": only pages that are listed above.' if is_known else output.text)
        notes += [output.note] if output.note else []
        hits += [replace(hit, query=query) for hit in output.hits]
        sources |= {url: title for url, title in output.sources.items() if url not in sources}
    return ToolOutput(
        "\n\n".join(texts),
        sources,
        tuple(hits),
        note="; ".join(notes) or None,
        provider=provider,
        searches=searches,
        is_partial=searches < len(outcomes),
    )
