"""`type: serper_scrape`: one web page as text, read by serper.dev.

`POST {base_url}` with `{"url", "includeMarkdown"}`; the answer has `text`, `metadata` and, if possible, `markdown`. The
service fetches the page, so no address in this network can be reached through it.
"""

from typing import Any

import orjson
from msgspec.structs import replace

from proxy.config.model import ApiKeys, ToolConfig, Url
from proxy.kit.sent import Sent
from proxy.loop.call_context import CallContext
from proxy.loop.limits import CountOrZero
from proxy.loop.results import ToolError
from proxy.tools.exchange import Request
from proxy.tools.keys import ToolKeys
from proxy.tools.kind import Kind, Resources
from proxy.tools.kinds.serper import SERPER
from proxy.tools.search.exchange import ask, refusal
from proxy.tools.search.refusals import Refused, answer_of
from proxy.tools.tool import Tool
from proxy.tools.web.page import Page, clean, expect_permitted, page_tool

MOST_CHARACTERS = 20_000  # of one result
_NOT_THERE = (404, 410)


class SerperScrapeConfig(ToolConfig, tag="serper_scrape", frozen=True, kw_only=True):
    """`type: serper_scrape`: one web page as text, read by serper.dev."""

    api_key: ApiKeys  # Key of serper.dev, or several.
    base_url: Url = "https://scrape.serper.dev"  # URL of the API.
    retries: CountOrZero = 1  # Retries after a failure that may be temporary.


def serper_scrape_tool(name: str, entry: SerperScrapeConfig, resources: Resources) -> Tool:
    """The tool of an entry."""
    keys, pages = ToolKeys(name, entry.api_key, entry.base_url, resources), resources.pages

    async def page_at(url: str, call: CallContext) -> Page:
        expect_permitted(url, call.filters)
        return await pages.get_or_read(call.scope, url, lambda: scraped(call.scope, url))

    async def scraped(scope: str, url: str) -> Page:
        body = orjson.dumps({"url": await pages.address_of(scope, url), "includeMarkdown": True})

        async def scraped_with(key: str) -> Page:
            answer = await ask(resources.client, Request("POST", entry.base_url, body, {"x-api-key": key}))
            if answer.status in _NOT_THERE:
                raise ToolError("The page could not be read: there is no such page.", why=f"HTTP {answer.status}")
            found = answer_of(SERPER, answer.status, answer.headers, answer.body, sent=Sent(body))
            if isinstance(found, Refused):
                raise refusal(found, now=resources.clock.time())
            return page_in(found, url)

        return await keys.use(scraped_with)

    return replace(page_tool(name, page_at, most=MOST_CHARACTERS, one_service=True), keys=keys.pool)


def page_in(answer: Any, url: str) -> Page:
    """The page in an answer. Raises `ToolError` if there is none."""
    answer = answer if isinstance(answer, dict) else {}
    text = next((answer[key] for key in ("markdown", "text") if isinstance(answer.get(key), str)), None)
    if text is None:
        raise ToolError("The page could not be read.")
    metadata: Any = answer.get("metadata")
    title = metadata.get("title") if isinstance(metadata, dict) else None
    return Page(url, " ".join(title.split()) if isinstance(title, str) else "", clean(text))


KIND = Kind(config=SerperScrapeConfig, make=serper_scrape_tool)
