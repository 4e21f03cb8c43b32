"""The filters and the hits of a web search, whatever provider runs it. Pure values.

A hit is the only record of a page that was found: the text for the model, the sources and citations for the client, and
the result blocks of every API are made from hits. Filters are the demands of a request on all of its searches. They are
sent to providers that support them, and are applied to the hits in any case.
"""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal, TypeAlias, get_args
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from proxy.wire.urls import ascii_host, without_dots

Size: TypeAlias = Literal["low", "medium", "high"]
SIZES: tuple[Size, ...] = get_args(Size)
Recency: TypeAlias = Literal["hour", "day", "week", "month", "year"]
RECENCIES: tuple[Recency, ...] = get_args(Recency)

# A domain, perhaps with a path, as in a filter. Characters beyond ASCII are left to IDNA.
_LABEL = r"[a-z0-9_\x80-\U0010ffff-]{1,63}"
_RULE = re.compile(rf"((?:\*\.)?)({_LABEL}(?:\.{_LABEL})*\.?)((?:/[^\s?#\\]{{0,500}})?)", re.IGNORECASE)
_ENCODED_SLASH = re.compile(r"%(?:2f|5c)", re.IGNORECASE)

COUNTRY = re.compile(r"[A-Za-z]{2}")
"""A country as models and clients write it; in `SearchFilters` it is in lower case."""

MOST_DOMAINS = 100  # in one list of a filter, as OpenAI permits
MOST_QUERIES = 5  # in the list of one call
MOST_RESULTS = 10  # of one search; more of them cost two credits at Serper, and a model reads no more


class SearchHit(Struct, frozen=True):
    """A page that a search found.

    Attributes:
        url: an absolute http or https URL without tracking parameters.
        title: plain text on one line; the host if the provider gives no title.
        text: the provider's plain text for the page: a snippet, or the text of the page itself.
        published: the day on which the page appeared, `YYYY-MM-DD`; None: unknown.
        updated: the day on which the page was last changed; None: unknown.
        site: the name of the site or publisher, if the provider gives one.
        score: the provider's own measure of relevance.
        is_page: whether `text` is the whole text of the page.
        of_page: whether `text` is text of the page, in whole or in parts, and no snippet.
        address: the URL as the provider gave it, if `url` is another URL of the same page.
        query: the query that found the page, of a call with several.
    """

    url: str
    title: str
    text: str = ""
    published: str | None = None
    updated: str | None = None
    site: str | None = None
    score: float | None = None
    is_page: bool = False
    of_page: bool = False
    address: str | None = None
    query: str | None = None

    @property
    def where(self) -> str:
        """Its site and day, as the model reads them on a line of their own; empty if neither is known."""
        dated = self.published or (f"updated {self.updated}" if self.updated else "")
        return " - ".join(filter(None, (self.site, dated)))


class Reading(Struct, frozen=True):
    """How the pages that a search has found are read, so that the model gets passages in the place of snippets.

    Attributes:
        pages: how many pages are read, the first of the hits.
        characters: the limit for the passages of one page.
        seconds: the time for all pages together.
        everywhere: whether the hosts may be read that the operator opens to `web_fetch` in addition to public ones.
    """

    pages: int
    characters: int = 1500
    seconds: float = 4.0
    everywhere: bool = True


class SearchFilters(Struct, frozen=True):
    """The demands of a request on its searches.

    Attributes:
        allow: domains, or paths below a domain; if there are any, only their pages reach the model and the client.
        block: domains, or paths below a domain, whose pages reach neither the model nor the client.
        country, region, city: the user's place; the country has two lower-case letters.
        size: how much text a search may return.
        count: the number of results, if the model names none.
        recency: only pages of the past hour, day, week, month or year, if the model names no period.
        reading: how the pages that are found are read, as the tool has it; None: they are not.
    """

    allow: tuple[str, ...] = ()
    block: tuple[str, ...] = ()
    country: str | None = None
    region: str | None = None
    city: str | None = None
    size: Size | None = None
    count: int | None = None
    recency: Recency | None = None
    reading: Reading | None = None

    def permits(self, url: str) -> bool:
        """Whether the page at `url` may reach model and client, even if its server decodes the slashes in its path."""
        readings = {url, _ENCODED_SLASH.sub("/", url)} if self.has_rules else ()
        is_blocked = any(covers(rule, reading) for rule in self.block for reading in readings)
        is_allowed = all(any(covers(rule, reading) for rule in self.allow) for reading in readings)
        return not is_blocked and (is_allowed or not self.allow)

    @property
    def has_rules(self) -> bool:
        """Whether there are pages that the filters do not permit."""
        return bool(self.allow or self.block)

    @property
    def place(self) -> str | None:
        """The user's city, region and country in one line."""
        return ", ".join(filter(None, (self.city, self.region, self.country and self.country.upper()))) or None


NO_FILTERS = SearchFilters()


def queries_of(arguments: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """The queries of a call, each once, and those that are too many; none if one of them is not a text.

    They are the one in `query` and at most `MOST_QUERIES` in `queries`; some models write the list in `query`.
    """
    single, listed = arguments.get("query"), arguments.get("queries")
    if isinstance(single, list) and listed is None:
        single, listed = None, single
    wanted = [*([] if single is None else [single]), *(listed if isinstance(listed, list) else [listed or ""])]
    if not all(isinstance(text, str) for text in wanted):
        return [], []
    texts = list(dict.fromkeys(text for text in wanted if text.strip()))
    most = MOST_QUERIES + (single is not None and single not in (listed or ()))
    return texts[:most], texts[most:]


def with_queries(arguments: Mapping[str, Any], queries: Sequence[str]) -> dict[str, Any]:
    """The arguments with these queries, of which there is at least one."""
    others = {name: value for name, value in arguments.items() if name not in ("query", "queries")}
    return {"query": queries[0], **({"queries": list(queries[1:])} if len(queries) > 1 else {}), **others}


def domain_rule(text: str) -> str | None:
    """A filter's rule, such as `example.com` or `example.com/blog`, in punycode; None: the text is not a rule."""
    if (parts := _RULE.fullmatch(text)) is None:
        return None
    wildcard, domain, path = parts.groups()
    host = domain if domain.isascii() else ascii_host(domain)
    return None if host is None else f"{wildcard}{host}{path}"


def covers(rule: str, url: str) -> bool:
    """Whether a filter's `rule` covers the page at `url`.

    A domain covers its subdomains as well; `*.example.com` covers only subdomains. A path covers itself and all paths
    below it; `*` in a path stands for any characters. Dot segments are resolved before paths are compared.
    """
    domain, path = _parsed(rule)
    try:
        parts = urlsplit(url.replace("\\", "/"))  # as browsers read it
        name = unquote(parts.hostname or "")
    except ValueError:  # not a URL, so neither an allowed page nor a page that a client could reach
        return False
    host = (ascii_host(name) or name).rstrip(".")
    below = host.endswith("." + domain.removeprefix("*."))
    if not below and (domain.startswith("*.") or host != domain):
        return False
    return path is None or bool(path.match(unquote(without_dots(parts.path))))


def common(rules: Sequence[str], others: Sequence[str]) -> tuple[str, ...]:
    """The rules for the pages that both lists cover; empty: there are no such pages."""
    both = (_common_rule(rule, other) for rule in rules for other in others)
    return tuple(dict.fromkeys(rule for rule in both if rule is not None))


def _common_rule(rule: str, other: str) -> str | None:
    """The narrower of two domains with the narrower of their paths; None: neither contains the other."""
    (domain, _, path), (other_domain, _, other_path) = rule.partition("/"), other.partition("/")
    narrower = _narrower(domain, other_domain)
    below = _narrower(f"x/{path}", f"x/{other_path}") if narrower else None
    return f"{narrower}/{below[2:]}".rstrip("/") if below else None


def _narrower(rule: str, other: str) -> str | None:
    if covers(rule, f"https://{other}"):  # in the covered rule, `*` is an ordinary character
        return other
    return rule if covers(other, f"https://{rule}") else None


@lru_cache(maxsize=1024)
def _parsed(rule: str) -> tuple[str, "re.Pattern[str] | None"]:
    """The domain of a rule in ASCII, and a pattern of the paths that it covers."""
    domain, slash, path = (domain_rule(rule) or rule).partition("/")
    path = unquote(without_dots(slash + path)).rstrip("/")
    pieces = [re.escape(piece) for piece in path.split("*")]
    pieces[-1] += r"(?:/|\Z)"
    # The first match of a piece is as good as any later one; with ten `*`, trying them all would take years.
    pattern = pieces[0] + "".join(f"(?>.*?{piece})" for piece in pieces[1:])
    return domain.lower().rstrip("."), re.compile(pattern, re.DOTALL) if path else None
