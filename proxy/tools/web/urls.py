"""URLs of pages: one form for each page, without tracking parameters. Pure.

`canonical` makes the URL that model and client get: a model copies a shorter URL without mistakes. `page_key` is equal
for two URLs of the same page, and is never shown.
"""

import base64
import binascii
import re
from collections.abc import Sequence
from functools import lru_cache
from urllib.parse import SplitResult, parse_qs, quote, unquote, urlsplit

from proxy.loop.results import ToolError
from proxy.tools.web.guard import canonical_host
from proxy.wire.urls import without_dots

# Parameters that advertisers and mailing lists add, and that no page needs. `ref`, `source` and `id` are not included,
# because some pages need these.
_TRACKERS = (
    r"utm_[a-z_]+|gclid|gclsrc|dclid|gbraid|wbraid|fbclid|msclkid|srsltid|yclid|ysclid|twclid|ttclid|li_fat_id|igshid|"
    r"mc_cid|mc_eid|_hsenc|_hsmi|mkt_tok|_ga|_gl|vero_id|oly_anon_id|oly_enc_id"
)
_TRACKING = re.compile(rf"(?:{_TRACKERS})(?:=.*)?", re.IGNORECASE)
# A URL that is canonical already, unless it has tracking parameters or dot segments, or is a redirect.
_PLAIN = re.compile(r"https?://[a-z0-9.-]+(?:/[\w/%:@!$&'()*+,;=~.-]*)?(?:\?[\w/%:@!$&'()*+,;=~?.-]+)?", re.ASCII)
_TRACKS = re.compile(rf"[?&](?:{_TRACKERS})(?:[=&]|\Z)", re.IGNORECASE)
_NOT_IN_A_URL = re.compile(r'[ \\<>"`]')
_TEXT_FRAGMENT = re.compile(r":~:.*\Z", re.DOTALL)  # https://wicg.github.io/scroll-to-text-fragment/
_DEFAULT_PORTS = {"http": 80, "https": 443}
_DEFAULT_PORT = re.compile(r":(?:80|443)?\Z")
_PARTS = re.compile(r"https?://(?:www\.)?([^/?#]*)([^?#]*)\??([^#]*)", re.IGNORECASE)  # RFC 3986, appendix B
_LONGEST = 2048  # browsers do not open much longer URLs, and models do not copy them
_MOST_HOPS = 3  # redirects within redirects

_ENGINES = ("google", "duckduckgo", "bing", "facebook", "yahoo")  # hosts of redirects have one of these names
# Redirects of search engines: host and path, and the parameters that may name the target. Yahoo's have it in the path.
# Redirects without a target expire, and hide its site.
_REDIRECTS = [
    (re.compile(pattern), names)
    for pattern, names in (
        (r"(?:.+\.)?google\.[a-z.]{2,6}/url", ("q", "url")),
        (r"(?:.+\.)?google\.[a-z.]{2,6}/(?:goto|aclk)", ()),
        (r"(?:.+\.)?duckduckgo\.com/l/?", ("uddg",)),
        (r"(?:.+\.)?duckduckgo\.com/y\.js", ()),
        (r"(?:.+\.)?bing\.com/ck/a", ("u",)),
        (r"(?:.+\.)?bing\.com/aclick", ()),
        (r"l\.facebook\.com/l\.php", ("u",)),
        (r"(?:.+\.)?yahoo\.com/.*RU=([^/]*).*", ()),  # .../RU=https%3a%2f%2fexample.com/RK=...
        (r"vertexaisearch\.cloud\.google\.com/grounding-api-redirect/.*", ()),
    )
]


def canonical(url: object) -> str | None:
    """The URL of a hit as it is shown; None: it is not the URL of a page, or of an unknown page.

    Scheme and host are in lower case, the host in punycode. The default port, dot segments, tracking parameters and
    text fragments are removed, and characters that are not valid in a URL are encoded. A redirect of a search engine is
    replaced by its target if that is in the URL.
    """
    if not isinstance(url, str):
        return None
    # A dot segment begins with a dot, which may be encoded as %2e.
    is_plain = len(url) <= _LONGEST and _PLAIN.fullmatch(url) and "/." not in url and "/%2" not in url
    query = url.find("?")
    if is_plain and not any(map(url.__contains__, _ENGINES)) and (query < 0 or not _TRACKS.search(url, query)):
        return url
    for _ in range(_MOST_HOPS + 1):
        if (split := _split(url)) is None:
            return None
        parts, host, port = split
        for redirect, names in _REDIRECTS:
            if found := redirect.fullmatch(host + parts.path):
                url = _target(parts, found, names)
                break
        else:
            return _joined(parts, host, port)
    return None


def is_address_of(given: str, url: str) -> bool:
    """Whether a provider's URL is that of the page with the canonical URL `url`, and not a redirect to it."""
    parts, canonical_parts = urlsplit(given), urlsplit(url)
    return (_host(parts.hostname or ""), _encoded(parts.path)) == (canonical_parts.hostname, canonical_parts.path)


@lru_cache(maxsize=1024)  # the key of each result is needed several times
def page_key(url: str) -> str:
    """A key for all URLs of a page: with http or https, with or without `www.` and a slash at the end, any fragment."""
    if (parts := _PARTS.match(url)) is None:
        return url
    authority, path, query = parts.groups()
    return f"{_DEFAULT_PORT.sub('', authority.lower())}{path.rstrip('/')}?{query}"


def host_of(url: str) -> str:
    """The host of a canonical URL, without `www.`."""
    return (urlsplit(url).hostname or "").removeprefix("www.")


def _split(url: str) -> tuple[SplitResult, str, int | None] | None:
    """The parts, host and port of an absolute http(s) URL that a browser could open; None: it is not one."""
    url = url.strip()
    if not 0 < len(url) <= _LONGEST or not url.isprintable() or _NOT_IN_A_URL.search(url):
        return None
    try:
        parts = urlsplit(url)
        host, port = _host(parts.hostname or ""), parts.port
    except ValueError:  # the port is out of range, or not a number
        return None
    return (parts, host, port) if host and parts.scheme in _DEFAULT_PORTS and "@" not in parts.netloc else None


def _host(name: str) -> str | None:
    """The host of a URL in punycode; None: no page can be opened at this host."""
    if name.isascii() and "%" not in name:
        return name
    try:
        return canonical_host(unquote(name))
    except ToolError:
        return None


def _joined(parts: SplitResult, host: str, port: int | None) -> str:
    scheme, _, path, query, fragment = parts
    path = without_dots(path)
    host = f"[{host}]" if ":" in host else host
    url = f"{scheme}://{host}{path}" if port in (None, _DEFAULT_PORTS[scheme]) else f"{scheme}://{host}:{port}{path}"
    if query:  # not parsed and encoded again: to many servers `+` differs from `%20`, and `a` from `a=`
        query = "&".join([pair for pair in query.split("&") if not _TRACKING.fullmatch(pair)])
    if query:
        url += f"?{query}"
    if fragment and (fragment := _TEXT_FRAGMENT.sub("", fragment)):
        url += f"#{fragment}"
    return _encoded(url)


def _encoded(part: str) -> str:
    return quote(part, safe="/%:@!$&'()*+,;=~?#[]|^{}") if not part.isascii() else part


def _target(parts: SplitResult, redirect: re.Match[str], names: Sequence[str]) -> str:
    """The target of a search engine's redirect; empty if the URL does not have it."""
    if redirect.re.groups:
        return unquote(redirect[1])
    values = parse_qs(parts.query)
    target = next((values[name][0] for name in names if name in values), "")
    if target.startswith(("http://", "https://")):
        return target
    try:  # as Bing writes it: `a1` and base64
        return base64.urlsafe_b64decode(target.removeprefix("a1") + "==").decode()
    except (binascii.Error, ValueError):
        return ""
