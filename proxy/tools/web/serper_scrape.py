"""`type: serper_scrape`: one web page as text, read by serper.dev.

`POST {base_url}` with `{"url", "includeMarkdown"}`; the answer has `text`, `metadata` and, where it could be made,
`markdown`. The page is fetched by the service, so no address of this network can be reached through it.
"""

from functools import partial
from typing import Any

import httpx
import orjson

from proxy.config import SerperScrapeConfig
from proxy.loop.chat import Json
from proxy.loop.results import ToolError, ToolOutput
from proxy.loop.search import NO_FILTERS, SearchFilters
from proxy.tools import browser
from proxy.tools.search.provider import SearchRequest
from proxy.tools.search.refusals import Refused, answer_of
from proxy.tools.search.serper import SERVICE
from proxy.tools.search.service import refusal, send
from proxy.tools.tool import Tool
from proxy.tools.web.guard import parse_url
from proxy.tools.web.page import DESCRIPTION, PARAMETERS, Page, clean, expect_permitted, repair, shown
from proxy.tools.web.pages import PageCache

MOST_CHARACTERS = 20_000  # of one result


def serper_scrape_tool(name: str, config: SerperScrapeConfig, client: httpx.AsyncClient, pages: PageCache) -> Tool:
    """A reader of pages by that name."""
    headers = {"x-api-key": config.api_key}

    async def read(arguments: Json, filters: SearchFilters) -> ToolOutput:
        url = parse_url(arguments["url"]).url
        expect_permitted(url, filters)
        page = await pages.get_or_read(url, lambda: scraped(url))
        expect_permitted(page.url, filters)
        return ToolOutput(shown(page, arguments, most=MOST_CHARACTERS), {page.url: page.title})

    async def scraped(url: str) -> Page:
        body = orjson.dumps({"url": await pages.address_of(url), "includeMarkdown": True})
        answer = answer_of(SERVICE, *await send(client, SearchRequest("POST", config.base_url, headers, body)))
        if isinstance(answer, Refused):
            raise refusal(answer)
        return page_in(answer, url)

    return Tool(
        name=name,
        description=DESCRIPTION,
        parameters=PARAMETERS,
        run=partial(read, filters=NO_FILTERS),
        run_filtered=read,
        repair=repair,
        aliases=(browser.OPEN, browser.FIND),
    )


def page_in(answer: Any, url: str) -> Page:
    """The page that an answer holds. Raises `ToolError` where it holds none."""
    answer = answer if isinstance(answer, dict) else {}
    text = next((answer[key] for key in ("markdown", "text") if isinstance(answer.get(key), str)), None)
    if text is None:
        raise ToolError("The page could not be read.")
    metadata: Any = answer.get("metadata")
    title = metadata.get("title") if isinstance(metadata, dict) else None
    return Page(url, " ".join(title.split()) if isinstance(title, str) else "", clean(text))
