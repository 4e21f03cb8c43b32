"""The output of a search, for the model and for the client: the pages of its query, or of each of several queries."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from proxy.loop.results import ToolError, ToolOutput, ToolUnavailable
from proxy.tools.search.provider import SearchAnswer
from proxy.tools.search.query import SearchQuery
from proxy.tools.search.reading import NONE_READ, PagesRead
from proxy.tools.web.urls import host_of, page_key
from proxy.wire.search import SearchHit


class Lookup(NamedTuple):
    """A query that was looked up.

    Attributes:
        query: the query.
        found: the provider's answer, or the reason why there is none.
        hits: the hits that are listed below the query.
    """

    query: str
    found: SearchAnswer | ToolError
    hits: Sequence[SearchHit]


async def look_up_all(
    queries: Iterable[SearchQuery], look_up: Callable[[SearchQuery], Awaitable[SearchAnswer]]
) -> list[Lookup]:
    """Several queries, looked up at the same time. Raises `ToolError` if none of them could be looked up."""

    async def outcome(query: SearchQuery) -> tuple[str, SearchAnswer | ToolError]:
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
    return [*listed(outcomes)]


def listed(outcomes: Iterable[tuple[str, SearchAnswer | ToolError]]) -> Iterator[Lookup]:
    """Each query with its hits. A page is listed once, below the first query that has found it."""
    known: set[str] = set()
    for query, found in outcomes:
        hits = found.hits if isinstance(found, SearchAnswer) else ()
        new = {key: hit for hit in hits if (key := page_key(hit.url)) not in known}
        known |= new.keys()
        yield Lookup(query, found, tuple(new.values()))


def output_of(
    lookups: Sequence[Lookup], read: PagesRead = NONE_READ, *, provider: str | None = None, most_characters: int
) -> ToolOutput:
    """The output of a search.

    Args:
        lookups: the queries in their order, each with its hits in the provider's order.
        read: the passages of pages that stand in the place of hits' texts.
        provider: the name of the provider.
        most_characters: the limit for each hit's text; the rest is cut off.
    """
    blocks, sources = list[str](), dict[str, str]()
    shown: list[SearchHit] = []
    for query, found, hits in lookups:
        blocks.append(_heading(query, found, hits))
        if isinstance(found, SearchAnswer) and found.answer:
            direct = ("Direct answer:", _cut(found.answer, most_characters), found.answer_url)
            blocks.append("\n".join(filter(None, direct)))
        for given in hits:
            text = read.passages.get(given.url) or given.text
            if text is given.text and len(text) > most_characters:
                text = _cut(text, most_characters)
            hit = given
            if text is not given.text or len(lookups) > 1:
                hit = replace(given, text=text, query=query if len(lookups) > 1 else None)
            # Without a number, which gpt-oss would take for a page of a browser that it may not have.
            blocks.append("\n".join(filter(None, (hit.title, hit.url, hit.where, text))))
            shown.append(hit)
            sources.setdefault(hit.url, hit.title)
        if isinstance(found, SearchAnswer) and found.answer_url:
            sources.setdefault(found.answer_url, host_of(found.answer_url))
    answers = [found for _, found, _ in lookups if isinstance(found, SearchAnswer)]
    return ToolOutput(
        "\n\n".join(blocks),
        sources,
        tuple(shown),
        note="; ".join([found.note for found in answers if found.note]) or None,
        provider=provider,
        pages=read.outcomes,
        searches=len(answers),
        failed_queries=tuple([query for query, found, _ in lookups if isinstance(found, ToolError)]),
    )


def _heading(query: str, found: SearchAnswer | ToolError, hits: Sequence[SearchHit]) -> str:
    if isinstance(found, ToolError):
        return f'No results for "{query}": {found}'
    if hits or found.answer:
        return f'Results for "{query}":'
    return f'Results for "{query}": only pages that are listed above.' if found.hits else f'No results for "{query}".'


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most].rstrip()} […]"
