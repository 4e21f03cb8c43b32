"""What a search is asked: the schema that models see, the words that they use instead, and the query made of them."""

import re
from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from proxy.loop.chat import Json
from proxy.loop.search import NO_FILTERS, SearchFilters

MOST_RESULTS = 10  # more than ten cost two credits at Serper, and a model reads no more
# Results where neither the model nor the request says how many.
RESULTS_BY_SIZE = {None: 5, "low": 3, "medium": 5, "high": 10}
RECENCIES = ("hour", "day", "week", "month", "year")

PARAMETERS: Json = {
    "type": "object",
    "properties": {
        "query": {"type": "string", "minLength": 1, "description": "what to search for"},
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

# What models and apps call these arguments: `topn` is gpt-oss's own browser, `numResults` the AI SDK's habit; `gl`,
# `hl` and `tbs` are Google's.
_NAMES = {
    "query": ("query", "q", "search_query"),
    "num_results": ("num_results", "numResults", "num", "topn", "count", "max_results"),
    "recency": ("recency", "tbs", "time_range", "freshness"),
    "country": ("country", "gl"),
    "language": ("language", "hl"),
}
_ALL_NAMES = frozenset(name for names in _NAMES.values() for name in names)
_RECENCY_WORDS = {
    **{word: word for word in RECENCIES},
    **{f"qdr:{word[0]}": word for word in RECENCIES},
    **{f"past_{word}": word for word in RECENCIES},
    **{f"past {word}": word for word in RECENCIES},
    **{f"one{word.capitalize()}": word for word in RECENCIES},
}
_DIGITS = re.compile(r"[0-9]{1,4}")
_COUNTRY = re.compile(r"[A-Za-z]{2}")
_LANGUAGE = re.compile(r"[A-Za-z]{2,3}(-[A-Za-z0-9]{2,8})*")


class SearchQuery(Struct, frozen=True):
    """One search.

    Attributes:
        text: what to search for.
        count: how many results.
        recency: only pages of the past hour, day, week, month or year; None: of any time.
        country: two letters, lower case.
        language: such as `en` or `en-CA`.
        filters: what the request demands of all of its searches.
    """

    text: str
    count: int
    recency: str | None = None
    country: str | None = None
    language: str | None = None
    filters: SearchFilters = NO_FILTERS


def repair(arguments: Json) -> Json:
    """The same request in the schema's words; what is not understood is left for the schema to refuse."""
    repaired = {key: value for key, value in arguments.items() if key not in _ALL_NAMES}
    for name, names in _NAMES.items():
        value = _first(arguments, names)
        if value is not None:
            repaired[name] = value
    if "num_results" in repaired:
        repaired["num_results"] = _count(repaired["num_results"])
    recency = repaired.get("recency")
    if isinstance(recency, str):
        repaired["recency"] = _RECENCY_WORDS.get(recency.strip(), recency)
        if not recency.strip():
            del repaired["recency"]
    return {key: value for key, value in repaired.items() if value is not None}


def query_of(arguments: Json, filters: SearchFilters = NO_FILTERS) -> SearchQuery:
    """The query of arguments that fit the schema; what the model leaves open, the request's filters say."""
    country = arguments.get("country") or filters.country or ""
    language = arguments.get("language") or ""
    return SearchQuery(
        text=arguments["query"],
        count=arguments.get("num_results") or filters.count or RESULTS_BY_SIZE[filters.size],
        recency=arguments.get("recency"),
        country=country.lower() if _COUNTRY.fullmatch(country) else None,
        language=language if _LANGUAGE.fullmatch(language) else None,
        filters=filters,
    )


def _count(value: Any) -> Any:
    if isinstance(value, str) and _DIGITS.fullmatch(value.strip()):
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return min(max(value, 1), MOST_RESULTS)
    return value


def _first(arguments: Json, names: Iterable[str]) -> Any:
    return next((arguments[name] for name in names if arguments.get(name) is not None), None)
