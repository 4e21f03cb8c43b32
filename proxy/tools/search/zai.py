"""`type: zai_search`: GLM's own search, by itself or as the fallback of another search.

mode: api    POST {base_url}/web_search          the search endpoint
mode: chat   POST {base_url}/chat/completions    one request to GLM with its native web_search tool switched on and
no other tool, so that it cannot loop; the text that it writes is the direct answer
"""

from collections.abc import Mapping
from typing import Any

import httpx

from proxy.config.model import ZaiSearchConfig
from proxy.ports import Clock
from proxy.tools.search.description import Description, Fields, Most, Refusal
from proxy.tools.search.provider import Provider
from proxy.tools.search.tool import search_tool_of
from proxy.tools.tool import Tool
from proxy.tools.web.pages import PageCache

DESCRIPTION = "Search the web. Returns titles, URLs, dates and summaries of the best results."

# The engines of Z.AI; bigmodel has others, search_std and search_pro among them.
_ENGINES = {"api": "search-prime", "chat": "search_pro_jina"}
_SEARCH = {
    "search_engine": "{search_engine}",
    "search_query": "{query}",
    "count": "{count}",
    "search_recency_filter": "{recency}",
    "search_domain_filter": "{allow|first}",
}
_COMMON: Mapping[str, Any] = {
    "method": "POST",
    "headers": {"authorization": "Bearer {api_key}"},
    "values": {
        "recency": {"hour": "oneDay", "day": "oneDay", "week": "oneWeek", "month": "oneMonth", "year": "oneYear"}
    },
    # A longer query is refused, and a search accepts one domain.
    "most": Most(count=50, query_characters=70, allow=1),
    "fields": Fields(url="/link", title="/title", text="/content", published="/publish_date", site="/media"),
    "errors": (
        Refusal(means="key", at="/error/code", text=("1000", "1001", "1002", "1003", "1004")),
        Refusal(means="quota", at="/error/code", text=("1113", "1308")),
        Refusal(means="down", status=200, at="/error"),
    ),
}
SERVICES = {
    "api": Description(
        url="https://api.z.ai/web_search",
        body=_SEARCH,
        options={"search_engine": _ENGINES["api"]},
        results="/search_result",
        **_COMMON,
    ),
    "chat": Description(
        url="https://api.z.ai/chat/completions",
        body={
            "model": "{model}",
            "messages": [{"role": "user", "content": "{query}"}],
            "tools": [
                {
                    "type": "web_search",
                    "web_search": {"enable": True, **_SEARCH, "search_result": True, "require_search": True},
                }
            ],
            "thinking": {"type": "disabled"},
            "stream": False,
        },
        options={"search_engine": _ENGINES["chat"], "model": "glm-4.7"},
        results="/web_search",
        answer="/choices/0/message/content",
        **_COMMON,
    ),
}


def zai_search_tool(
    name: str, config: ZaiSearchConfig, client: httpx.AsyncClient, clock: Clock, pages: PageCache | None = None
) -> Tool:
    """The tool of an entry `type: zai_search`, with the same arguments as every search."""
    return search_tool_of(name, provider_of(config), client, clock, description=DESCRIPTION, pages=pages)


def provider_of(config: ZaiSearchConfig) -> Provider:
    """The provider of an entry."""
    options = {"search_engine": config.search_engine or _ENGINES[config.mode]}
    if config.mode == "chat":
        options["model"] = config.model
    return Provider(SERVICES[config.mode], api_key=config.api_key, base_url=config.base_url, options=options)
