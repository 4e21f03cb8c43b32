"""Refusals of a search provider: finds the cause by the status or the body of an answer. Pure.

A provider may quote the query, and a server in front of it may refuse a query for what stands in it. Neither says
anything of the key, of its credit, or of the service.
"""

import re
from collections.abc import Callable, Mapping
from datetime import timezone
from functools import cache, partial
from typing import Any, Literal

import orjson
from msgspec import Struct

from proxy.keys.reset_times import Reset, reset_of
from proxy.kit.sent import Sent
from proxy.loop.results import Cause
from proxy.tools.search.description import Description, Meaning, Refusal
from proxy.tools.search.hits import first_of, plain_text
from proxy.tools.search.query import SearchQuery
from proxy.tools.template import as_text, items_of
from proxy.wire.json_values import holds_too_many_values

# The meaning of a status for which a description has no rule. A 404 is never the fault of a query.
_MEANINGS: Mapping[int, Meaning] = {
    401: "key", 402: "quota", 403: "key", 404: "down", 405: "down", 408: "down", 410: "down", 425: "busy", 429: "busy",
}  # fmt: skip
_HINTS: Mapping[int, str] = dict.fromkeys((404, 405, 410), "is the URL right?")
_SUCCESS, _CLIENT_ERRORS = range(200, 300), range(400, 500)
_WORDS = (  # where services put the reason of a failure, the most informative place first
    "/error/message or /error/detail or /error/description or /errors/0/message or /errors/0/detail or /message"
    " or /detail/error or /detail/0/msg or /detail or /error_description or /error or /title"
)
_LONGEST_WORDS = 200
_MOST_VALUES = 100_000  # of an answer; a hundred results have some thousand
_LONGEST_WAIT = 40 * 86400.0  # seconds; longer than a monthly quota
_CODE = re.compile(r"[a-z0-9_.-]+")  # which no quotation is
_ABOUT_ALL = frozenset({"key", "quota", "busy", "down"})  # what is remembered, and holds for other searches
_FORBIDDEN = 403
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


class Refused(Struct, frozen=True):
    """A provider's refusal of a search.

    Attributes:
        means: the kind of refusal.
        status: the HTTP status.
        wait: the seconds until the provider may be called again; None: unknown.
        hint: advice for the operator.
        reset: when its quota begins anew, where the provider says that elsewhere; None: unknown.
        words: the provider's own words, for the log, which masks keys; they may repeat the key.
    """

    means: Cause | Literal["input"]
    status: int
    wait: float | None = None
    hint: str | None = None
    words: str = ""
    reset: Reset | None = None


def answer_of(
    description: Description,
    status: int,
    headers: Mapping[str, str],
    body: bytes,
    *,
    query: SearchQuery,
    zone: timezone,
) -> dict[str, Any] | list[Any] | Refused:
    """The JSON of an answer to a query, empty if the provider reports that nothing was found."""
    if holds_too_many_values(body, _MOST_VALUES):
        return Refused("down", status, words=f"its answer holds more than {_MOST_VALUES} values")
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        answer = None
    sent = cache(partial(_sent, query))  # most answers are not compared with it
    means: Meaning
    for rule in description.errors:
        if _fits(rule, status, answer, sent):
            means, hint = rule.means, rule.hint
            break
    else:
        if status in _SUCCESS:
            return answer if isinstance(answer, (dict, list)) else Refused("down", status)
        means = _MEANINGS.get(status, "input" if status in _CLIENT_ERRORS else "down")
        if status == _FORBIDDEN and body.lstrip().startswith(b"<"):  # the page of a firewall, which dislikes the query
            means = "down"
        hint = _HINTS.get(status)
    if means == "empty":
        return {}
    words = plain_text(first_of(answer, _WORDS))[:_LONGEST_WORDS]
    reset = None
    if means in ("quota", "busy"):
        reset = reset_of(headers, answer if isinstance(answer, dict) else {}, words, zone=zone, is_quoted=sent().says)
    return Refused(means, status, _wait(description, headers, answer), hint, words, reset)


def _wait(description: Description, headers: Mapping[str, str], answer: Any) -> float | None:
    """The seconds until the provider may be called again; None: unknown."""
    wait = description.wait
    values = [headers.get("retry-after"), headers.get(wait.header or ""), wait.at and first_of(answer, wait.at)]
    for value in values:
        found = _NUMBER.match(as_text(value).strip()) if value not in (None, "") else None
        if found:
            return min(float(found[0]), _LONGEST_WAIT)
    return None


def _sent(query: SearchQuery) -> Sent:
    """What a model or a client has chosen of a search."""
    filters = query.filters
    places = filter(None, (filters.city, filters.region, filters.country, query.country, query.language))
    return Sent(*(text.encode("utf-8", "replace") for text in (query.text, *filters.allow, *filters.block, *places)))


def _fits(rule: Refusal, status: int, answer: Any, sent: Callable[[], Sent]) -> bool:
    if (rule.status and status not in items_of(rule.status)) or first_of(answer, rule.unless) is not None:
        return False
    if not rule.at:
        return bool(rule.status)
    found = first_of(answer, rule.at)
    if found is None or not rule.text:
        return found is not None
    given = as_text(found).lower()
    may_be_quoted = rule.means in _ABOUT_ALL and _CODE.fullmatch(given) is None
    return any(text.lower() in given and not (may_be_quoted and sent().says(text)) for text in items_of(rule.text))
