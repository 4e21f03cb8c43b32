"""Reads the pages that a search has found, so that the model gets passages of them in the place of snippets.

    hits --the first pages--> PageReader, all at the same time --> passages that fit the query, or why there are none

Nothing that happens to a page harms the search: the page's hit keeps its snippet.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice, zip_longest
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct

from proxy.config.model import ReadConfig
from proxy.kit.timeouts import elapsed
from proxy.loop.call_context import CallContext
from proxy.loop.results import ToolError, UrlNotAllowed
from proxy.tools.threads import DaemonThreads
from proxy.tools.tool_type import Resources
from proxy.tools.web.page import expect_permitted
from proxy.tools.web.passages import fitting_passages
from proxy.wire.search import Reading, SearchHit

Outcome: TypeAlias = Literal["read", "failed", "refused", "late", "empty"]
"""What became of a page: it has passages that fit; it could not be had; the guard, the filters of the call or the
page's own site do not permit it; it took too long; nothing in it fits the query."""

_MOST_AT_ONCE: Final = 64  # pages of all calls; each may hold several times its size in memory
_PART_OF_TIME_LEFT: Final = 0.9  # of the call, the rest of which is for its result


class PagesRead(Struct, frozen=True):
    """The pages of a search that were read.

    Attributes:
        passages: URL -> passages that fit the query, of the pages that have any.
        outcomes: `Outcome` -> the number of fetched pages.
    """

    passages: Mapping[str, str] = MappingProxyType({})
    outcomes: Mapping[str, int] = MappingProxyType({})


NONE_READ: Final = PagesRead()


def reading_of(read: int | ReadConfig | None) -> Reading | None:
    """The value of a search's `read:`."""
    if read is None:
        return None
    entry = ReadConfig(pages=read) if isinstance(read, int) else read
    return Reading(entry.pages, entry.characters, entry.seconds)


@dataclass(frozen=True, slots=True)
class _Call:
    """The terms of one call for all its pages: context, options of `read`, and the end, as the event loop's time."""

    context: CallContext
    reading: Reading
    ends: float


class HitReader:
    """Reads the pages of the hits of one search tool, whose name events have."""

    def __init__(self, tool: str, resources: Resources) -> None:
        self._tool = tool
        self._resources = resources
        self._slots = asyncio.Semaphore(_MOST_AT_ONCE)
        self._threads = DaemonThreads("toolproxy-passages", most=2)  # more would only compete for the processor

    async def read(
        self, searches: Sequence[tuple[str, Sequence[SearchHit]]], call: CallContext, reading: Reading
    ) -> PagesRead:
        """Read the first pages of the searches of a call, each a query with its hits in the provider's order."""
        # The first page of each search, then the second of each, and so on.
        ranked = zip_longest(*([(query, hit) for hit in hits] for query, hits in searches))
        chosen = islice(filter(None, chain.from_iterable(ranked)), reading.pages)
        left = _PART_OF_TIME_LEFT * (call.ends - self._resources.clock.monotonic())
        ends = asyncio.get_running_loop().time() + min(reading.seconds, left)
        passages: dict[str, str] = {}
        outcomes: Counter[str] = Counter()

        async def read_one(number: int, query: str, hit: SearchHit) -> None:
            if hit.of_page:  # the provider has read the page
                passages[hit.url] = await self._fitting(hit.text, query, reading.characters)
            else:
                outcome, passages[hit.url] = await self._visit(number, query, hit.url, _Call(call, reading, ends))
                outcomes[outcome] += 1

        async with asyncio.TaskGroup() as group:
            for number, (query, hit) in enumerate(chosen, 1):
                group.create_task(read_one(number, query, hit))
        return PagesRead({url: text for url, text in passages.items() if text}, outcomes)

    async def _visit(self, number: int, query: str, url: str, call: _Call) -> tuple[Outcome, str]:
        """Fetch one page; its outcome, and the passages that fit the query. Observers get events of both."""
        clock, observe, began = self._resources.clock, self._resources.observe, self._resources.clock.monotonic()
        named: dict[str, Any] = {"tool": self._tool, "page": number}
        observe("page.started", **named, content={"url": url})

        def ended(event: str, **fields: Any) -> None:
            observe(event, **named, seconds=elapsed(began, clock.monotonic()), **fields)

        try:
            async with asyncio.timeout_at(call.ends), self._slots:
                page = await self._resources.page_reader(everywhere=call.reading.everywhere).page_at(url, call.context)
                expect_permitted(page.url, call.context.filters)  # a redirect may have led to another page
                passages = await self._fitting(page.text, query, call.reading.characters)
        except TimeoutError:
            ended("page.failed", outcome="late")
            return "late", ""
        except ToolError as exc:
            outcome: Outcome = "refused" if isinstance(exc, UrlNotAllowed) else "failed"
            ended("page.failed", outcome=outcome, why=exc.outcome, content={"message": str(exc)})
            return outcome, ""
        except asyncio.CancelledError:
            ended("page.abandoned")
            raise
        except Exception:  # noqa: BLE001 - whatever a page does to the libraries, the search goes on; the log has the traceback
            ended("page.crashed", exc_info=True)
            return "failed", ""
        if not passages:
            ended("page.completed", outcome="empty")
            return "empty", ""
        ended("page.completed", characters=len(passages))
        return "read", passages

    async def _fitting(self, text: str, query: str, most: int) -> str:
        return await self._threads.run(lambda: fitting_passages(text, query, most=most))
