"""A search provider as described: turns a query into a request, and an answer into hits or a refusal. Pure.

    SearchQuery --request--> ServiceRequest ~~> status, headers, body --read--> SearchAnswer | Refused

All filters are applied to the hits afterwards, even those that the provider has applied, because providers leak.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, date, timezone
from functools import partial
from typing import Any
from urllib.parse import quote, urlencode, urlsplit, urlunsplit

import orjson
from msgspec import Struct

from proxy.config.keys import KEYLESS
from proxy.kit.json_pointer import resolve
from proxy.tools.exchange import ServiceRequest
from proxy.tools.search.countries import ENGLISH_NAMES
from proxy.tools.search.dates import days_before
from proxy.tools.search.description import Description, PageText
from proxy.tools.search.hits import first_of, hit_of, merged_by_page, plain_text, steps_of
from proxy.tools.search.query import SearchQuery
from proxy.tools.search.refusals import Refused, answer_of
from proxy.tools.template import ABSENT, as_text, filled, items_of, names_in, parsed
from proxy.tools.web.urls import canonical
from proxy.wire.search import NO_FILTERS, SearchFilters, SearchHit

_MOST_PLACES = 20
_MOST_ROWS = 1000  # of one list; no provider sends more than a hundred

PLACEHOLDERS = frozenset(
    ("query", "count", "recency", "since", "country", "language", "allow", "block", "city", "region", "place", "size")
)


class SearchAnswer(Struct, frozen=True):
    """The hits of a search, and the other parts of its answer.

    Attributes:
        hits: the hits in the provider's order.
        answer: a direct answer, if the provider gave one.
        answer_url: the page that the direct answer comes from.
        note: for the operator: a possible fault of the description, if it may be why there are no hits.
    """

    hits: tuple[SearchHit, ...]
    answer: str | None = None
    answer_url: str | None = None
    note: str | None = None


class Provider:
    """A described provider, ready for queries.

    Args:
        description: a description without `faults`.
        name: the provider's name, for clients; None: it is described in the configuration.
        api_key: the operator's key; `none`: no key is sent.
        base_url: replaces scheme, host and leading path of the description's `url`.
        options: replace options of the description.
        page: whether hits have the text of pages, if the provider supports it.
        adapt: converts a successful answer into the form that the description expects.
        zone: of the times in its refusals that name none.

    Attributes:
        address: the URL of the provider, which may have placeholders in path and query.
    """

    def __init__(
        self,
        description: Description,
        *,
        name: str | None = None,
        api_key: str | None = None,
        base_url: str | None = None,
        options: Mapping[str, Any] | None = None,
        page: bool = False,
        adapt: Callable[[Any], Any] | None = None,
        zone: timezone = UTC,
    ) -> None:
        self.description = description
        self.name = name
        self._adapt = adapt
        self._zone = zone
        keyless = description.keyless if api_key == KEYLESS else None
        self.address = url = _with_base((keyless and keyless.url) or description.url, base_url)
        self._page = description.page if page else None
        extra = self._page or PageText()
        headers = {**(keyless.headers if keyless else description.headers), **extra.headers}
        parameters = {**description.query, **extra.query}
        body = {**description.body, **extra.body} if extra.body else description.body
        self._results = tuple(items_of(() if description.results is None else description.results))
        # A search returns as many pages of the results as it asks for, and as many of each list beside them.
        self._lists = (self._results, *((pointers,) for pointers in description.beside))
        self._names_in_url = frozenset(names_in(url))
        self._names = self._names_in_url.union(names_in([parameters, body]))
        self._sends_allow, self._sends_block = "allow" in self._names, "block" in self._names
        key = {"api_key": api_key or ""}
        self._constants = {**description.options, **(options or {})} | key
        self._headers = {name: as_text(filled(parsed(value), key, is_compact=True)) for name, value in headers.items()}
        self._url, self._parameters, self._body = parsed(url), parsed(parameters), parsed(body)
        # A URL without placeholders is the same for all searches.
        self._fixed_url = self._url_with(self._constants) if self._names_in_url.isdisjoint(PLACEHOLDERS) else None

    def request(self, query: SearchQuery, today: date) -> ServiceRequest:
        """The request to send for a query."""
        values = self._values(query, today)
        parts = urlsplit(self._fixed_url or self._url_with(values))
        parameters = filled(self._parameters, values, is_compact=True)
        given = [] if parameters is ABSENT else parameters.items()
        added = [(name, as_text(item)) for name, value in given for item in items_of(value)]
        in_query = "&".join(filter(None, (parts.query, urlencode(added, quote_via=quote))))
        body = filled(self._body, values, is_compact=True)
        return ServiceRequest(
            method=self.description.method,
            url=urlunsplit(parts._replace(query=in_query)),
            headers=self._headers,
            body=None if body is None or body is ABSENT else orjson.dumps(body),
        )

    def _url_with(self, values: Mapping[str, Any]) -> str:
        """The URL with percent-encoded values instead of its placeholders."""
        url: str = filled(self._url, {name: _in_url(values.get(name)) for name in self._names_in_url}, is_compact=True)
        return url

    def read(
        self, query: SearchQuery, status: int, headers: Mapping[str, str], body: bytes, today: date
    ) -> SearchAnswer | Refused:
        """The content of an answer; `headers` are in lower case. An answer that is nested too deep counts as none."""
        filters = query.filters
        try:
            answer = answer_of(self.description, status, headers, body, query=query, zone=self._zone)
            if isinstance(answer, Refused):
                return answer
            answer = self._adapt(answer) if self._adapt else answer
            as_hit = partial(hit_of, fields=self.description.fields, today=today, page=self._page)
            hits: list[SearchHit] = []
            for lists in self._lists:
                pages = merged_by_page(map(as_hit, rows)) if (rows := _rows_in(answer, lists)) else []
                if filters != NO_FILTERS:
                    pages = [hit for hit in pages if filters.permits(hit.url)]
                hits += pages[: query.count]
            hits = merged_by_page(hits)
            note = None if hits or answer == {} else self._why_nothing(answer, today)
            text = plain_text(first_of(answer, self.description.answer), keep_lines=True) or None
            url = canonical(first_of(answer, self.description.answer_url))
            # If pages are filtered, a direct answer has to come from a permitted page.
            if text and filters.has_rules and not (url and filters.permits(url)):
                text = None
            return SearchAnswer(tuple(hits), text, url if text else None, note)
        except (RecursionError, orjson.JSONEncodeError):
            return Refused("down", status, words="its answer is nested too deep")

    def _why_nothing(self, answer: Any, today: date) -> str | None:
        """Why an answer without hits may have been misread; None: its lists of results are empty, or were filtered."""
        listed = _rows_in(answer, self._results)
        if listed is None:
            return f"the answer has no list at {' or '.join(self._results)}; it has {', '.join(_places(answer))}"
        rows = [row for row in listed if isinstance(row, dict)]
        fields = self.description.fields
        if not rows or any(hit_of(row, fields, today) for row in rows):
            return None
        return f"no result has a page's URL at {fields.url}; the first has {', '.join(_places(rows[0]))}"

    def cannot(self) -> list[str]:
        """The filters that the provider itself does not support, and their effect, for `toolproxy check`."""
        operator = self.description.site_operator
        missing = []
        if not (self._sends_allow or operator):
            missing.append("allowed_domains (filtered afterwards)")
        if not (self._sends_block or operator):
            missing.append("blocked_domains (filtered afterwards)")
        if not self._names & {"recency", "since"}:
            missing.append("recency")
        missing += [name for name in ("country", "language") if not self._names & {name, "place"}]
        return missing

    def _values(self, query: SearchQuery, today: date) -> dict[str, Any]:
        """The values of the placeholders, in the provider's terms."""
        most, filters = self.description.most, query.filters
        allow = _bounded(filters.allow, most.allow) if self._sends_allow else ()
        block = _bounded(filters.block, most.block) if self._sends_block else ()
        if self.description.exclusive and allow:
            block = ()
        text, count = self._cut(query.text), query.count
        if filters.allow != allow or filters.block != block:
            if self.description.site_operator:
                text = self._with_sites(text, filters)
            else:  # some of its results are dropped afterwards
                count *= 2
        # A country has its own parameter, and the country that the model asks for need not be that of the user's city.
        is_near = (filters.city or filters.region) and filters.country in {None, query.country}
        values: dict[str, Any] = {
            "query": text,
            "count": min(count, most.count),
            "recency": query.recency,
            "since": days_before(today, query.recency).isoformat() if query.recency else None,
            "country": query.country,
            "language": query.language,
            "allow": list(allow),
            "block": list(block),
            "city": filters.city,
            "region": filters.region,
            "place": filters.place if is_near else None,
            "size": filters.size or "medium",
        }
        for name, words in self.description.values.items():
            value = values.get(name)
            if value is not None and words is not None:  # a value for which the provider has no term is left out
                values[name] = ENGLISH_NAMES.get(value) if words == "names" else words.get(str(value))
        return {**self._constants, **values}

    def _with_sites(self, text: str, filters: SearchFilters) -> str:
        """A query with `site:` operators for filters that the provider does not support otherwise, if that fits."""
        parts = [text] if text else []
        if filters.allow and not self._sends_allow:
            sites = " OR ".join([f"site:{rule}" for rule in filters.allow])
            parts.append(f"({sites})")
        if filters.block and not self._sends_block:
            parts += [f"-site:{rule}" for rule in filters.block]
        with_sites = " ".join(parts)
        return with_sites if self._cut(with_sites) == with_sites else text

    def _cut(self, text: str) -> str:
        """A query within the provider's limits, cut between words if it is too long."""
        most = self.description.most
        if most.query_words is not None:
            text = " ".join(words[: most.query_words]) if len(words := text.split()) > most.query_words else text
        if most.query_characters is not None and len(text) > most.query_characters:
            text = text[: most.query_characters + 1].rsplit(" ", 1)[0][: most.query_characters]
        return text


def _bounded(rules: tuple[str, ...], most: int | None) -> tuple[str, ...]:
    """The rules, if the provider accepts as many; else none, because half a list would be another query."""
    return rules if most is None or len(rules) <= most else ()


def _rows_in(answer: Any, lists: tuple[str, ...]) -> list[Any] | None:
    """The results in all lists, each from the first of its pointers with any results; None: there is no list."""
    rows = None
    for pointers in lists:
        for steps in steps_of(pointers):
            found = resolve(answer, steps)
            if isinstance(found, list):
                rows = [*(rows or ()), *found[:_MOST_ROWS]]
                if found:  # if the list is empty, the next pointer may have results
                    break
    return rows


def _places(value: Any) -> list[str]:
    """Pointers to the values in an object and in the objects in it, for a person who looks for the right one."""
    if not isinstance(value, dict):
        return ["a list" if isinstance(value, list) else "no object"]
    names: list[str] = []
    for outer, inner in value.items():
        names += [f"/{outer}", *(f"/{outer}/{key}" for key in (inner if isinstance(inner, dict) else ()))]
    return names[:_MOST_PLACES] or ["nothing"]


def _in_url(value: Any) -> str | list[str]:
    """A value, or each of several, percent-encoded; empty if there is none, as a URL has no key to leave out."""
    if isinstance(value, list):
        return [quote(as_text(item), safe="") for item in value] or ""
    return "" if value is None else quote(as_text(value), safe="")


def _with_base(url: str, base_url: str | None) -> str:
    """The URL with another base, for an operator's own server or a test."""
    if base_url is None:
        return url
    parts = urlsplit(url)
    return base_url.rstrip("/") + urlunsplit(("", "", parts.path, parts.query, ""))
