"""The pages that were recently read: one cache for all tools that read pages, and searches that return page text.

    search with `content: page` --keep--> PageCache <--read-- web_fetch

A page is used only for the caller for whom it was read or found. The tool that shows a page checks whether it may be
read; the cache does not.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import TypeVar

import msgspec

from proxy.loop.results import ToolOutput
from proxy.ports import Caches
from proxy.tools.web.page import Page
from proxy.tools.web.urls import page_key
from proxy.wire.search import SearchHit

T = TypeVar("T")

KEPT_SECONDS = 300.0
_NAME = "web pages"  # not the name of any tool, because it has a blank


class PageCache:
    """Caches pages by URL, and the providers' URLs of pages, for five minutes, in one cache that limits its size."""

    def __init__(self, caches: Caches) -> None:
        self._kept = caches(_NAME, KEPT_SECONDS)

    async def get_or_read(self, scope: str, url: str, read: Callable[[], Awaitable[Page]]) -> Page:
        """The page at `url` for the caller of a `scope`, from the cache or from `read`."""

        async def encoded() -> ToolOutput:
            return ToolOutput(msgspec.json.encode(await read()).decode())

        output = await self._kept.get_or_run(_key(scope, "page", url), encoded)
        return msgspec.json.decode(output.text, type=Page)

    async def address_of(self, scope: str, url: str) -> str:
        """The provider's URL for the search result of a caller with the canonical URL `url`; else `url` itself."""
        return await self._address(scope, url, url)

    async def keep(self, scope: str, hits: Iterable[SearchHit]) -> None:
        """Keep the hits of a caller's search for the tools that read pages."""
        async with asyncio.TaskGroup() as group:
            for hit in hits:
                if hit.is_page:
                    page = Page(hit.url, hit.title, hit.text)
                    group.create_task(self.get_or_read(scope, hit.url, partial(_given, page)))
                if hit.address:
                    group.create_task(self._address(scope, hit.url, hit.address))

    async def _address(self, scope: str, url: str, address: str) -> str:
        output = await self._kept.get_or_run(_key(scope, "address", url), partial(_given, ToolOutput(address)))
        return output.text


async def _given(value: T) -> T:
    return value


def _key(scope: str, kind: str, url: str) -> str:
    return f"{scope}\n{kind} {page_key(url)}"
