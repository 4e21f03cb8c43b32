"""The query of a search: the schema for models, other names for its arguments, and the query itself."""

import re
from typing import Any

from msgspec import Struct

from proxy.tools.result_filter import DOMAIN_LISTS
from proxy.wire.chat import Json
from proxy.wire.search import (
    COUNTRY,
    MOST_QUERIES,
    MOST_RESULTS,
    NO_FILTERS,
    RECENCIES,
    SearchFilters,
    queries_of,
    with_queries,
)

# The number of results if neither the model nor the request names one.
RESULTS_BY_SIZE = {None: 5, "low": 3, "medium": 5, "high": 10}

PARAMETERS: Json = {
    "type": "object",
    "properties": {
        "query": {"type": "string", "minLength": 1, "description": "what to search for"},
        "queries": {
            "type": "array",
            "items": {"type": "string", "minLength": 1},
            "maxItems": MOST_QUERIES,
            "description": "further queries, which are searched at the same time",
        },
        "num_results": {
            "type": "integer",
            "minimum": 1,
            "maximum": MOST_RESULTS,
            "description": f"how many results; {RESULTS_BY_SIZE[None]} if left out",
        },
        "recency": {"type": "string", "enum": list(RECENCIES), "description": "only pages of the past hour ... year"},
        "country": {"type": "string", "description": "country of the search, two letters, e.g. ca"},
        "language": {"type": "string", "description": "language of the results, e.g. en"},
    },
    "required": ["query"],
}

# Other names of these arguments in models and apps: `topn` is from gpt-oss's own browser, `numResults` from the AI SDK,
# and `gl`, `hl` and `tbs` are from Google.
_NAMES = {
    "query": ("query", "q", "search_query"),
    "num_results": ("num_results", "numResults", "num", "topn", "count", "max_results"),
    "recency": ("recency", "tbs", "time_range", "freshness"),
    "country": ("country", "gl"),
    "language": ("language", "hl"),
}
_ALL_NAMES = frozenset(name for names in _NAMES.values() for name in names)
# The ages in services and apps: `qdr:d3`, `oneWeek`, `past_month`, `past 24 hours`, `last-7-days`, `pw`, `2d`.
_AGE = re.compile(
    r"(?:qdr:|one|p|(?:past|last)[ _-]?)?(?P<before>[0-9]{0,3})[ _-]?"
    r"(?P<unit>minute|hour|day|week|month|year|[nhdwmy])s?(?P<after>[0-9]{0,3})",
    re.IGNORECASE,
)
_ANY_AGE = frozenset(("", "any", "all", "anytime", "any time", "nolimit"))
_HOURS = {"minute": 0, "n": 0, "h": 1, "d": 24, "w": 168, "m": 732, "y": 8784}  # such that twelve months are one year
_DIGITS = re.compile(r"[0-9]{1,4}")
_LANGUAGE = re.compile(r"[A-Za-z]{2}([-_][A-Za-z0-9]{2,8})*")  # providers get `pt` for `pt-BR`


class SearchQuery(Struct, frozen=True):
    """A search as requested.

    Attributes:
        text: the text to search for, one of several if the call has more queries.
        count: the number of results.
        recency: only pages of the past hour, day, week, month or year; None: pages of any age.
        country: two lower-case letters.
        language: a language such as `en` or `en-CA`.
        filters: the filters of the request for all of its searches.
    """

    text: str
    count: int
    recency: str | None = None
    country: str | None = None
    language: str | None = None
    filters: SearchFilters = NO_FILTERS


def repair(arguments: Json) -> Json:
    """The arguments with the names and values of the schema; unknown ones are left for the schema to refuse."""
    repaired = {key: value for key, value in arguments.items() if key not in _ALL_NAMES}
    for name, synonyms in _NAMES.items():
        for synonym in synonyms:
            if (value := arguments.get(synonym)) is not None:
                repaired[name] = value if synonym == "query" else _single(value)
                break
    if "queries" in arguments or isinstance(arguments.get("query"), list):  # as `loop.queries` counts them
        queries, beyond = queries_of(repaired)
        if queries and not beyond:
            repaired = with_queries(repaired, queries)
    elif "query" not in repaired and (text_name := _name_of_query(repaired)) is not None:
        repaired["query"] = _single(repaired.pop(text_name))
    if "num_results" in repaired:
        repaired["num_results"] = _count(repaired["num_results"])
    if isinstance(recency := repaired.pop("recency", None), str):
        recency = _recency(recency)
    if recency is not None:
        repaired["recency"] = recency
    return repaired


def query_of(arguments: Json, filters: SearchFilters = NO_FILTERS) -> SearchQuery:
    """The query for arguments that fit the schema, with the request's filters as defaults."""
    country = arguments.get("country") or filters.country or ""
    language = arguments.get("language") or ""
    return SearchQuery(
        text=arguments["query"],
        count=arguments.get("num_results") or filters.count or RESULTS_BY_SIZE[filters.size],
        recency=arguments.get("recency") or filters.recency,
        country=country.lower() if COUNTRY.fullmatch(country) else None,
        language=language[:2].lower() if _LANGUAGE.fullmatch(language) else None,
        filters=filters,
    )


def _name_of_query(arguments: Json) -> str | None:
    """The name of the only text among arguments with unknown names; None: none of them, or several, are texts."""
    unknown = arguments.keys() - _ALL_NAMES.union(DOMAIN_LISTS)
    texts = [name for name in unknown if isinstance(text := _single(arguments[name]), str) and text.strip()]
    return texts[0] if len(texts) == 1 else None


def _single(value: Any) -> Any:
    """The text in a list of one text; any other value as it is."""
    return value[0] if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str) else value


def _recency(value: str) -> str | None:
    """The shortest of the `RECENCIES` that covers the requested age; None: any age."""
    named = value.strip().lower()
    if named in _ANY_AGE:
        return None
    age = _AGE.fullmatch(named)
    if age is None:
        return value
    unit = age["unit"] if age["unit"] in _HOURS else age["unit"][0]
    hours = int(age["before"] or age["after"] or 1) * _HOURS[unit]
    return next((name for name in RECENCIES if hours <= _HOURS[name[0]]), None)


def _count(value: Any) -> Any:
    if isinstance(value, str) and _DIGITS.fullmatch(value.strip()):
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return min(max(value, 1), MOST_RESULTS)
    return value
