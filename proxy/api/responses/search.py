"""The hosted `web_search` of the Responses API on the server's own search: its settings, applied to each call."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import orjson
from msgspec.structs import replace

from proxy.loop.chat import Json, ToolCall, ToolOutput, ToolSpec
from proxy.loop.errors import RequestError
from proxy.loop.offer import SEARCH
from proxy.loop.prompts import WHERE
from proxy.ports import Toolset

_QUERY_NAMES = ("query", "q")
# Results for each `search_context_size`; medium is the tool's own default.
_RESULTS = {"low": 3, "medium": None, "high": 10}
_DOMAIN = re.compile(r"[A-Za-z0-9.-]{1,253}")
_COUNTRY = re.compile(r"[A-Za-z]{2}")
_MAX_DOMAINS = 20  # OpenAI takes a hundred; a query of Google's has 32 words


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """A client's settings for its searches.

    Attributes:
        domains: search these and their subdomains alone; empty: search anywhere.
        results: how many; None: the search tool's own default.
        country: two letters, lower case.
        place: where the user is, in words.
    """

    domains: tuple[str, ...] = ()
    results: int | None = None
    country: str | None = None
    place: str | None = None

    @property
    def instruction(self) -> str | None:
        """The sentence about them for the model."""
        return WHERE.format(place=self.place) if self.place else None

    def applied(self, arguments: Json, known: Mapping[str, Any]) -> Json:
        """A call's arguments with the settings in them; `known` are the properties that the tool takes."""
        changed = dict(arguments)
        name = next((name for name in _QUERY_NAMES if isinstance(arguments.get(name), str)), None)
        if name and self.domains:
            changed[name] = f"{arguments[name]} ({' OR '.join(f'site:{domain}' for domain in self.domains)})"
        for key, value in (("num_results", self.results), ("gl", self.country)):
            if value is not None and key in known:
                changed.setdefault(key, value)
        return changed

    def allows(self, url: str) -> bool:
        """Whether a page may be a source."""
        if not self.domains:
            return True
        host = (urlsplit(url).hostname or "").lower()
        return any(host == domain or host.endswith(f".{domain}") for domain in self.domains)


def read_settings(tool: Json) -> SearchSettings:
    """The settings of a declared search; everything may be null. Raises `RequestError`."""
    size = tool.get("search_context_size") or "medium"
    if not isinstance(size, str) or size not in _RESULTS:
        raise RequestError(f"'search_context_size' must be one of {', '.join(_RESULTS)}.", param="tools")
    where = _object(tool, "user_location")
    named = [where[key] for key in ("city", "region", "country") if isinstance(where.get(key), str) and where[key]]
    country = where.get("country")
    return SearchSettings(
        _domains(_object(tool, "filters").get("allowed_domains") or []),
        _RESULTS[size],
        country.lower() if isinstance(country, str) and _COUNTRY.fullmatch(country) else None,
        ", ".join(named)[:200] or None,
    )


def _object(tool: Json, key: str) -> Json:
    value = {} if tool.get(key) is None else tool[key]
    if not isinstance(value, dict):
        raise RequestError(f"'{key}' of a web search must be an object.", param="tools")
    return value


def _domains(listed: Any) -> tuple[str, ...]:
    fine = isinstance(listed, list) and len(listed) <= _MAX_DOMAINS
    if not fine or not all(isinstance(domain, str) and _DOMAIN.fullmatch(domain) for domain in listed):
        raise RequestError(f"'allowed_domains' must be a list of at most {_MAX_DOMAINS} domains.", param="tools")
    return tuple(domain.lower() for domain in listed)


@dataclass(frozen=True, slots=True)
class ConfiguredSearch:
    """The server tools, with a client's settings for the search. Implements `ports.Toolset`.

    Attributes:
        inner: the server tools.
        settings: of the search.
        found: by call id, the pages that calls have found: URL -> title.
    """

    inner: Toolset
    settings: SearchSettings = field(default_factory=SearchSettings)
    found: dict[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def specs(self) -> Mapping[str, ToolSpec]:
        """Every usable tool by its own name."""
        return self.inner.specs

    async def execute(self, call: ToolCall, *, patience: float, at_most: float, scope: str) -> ToolOutput:
        """Run one call. Raises `ToolError`."""
        output = await self.inner.execute(self._configured(call), patience=patience, at_most=at_most, scope=scope)
        if call.name == SEARCH:
            output = replace(output, sources=self._allowed(output.sources))
        self.found[call.id] = output.sources
        return output

    def _configured(self, call: ToolCall) -> ToolCall:
        try:
            arguments = orjson.loads(call.arguments) if call.name == SEARCH else None
        except orjson.JSONDecodeError:  # the tool refuses it, with the reason
            return call
        if not isinstance(arguments, dict):
            return call
        known = self.specs[SEARCH].parameters.get("properties") or {}
        try:
            return replace(call, arguments=orjson.dumps(self.settings.applied(arguments, known)).decode())
        except orjson.JSONEncodeError:  # nested too deep: the tool refuses it as well
            return call

    def _allowed(self, sources: Mapping[str, str]) -> Mapping[str, str]:
        return {url: title for url, title in sources.items() if self.settings.allows(url)}


def query_of(arguments: str) -> str:
    """The query in a search's arguments; empty where there is none."""
    try:
        parsed = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return ""
    if not isinstance(parsed, dict):
        return ""
    return next((parsed[name] for name in _QUERY_NAMES if isinstance(parsed.get(name), str)), "")
