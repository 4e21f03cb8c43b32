"""The pages that were read lately: one cache for every tool that reads pages, and for searches that bring their text.

    search with `content: page` --keep--> PageCache <--read-- web_fetch, serper_scrape

A page serves only the caller on whose behalf it was read or found. Whether it may be read is for the tool to say that
shows it: the cache does not know.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

import msgspec

from proxy.loop.results import ToolOutput
from proxy.loop.search import SearchHit
from proxy.ports import Caches
from proxy.tools.search.urls import page_key
from proxy.tools.tool import SCOPE
from proxy.tools.web.page import Page

KEPT_SECONDS = 300.0
_NAME = "web pages"  # no tool can have it: a tool's name has no blank


class PageCache:
    """Pages by URL, and the addresses of pages as searches gave them, for five minutes.

    Args:
        caches: makes the cache that both are kept in, which bounds its size.
    """

    def __init__(self, caches: Caches) -> None:
        self._kept = caches(_NAME, KEPT_SECONDS)

    async def get_or_read(self, url: str, read: Callable[[], Awaitable[Page]]) -> Page:
        """The page at `url`, from the cache or from `read`."""

        async def encoded() -> ToolOutput:
            return ToolOutput(msgspec.json.encode(await read()).decode())

        output = await self._kept.get_or_run(_key("page", url), encoded)
        return msgspec.json.decode(output.text, type=Page)

    async def address_of(self, url: str) -> str:
        """The URL as a search gave it whose result had the canonical `url`; else `url` itself."""
        return await self._address(url, url)

    async def keep(self, hits: Iterable[SearchHit]) -> None:
        """Keep what a search found for the tools that read pages."""
        async with asyncio.TaskGroup() as group:
            for hit in hits:
                if hit.is_page:
                    group.create_task(self._page(Page(hit.url, hit.title, hit.text)))
                if hit.address:
                    group.create_task(self._address(hit.url, hit.address))

    async def _page(self, page: Page) -> Page:
        async def as_found() -> Page:
            return page

        return await self.get_or_read(page.url, as_found)

    async def _address(self, url: str, address: str) -> str:
        async def as_given() -> ToolOutput:
            return ToolOutput(address)

        return (await self._kept.get_or_run(_key("address", url), as_given)).text


def _key(kind: str, url: str) -> str:
    return f"{SCOPE.get()}\n{kind} {page_key(url)}"
