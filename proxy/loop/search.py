"""What a web search is asked for and what it finds, whatever provider runs it. Pure values.

A hit is the one record of a page found: the text for the model, the sources and citations for the client, and the
result blocks of every API are made of it. Filters are what a request demands of all of its searches; they are sent to a
provider that understands them, and hold afterwards in any case.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, TypeAlias, get_args
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from proxy.loop.urls import ascii_host, without_dots

Size: TypeAlias = Literal["low", "medium", "high"]
SIZES: tuple[Size, ...] = get_args(Size)
Recency: TypeAlias = Literal["hour", "day", "week", "month", "year"]
RECENCIES: tuple[Recency, ...] = get_args(Recency)

# A domain, and possibly a path below it, as a filter names them. What is not ASCII is left to IDNA.
_LABEL = r"[a-z0-9_\x80-\U0010ffff-]{1,63}"
_RULE = re.compile(rf"((?:\*\.)?)({_LABEL}(?:\.{_LABEL})*\.?)((?:/[^\s?#\\]{{0,500}})?)", re.IGNORECASE)
_ENCODED_SLASH = re.compile(r"%(?:2f|5c)", re.IGNORECASE)

COUNTRY = re.compile(r"[A-Za-z]{2}")
"""A country as models and clients name it; `SearchFilters` has it in lower case."""

MOST_DOMAINS = 100  # in one list of a filter, as OpenAI permits
MOST_RESULTS = 10  # of one search: more cost two credits at Serper, and a model reads no more


class SearchHit(Struct, frozen=True):
    """A page that a search found.

    Attributes:
        url: absolute, http or https, without tracking parameters.
        title: plain text on one line; the host where the provider gives no title.
        text: what the provider says of the page: a snippet, or the text of the page itself. Plain text.
        published: the day on which the page appeared, `YYYY-MM-DD`; None: unknown.
        updated: the day on which the page was last changed; None: unknown.
        site: the name of the site or publisher, if the provider gives one.
        score: the provider's own measure of relevance.
        is_page: whether `text` is the whole text of the page.
        address: the URL as the provider gave it, where `url` is another one for the same page.
    """

    url: str
    title: str
    text: str = ""
    published: str | None = None
    updated: str | None = None
    site: str | None = None
    score: float | None = None
    is_page: bool = False
    address: str | None = None


class SearchFilters(Struct, frozen=True):
    """The demands of a request on its searches.

    Attributes:
        allow: domains, or paths below a domain; if there are any, no other page reaches model or client.
        block: domains, or paths below a domain, whose pages reach neither model nor client.
        country: two letters, lower case.
        region: of the user, in words.
        city: of the user, in words.
        size: how much text a search may bring.
        count: how many results, where the model does not say.
        recency: only pages of the past hour, day, week, month or year, where the model does not say.
    """

    allow: tuple[str, ...] = ()
    block: tuple[str, ...] = ()
    country: str | None = None
    region: str | None = None
    city: str | None = None
    size: Size | None = None
    count: int | None = None
    recency: Recency | None = None

    def permits(self, url: str) -> bool:
        """Whether the page at `url` may reach model and client, whether or not its server decodes slashes in paths."""
        readings = {url, _ENCODED_SLASH.sub("/", url)} if self.has_rules else ()
        return all(self._permits(reading) for reading in readings)

    def _permits(self, url: str) -> bool:
        if self.allow and not any(covers(rule, url) for rule in self.allow):
            return False
        return not (self.block and any(covers(rule, url) for rule in self.block))

    @property
    def has_rules(self) -> bool:
        """Whether there are pages that it does not permit."""
        return bool(self.allow or self.block)

    @property
    def place(self) -> str | None:
        """The user's city, region and country in one line."""
        return ", ".join(filter(None, (self.city, self.region, self.country and self.country.upper()))) or None


NO_FILTERS = SearchFilters()


def domain_rule(text: str) -> str | None:
    """A rule of a filter, such as `example.com` or `example.com/blog`, its domain in punycode; None: it is none."""
    if (parts := _RULE.fullmatch(text)) is None:
        return None
    wildcard, domain, path = parts.groups()
    host = domain if domain.isascii() else ascii_host(domain)
    return None if host is None else f"{wildcard}{host}{path}"


def covers(rule: str, url: str) -> bool:
    """Whether a filter's `rule` covers the page at `url`.

    A domain covers its subdomains; `*.example.com` covers only those. A path covers itself and what is below it;
    `*` in a path stands for any characters. Dot segments are resolved before a path is compared.
    """
    domain, path = _parsed(rule)
    try:
        parts = urlsplit(url.replace("\\", "/"))  # as browsers read it
        name = unquote(parts.hostname or "")
    except ValueError:  # not a URL: no allowed page, and no page that a client could reach
        return False
    host = (ascii_host(name) or name).rstrip(".")
    below = host.endswith("." + domain.removeprefix("*."))
    if not below and (domain.startswith("*.") or host != domain):
        return False
    return path is None or bool(path.match(unquote(without_dots(parts.path))))


def common(rules: Sequence[str], others: Sequence[str]) -> tuple[str, ...]:
    """The rules for the pages that both of two lists cover; empty: there are none."""
    both = (_common_rule(rule, other) for rule in rules for other in others)
    return tuple(dict.fromkeys(rule for rule in both if rule is not None))


def _common_rule(rule: str, other: str) -> str | None:
    """The narrower of two domains with the narrower of their paths; None where neither is within the other."""
    (domain, _, path), (other_domain, _, other_path) = rule.partition("/"), other.partition("/")
    narrower = _narrower(domain, other_domain)
    below = _narrower(f"x/{path}", f"x/{other_path}") if narrower else None
    return f"{narrower}/{below[2:]}".rstrip("/") if below else None


def _narrower(rule: str, other: str) -> str | None:
    if covers(rule, f"https://{other}"):  # a `*` in it is a character like any other for the one that covers it
        return other
    return rule if covers(other, f"https://{rule}") else None


@lru_cache(maxsize=1024)
def _parsed(rule: str) -> tuple[str, "re.Pattern[str] | None"]:
    """The domain of a rule in ASCII, and a pattern of the paths that it covers."""
    domain, slash, path = (domain_rule(rule) or rule).partition("/")
    path = unquote(without_dots(slash + path)).rstrip("/")
    pieces = [re.escape(piece) for piece in path.split("*")]
    pieces[-1] += r"(?:/|\Z)"
    # The first place of a piece is as good as any later one; to try them all would take years where there are ten `*`.
    pattern = pieces[0] + "".join(f"(?>.*?{piece})" for piece in pieces[1:])
    return domain.lower().rstrip("."), re.compile(pattern, re.DOTALL) if path else None
