"""`type: zai_search`: GLM's own search, by itself or as the fallback of another search.

mode: api    POST {base_url}/web_search          the search endpoint
mode: chat   POST {base_url}/chat/completions    one request to GLM with its native web_search tool switched on and
no other tool, so that it cannot loop; the text that it writes is the direct answer
"""

from collections.abc import Mapping
from typing import Any, Literal
from urllib.parse import urlsplit

from proxy.config.model import (
    ApiKeys,
    Config,
    PageCount,
    ReadConfig,
    Text,
    ToolConfig,
    Url,
    appended_path_fault,
    keys_of,
    only_key,
)
from proxy.config.rules import Faults
from proxy.keys.reset_times import CHINA
from proxy.loop.limits import CountOrZero
from proxy.tools.search.description import Description, Fields, Most, Refusal
from proxy.tools.search.kind import search_kind
from proxy.tools.search.provider import Provider
from proxy.tools.search.tool import search_tool_of
from proxy.tools.tool import Tool
from proxy.tools.tool_type import Resources

DESCRIPTION = "Search the web. Returns titles, URLs, dates and summaries of the best results."

_SEARCH = {
    "search_engine": "{search_engine}",
    "search_query": "{query}",
    "count": "{count}",
    "search_recency_filter": "{recency}",
    "search_domain_filter": "{allow|first}",
}
# Z.AI's codes for a key or account that it refuses, and for a plan without the search.
_REFUSED = ("1000", "1001", "1002", "1003", "1004", "1110", "1111", "1112", "1120", "1121", "1220", "1311", "1313")
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
        Refusal(means="key", at="/error/code", text=_REFUSED),
        Refusal(means="quota", at="/error/code", text=("1113", "1309", "1304", "1308", "1310", "1316", "1317")),
        Refusal(means="down", at="/error/code", text=("1230", "1234", "1305")),
        Refusal(means="down", status=200, at="/error"),
    ),
}
SERVICES = {
    "api": Description(
        url="https://api.z.ai/web_search",
        body=_SEARCH,
        options={"search_engine": "search-prime"},  # bigmodel has other engines, search_std and search_pro among them
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
        options={"search_engine": "search_pro_jina"},
        results="/web_search",
        answer="/choices/0/message/content",
        **_COMMON,
    ),
}


class ZaiSearchConfig(ToolConfig, tag="zai_search", frozen=True, kw_only=True):
    """`type: zai_search`: GLM's own search."""

    api_key: ApiKeys  # Key of Z.AI, or several.
    base_url: Url = "https://api.z.ai/api/paas/v4"  # URL to which /web_search or /chat/completions is appended.
    # api: the search endpoint. chat: a GLM model that searches by itself.
    mode: Literal["api", "chat"] = "api"
    retries: CountOrZero = 1  # Retries after a failure that may be temporary.
    model: Text = "glm-4.7"  # Model that searches, with mode chat.
    search_engine: Text | None = None  # Name of the search engine. None: the one for the mode.
    # Pages that are read for the model, as with `type: search`.
    read: PageCount | ReadConfig | None = None


def zai_search_tool(name: str, entry: ZaiSearchConfig, resources: Resources) -> Tool:
    """The tool of an entry, with the same arguments as every search."""
    return search_tool_of(name, entry, provider_of, resources, description=DESCRIPTION)


def provider_of(entry: ZaiSearchConfig) -> Provider:
    """The provider of an entry."""
    engine = {"search_engine": entry.search_engine} if entry.search_engine else {}
    return Provider(
        SERVICES[entry.mode],
        name=entry.type,
        api_key=only_key(entry.api_key),
        base_url=entry.base_url,
        options={"model": entry.model, **engine},
        zone=CHINA,
    )


def _faults(entry: ZaiSearchConfig) -> Faults:
    if fault := appended_path_fault(entry.base_url, "/web_search", "/chat/completions"):
        yield "base_url", fault


def _warnings(entry: ZaiSearchConfig, config: Config) -> Faults:
    """A search that would send the key of another server, such as a gateway, to Z.AI."""
    searched = urlsplit(entry.base_url).hostname
    own = set(keys_of(entry.api_key).values())
    hosts = {
        name: urlsplit(one.base_url).hostname
        for name, one in config.upstreams.items()
        if not own.isdisjoint(keys_of(one.api_key).values())
    }
    if hosts and searched not in hosts.values():
        name, host = hosts.popitem()
        yield "base_url", f"sends the key of upstream {name!r}, which is at {host}, to {searched}"


KIND = search_kind(ZaiSearchConfig, provider_of, zai_search_tool, faults=_faults, judges_parts=True, warnings=_warnings)
