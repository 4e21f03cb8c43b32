"""`type: search`: a web search by a shipped provider, or by one that the entry describes."""

from collections.abc import Iterator
from datetime import date
from typing import Any, Literal

from msgspec.structs import replace

from proxy.config.keys import KEYLESS
from proxy.config.messages import did_you_mean
from proxy.config.model import ApiKeys, Characters, PageCount, ReadConfig, Text, ToolConfig, Url, keys_of, only_key
from proxy.config.rules import Faults
from proxy.loop.limits import CountOrZero
from proxy.tools.search.description import Description, description_of, shipped
from proxy.tools.search.faults import NO_JSON, faults, is_json
from proxy.tools.search.kind import described, search_kind
from proxy.tools.search.provider import Provider
from proxy.tools.search.query import SearchQuery
from proxy.tools.search.tool import MOST_CHARACTERS, search_tool_of
from proxy.tools.template import names_in
from proxy.tools.tool import Tool
from proxy.tools.tool_type import Resources
from proxy.wire.search import SearchFilters, domain_rule

# Characters of one result's text, by `content`: ten pages fit `limits.max_result_bytes`.
_MOST_CHARACTERS = {"snippets": MOST_CHARACTERS, "page": 6000}


class SearchConfig(ToolConfig, tag="search", frozen=True, kw_only=True):
    """`type: search`: web search by a shipped provider, or by one that you describe. See docs/search.md."""

    provider: str | Description  # Name of a shipped provider, or a description of one (docs/search.md).
    # Key of the provider, or several. none: no key, if the provider allows it.
    api_key: ApiKeys | None = None
    base_url: Url | None = None  # Replaces the provider's address.
    content: Literal["snippets", "page"] = "snippets"  # page: the text of each page, if the provider returns it.
    # Characters of one result's text. None: 1500, or 6000 with `content: page`.
    max_characters_per_result: Characters | None = None
    block_domains: tuple[Text, ...] = ()  # Domains, or paths of a domain, whose pages are never returned.
    options: dict[str, Any] = {}  # The provider's own settings.
    # Number of found pages that are read for the model, or a mapping. None: 0; in a fallback, as for the failed tool.
    read: PageCount | ReadConfig | None = None
    retries: CountOrZero = 1  # Retries after a failure that may be temporary.


def search_tool(name: str, entry: SearchConfig, resources: Resources) -> Tool:
    """The tool of an entry."""
    most = entry.max_characters_per_result or _MOST_CHARACTERS[entry.content]
    block = tuple(filter(None, map(domain_rule, entry.block_domains)))
    return search_tool_of(name, entry, provider_of, resources, most_characters=most, block=block)


def provider_of(entry: SearchConfig) -> Provider:
    """The provider for an entry without faults."""
    return Provider(
        description_of(entry.provider),
        name=entry.provider if isinstance(entry.provider, str) else None,
        api_key=only_key(entry.api_key),
        base_url=entry.base_url,
        options=entry.options,
        page=entry.content == "page",
    )


def _faults(entry: SearchConfig) -> Faults:
    try:
        provider = description_of(entry.provider)
    except KeyError:
        name, known = str(entry.provider), shipped()
        yield "provider", f"there is no provider {name!r}; there are {', '.join(known)}{did_you_mean(name, known)}"
        return
    yield from ((".".join(filter(None, ("provider", key))), fault) for key, fault in faults(provider))
    yield from _faults_with(provider, entry)
    for rule in entry.block_domains:
        if domain_rule(rule) is None:
            yield "block_domains", f"{rule!r} is no domain such as example.com, or example.com/path"


def _faults_with(provider: Description, entry: SearchConfig) -> Faults:
    """The faults of an entry for its provider: options that it does not take, and such as are missing."""
    if "api_key" in names_in([provider.url, provider.query, provider.body, *provider.headers.values()]):
        if entry.api_key is None:
            yield "api_key", "is missing"
        if KEYLESS in keys_of(entry.api_key).values() and provider.keyless is None:
            yield "api_key", "this provider does not answer without a key"
    if provider.needs_base_url and entry.base_url is None:
        yield "base_url", "is missing: this provider is a server of your own"
    if entry.content == "page" and provider.page is None:
        yield "content", "this provider does not give the text of pages"
    for name in entry.options.keys() - provider.options.keys():
        known = ", ".join(sorted(provider.options)) or "none"
        yield f"options.{name}", f"there is no such option of this provider; there are: {known}"
    if not is_json(entry.options):
        yield "options", NO_JSON


def _describe(entry: SearchConfig, _: str) -> Iterator[str]:
    if isinstance(entry.provider, Description):
        yield described(f"{entry.type}, described in this file,", provider_of(entry))
        yield f"example request with every filter: {_example(entry)}"
    else:
        yield described(f"{entry.type}, {entry.provider}", provider_of(entry))


def _example(entry: SearchConfig) -> str:
    """An example request, to be compared with the service's documentation."""
    where = SearchFilters(("example.org",), ("example.com",), "ca", "British Columbia", "Nanaimo", "medium")
    query = SearchQuery("WORDS", 5, "week", "ca", "en", where)
    sent = provider_of(replace(entry, api_key=entry.api_key and "KEY")).request(query, date(2026, 1, 8))
    return " ".join(part for part in (sent.method, sent.url, (sent.body or b"").decode()) if part)


KIND = search_kind(
    SearchConfig,
    provider_of,
    search_tool,
    faults=_faults,
    describe=_describe,
    instead={name: f"type: search, provider: {name}" for name in shipped()},
)
