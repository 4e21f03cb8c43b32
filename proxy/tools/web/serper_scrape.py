"""`type: serper_scrape`: one web page as text, read by serper.dev.

`POST {base_url}` with `{"url", "includeMarkdown"}`; the answer has `text`, `metadata` and, where it could be made,
`markdown`. The page is fetched by the service, so no address of this network can be reached through it.
"""

from typing import Any

import httpx

from proxy.config import SerperScrapeConfig
from proxy.loop.chat import Json, ToolOutput
from proxy.loop.errors import ToolError
from proxy.tools import browser
from proxy.tools.search.serper import post
from proxy.tools.tool import Tool
from proxy.tools.web.guard import parse_url
from proxy.tools.web.page import DESCRIPTION, PARAMETERS, Page, clean, repair, shown

MOST_CHARACTERS = 20_000  # of one result


def serper_scrape_tool(name: str, config: SerperScrapeConfig, client: httpx.AsyncClient) -> Tool:
    """A reader of pages by that name."""

    async def run(arguments: Json) -> ToolOutput:
        url = parse_url(arguments["url"]).url
        answer = await post(client, config.base_url, config.api_key, {"url": url, "includeMarkdown": True})
        page = page_in(answer, url)
        return ToolOutput(shown(page, arguments, most=MOST_CHARACTERS), {page.url: page.title})

    return Tool(
        name=name,
        description=DESCRIPTION,
        parameters=PARAMETERS,
        run=run,
        repair=repair,
        aliases=(browser.OPEN, browser.FIND),
    )


def page_in(answer: Json, url: str) -> Page:
    """The page that an answer holds. Raises `ToolError` where it holds none."""
    text = next((answer[key] for key in ("markdown", "text") if isinstance(answer.get(key), str)), None)
    if text is None:
        raise ToolError("The page could not be read.")
    metadata: Any = answer.get("metadata")
    title = metadata.get("title") if isinstance(metadata, dict) else None
    return Page(url, " ".join(title.split()) if isinstance(title, str) else "", clean(text))
