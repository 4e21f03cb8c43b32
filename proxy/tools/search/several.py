"""The output of a search: what was found for its query, or for each of several that are looked up at once."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

from msgspec.structs import replace

from proxy.loop.results import ToolError, ToolOutput, ToolUnavailable
from proxy.tools.search.hits import output_of
from proxy.tools.search.provider import SearchAnswer
from proxy.tools.search.query import SearchQuery
from proxy.tools.search.reading import NONE_READ, PagesRead
from proxy.tools.web.urls import page_key
from proxy.wire.search import SearchHit

Outcome: TypeAlias = tuple[str, SearchAnswer | ToolError]
"""A query, and what was found for it or why nothing could be."""


ReadPages: TypeAlias = Callable[[Sequence[tuple[str, Sequence[SearchHit]]]], Awaitable[PagesRead]]
"""Reads the first pages of queries with their hits."""


def output_of_found(
    query: str, found: SearchAnswer, read: PagesRead = NONE_READ, *, provider: str, most_characters: int
) -> ToolOutput:
    """The output of a search with one query, of whose pages some were read."""
    direct: dict[str, Any] = {"answer": found.answer, "answer_url": found.answer_url}
    written: dict[str, Any] = {"provider": provider, "most_characters": most_characters, "passages": read.passages}
    output = output_of(query, found.hits, **direct, **written)
    return replace(output, note=found.note, pages=read.outcomes) if found.note or read.outcomes else output


async def search_all(
    queries: Iterable[SearchQuery],
    look_up: Callable[[SearchQuery], Awaitable[SearchAnswer]],
    read: ReadPages,
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
    pages = await read([(query, hits) for (query, _), hits in zip(outcomes, _listed(outcomes), strict=True)])
    return output_of_several(outcomes, pages, provider=provider, most_characters=most_characters)


def output_of_several(
    outcomes: Sequence[Outcome], read: PagesRead = NONE_READ, *, provider: str, most_characters: int
) -> ToolOutput:
    """The pages of several queries, below each query in their order, of which some were read."""
    texts, notes = list[str](), list[str]()
    hits, sources = list[SearchHit](), dict[str, str]()
    written: dict[str, Any] = {"provider": provider, "most_characters": most_characters}
    searches = 0
    for (query, found), new in zip(outcomes, _listed(outcomes), strict=True):
        if isinstance(found, ToolError):
            texts.append(f'No results for "{query}": {found}')
            continue
        searches += 1
        output = output_of_found(query, replace(found, hits=new), read, **written)
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
        pages=read.outcomes,
        searches=searches,
        failed_queries=tuple([query for query, found in outcomes if isinstance(found, ToolError)]),
    )


def _listed(outcomes: Iterable[Outcome]) -> Iterator[tuple[SearchHit, ...]]:
    """The hits that are listed below each query: a page is listed once, below the first query that has found it."""
    listed: set[str] = set()
    for _, found in outcomes:
        hits = found.hits if isinstance(found, SearchAnswer) else ()
        new = {key: hit for hit in hits if (key := page_key(hit.url)) not in listed}
        listed |= new.keys()
        yield tuple(new.values())
