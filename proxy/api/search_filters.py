"""The filters that a request sets for its searches, read from the form of each API into `SearchFilters`.

    tools: [{"type": "web_search", "filters": {"allowed_domains", "blocked_domains"}, "user_location",
             "search_context_size"}]                                              Responses and Chat Completions
    web_search_options: {"user_location": {"type", "approximate": {...}}, "search_context_size", "filters"}
    tools: [{"type": "web_search_20250305", "allowed_domains", "blocked_domains", "user_location"}]         Messages
    plugins: [{"id": "web", "max_results", "include_domains", "exclude_domains"}]    OpenRouter
    tools: [{"type": "web_search", "web_search": {"search_domain_filter", "search_recency_filter", "count",
             "content_size"}}]                                    GLM, for upstreams without a search of their own

The lists of domains may also be beside `filters`. Everything may be null. If a filter is set several times, the first
setting counts; blocked domains are added up.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

from msgspec.structs import asdict

from proxy.api.fields import is_integer, whole
from proxy.loop.offer import HOSTED_SEARCHES, web_plugins_in
from proxy.wire.chat import Json
from proxy.wire.errors import RequestError
from proxy.wire.search import (
    COUNTRY,
    MOST_DOMAINS,
    MOST_RESULTS,
    NO_FILTERS,
    SIZES,
    Recency,
    SearchFilters,
    domain_rule,
)

FILTER_FIELDS = frozenset({"tools", "web_search_options", "plugins"})
"""The fields of a request that `filters_of` reads."""

_LONGEST_NAME = 100  # characters of a city's or region's name
_NATIVE_RECENCIES: Mapping[str, Recency | None] = {
    "oneDay": "day",
    "oneWeek": "week",
    "oneMonth": "month",
    "oneYear": "year",
    "noLimit": None,
}


def filters_of(request: Json, *, native_search: bool = False) -> SearchFilters:
    """The filters of a chat request; with `native_search`, GLM's form is left for the upstream and not read.

    Raises:
        RequestError: the filters are not well formed.
    """
    return merged(list(_settings_in(request, native_search=native_search)))


def merged(found: Sequence[SearchFilters]) -> SearchFilters:
    """Several settings as one: the first value of each filter, and all blocked domains."""
    if not found:
        return NO_FILTERS
    first: Json = {}
    for one in found:
        first = {name: value for name, value in asdict(one).items() if value} | first
    return SearchFilters(**{**first, "block": tuple(dict.fromkeys(rule for one in found for rule in one.block))})


def filters_of_tool(tool: Json, where: str) -> SearchFilters:
    """The filters in the fields of a Messages tool; `where` is its place in the request.

    Raises:
        RequestError: the filters are not well formed.
    """
    return read_settings({"user_location": tool.get("user_location"), "filters": tool}, where)


def read_settings(settings: Json, param: str) -> SearchFilters:
    """The filters in a declared search or in `web_search_options`; `param` is its field in the request.

    Raises:
        RequestError: the filters are not well formed.
    """
    size = settings.get("search_context_size")
    if size is not None and size not in SIZES:
        _refuse(param, f"'search_context_size' must be one of {', '.join(SIZES)}")
    filters, where = _object(settings, "filters", param), _object(settings, "user_location", param)
    where = _object(where, "approximate", param) or where  # nested in `web_search_options`
    country = where.get("country")
    return SearchFilters(
        allow=domains_in(filters, "allowed_domains", param) or domains_in(settings, "allowed_domains", param),
        block=domains_in(filters, "blocked_domains", param) or domains_in(settings, "blocked_domains", param),
        country=country.lower() if isinstance(country, str) and COUNTRY.fullmatch(country) else None,
        region=_name(where.get("region")),
        city=_name(where.get("city")),
        size=size,
    )


def domains_in(holder: Json, key: str, param: str) -> tuple[str, ...]:
    """A list of domains in punycode, with or without a path. Raises `RequestError`, which names `param`."""
    listed = holder.get(key)
    if listed is None:
        return ()
    if not isinstance(listed, list) or len(listed) > MOST_DOMAINS:
        _refuse(param, f"'{key}' must be a list of at most {MOST_DOMAINS} domains")
    rules: list[str] = []
    for named in listed:
        rule = domain_rule(named) if isinstance(named, str) else None
        if rule is None:
            _refuse(param, f"'{key}' may hold domains such as example.com or example.com/path, without https://")
        rules.append(rule)
    return tuple(dict.fromkeys(rules))


def _settings_in(request: Json, *, native_search: bool) -> Iterator[SearchFilters]:
    for tool in request.get("tools") or ():
        if tool.get("type") in HOSTED_SEARCHES:
            yield read_settings(tool, "tools")
            if isinstance(settings := tool.get("web_search"), dict) and not native_search:
                yield _read_native(settings)
    options = request.get("web_search_options")
    if options is not None:
        if not isinstance(options, dict):
            _refuse("web_search_options", "it must be an object")
        yield read_settings(options, "web_search_options")
    for plugin in web_plugins_in(request):
        yield _read_plugin(plugin)


def _read_native(settings: Json) -> SearchFilters:
    """The filters in GLM's form, which has one domain; a list of domains is accepted as well."""
    domains = settings.get("search_domain_filter") or []
    listed = {"search_domain_filter": [domains] if isinstance(domains, str) else domains}
    recency, count = settings.get("search_recency_filter"), whole(settings.get("count"))
    if recency is not None and recency not in _NATIVE_RECENCIES:
        _refuse("tools", f"'search_recency_filter' must be one of {', '.join(_NATIVE_RECENCIES)}")
    size = settings.get("content_size")
    return SearchFilters(
        allow=domains_in(listed, "search_domain_filter", "tools"),
        size=size if size in SIZES else None,
        count=min(count, MOST_RESULTS) if is_integer(count, 1) else None,
        recency=_NATIVE_RECENCIES[recency] if recency else None,
    )


def _read_plugin(plugin: Json) -> SearchFilters:
    most = whole(plugin.get("max_results"))
    if most is not None and not is_integer(most, 1):
        _refuse("plugins", "'max_results' must be a positive integer")
    return SearchFilters(
        allow=domains_in(plugin, "include_domains", "plugins"),
        block=domains_in(plugin, "exclude_domains", "plugins"),
        count=None if most is None else min(most, MOST_RESULTS),
    )


def _object(holder: Json, key: str, param: str) -> Json:
    value = holder.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        _refuse(param, f"'{key}' must be an object")
    return value


def _name(value: Any) -> str | None:
    """The name of a place on one line."""
    return " ".join(value.split())[:_LONGEST_NAME] or None if isinstance(value, str) else None


def _refuse(param: str, demand: str) -> NoReturn:
    raise RequestError(f"In '{param}' of a web search: {demand}.", param=param)
