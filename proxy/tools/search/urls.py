"""URLs of search results: one form for each page, without what only tracks its reader. Pure.

`canonical` is what the model sees and cites, and what a client gets: a shorter URL is copied without mistakes.
`page_key` is equal for two URLs of the same page; it is never shown.
"""

import base64
import binascii
import re
from urllib.parse import SplitResult, parse_qs, quote, unquote, urlsplit, urlunsplit

# Parameters that advertisers and mailing lists add; no page needs them. `ref`, `source` and `id` are not among them:
# there are pages that they lead to.
_TRACKING = re.compile(
    r"utm_[a-z_]+|gclid|gclsrc|dclid|gbraid|wbraid|fbclid|msclkid|srsltid|yclid|ysclid|twclid|ttclid|li_fat_id|igshid|"
    r"mc_cid|mc_eid|_hsenc|_hsmi|mkt_tok|_ga|_gl|vero_id|oly_anon_id|oly_enc_id",
    re.IGNORECASE,
)
_TEXT_FRAGMENT = re.compile(r":~:.*\Z", re.DOTALL)  # https://wicg.github.io/scroll-to-text-fragment/
_DEFAULT_PORTS = {"http": 80, "https": 443}
_LONGEST = 2048  # no browser follows much longer ones, and a model copies none
_MOST_HOPS = 3  # redirects within redirects

# Redirects of search engines that name their target: host (with its subdomains), path, the parameter with the target.
_REDIRECTS = (
    (re.compile(r"(?:.+\.)?google\.[a-z.]{2,6}"), re.compile(r"/url"), ("q", "url")),
    (re.compile(r"(?:.+\.)?duckduckgo\.com"), re.compile(r"/l/?"), ("uddg",)),
    (re.compile(r"(?:.+\.)?bing\.com"), re.compile(r"/ck/a"), ("u",)),
    (re.compile(r"l\.facebook\.com"), re.compile(r"/l\.php"), ("u",)),
    (re.compile(r"(?:.+\.)?yahoo\.com"), re.compile(r"/.*RU=.*"), ()),
)
# Redirects whose target is not in the URL: they expire, and hide the site that they lead to.
_OPAQUE = (
    (re.compile(r"vertexaisearch\.cloud\.google\.com"), re.compile(r"/grounding-api-redirect/.*")),
    (re.compile(r"(?:.+\.)?google\.[a-z.]{2,6}"), re.compile(r"/(?:goto|aclk|url)")),
    (re.compile(r"(?:.+\.)?duckduckgo\.com"), re.compile(r"/(?:y\.js|l/?)")),
    (re.compile(r"(?:.+\.)?bing\.com"), re.compile(r"/(?:ck/a|aclick)")),
    (re.compile(r"l\.facebook\.com"), re.compile(r"/l\.php")),
)


def canonical(url: object) -> str | None:
    """The URL of a hit as it is shown; None: not the address of a page, or of one that cannot be told.

    Scheme and host are in lower case; the default port, tracking parameters and text fragments are gone; characters
    that a URL cannot hold are encoded. Redirects of search engines are replaced by their target if they name it.
    """
    for _ in range(_MOST_HOPS + 1):
        parts = _split(url)
        if parts is None or parts.hostname is None:
            return None
        target = _target(parts)
        if target is None:
            return None if _is_one_of(parts, _OPAQUE) else _joined(parts)
        url = target
    return None


def is_address_of(given: str, url: str) -> bool:
    """Whether a URL as a provider gave it is another one than the canonical `url`, and no redirect to it."""
    parts, canonical_parts = urlsplit(given.strip()), urlsplit(url)
    at_host = (parts.hostname, _encoded(parts.path)) == (canonical_parts.hostname, canonical_parts.path)
    return at_host and given.strip() != url


def page_key(url: str) -> str:
    """Equal for URLs of one page: http or https, `www.` or not, a slash at the end or not, whatever the fragment."""
    parts = urlsplit(url)
    host = (parts.hostname or "").removeprefix("www.")
    port = "" if parts.port in (None, *_DEFAULT_PORTS.values()) else f":{parts.port}"
    return f"{host}{port}{parts.path.rstrip('/')}?{parts.query}"


def host_of(url: str) -> str:
    """The host of a canonical URL, without `www.`."""
    return (urlsplit(url).hostname or "").removeprefix("www.")


def _split(url: object) -> SplitResult | None:
    """The parts of an absolute http(s) URL that a browser could open; None for anything else."""
    if not isinstance(url, str) or not 0 < len(url := url.strip()) <= _LONGEST:
        return None
    if not url.isprintable() or any(character in url for character in ' \\<>"`'):
        return None
    try:
        parts = urlsplit(url)
        _ = parts.port  # out of range, or not a number
    except ValueError:
        return None
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname or "@" in parts.netloc:
        return None
    return parts


def _joined(parts: SplitResult) -> str:
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    port = "" if parts.port in (None, _DEFAULT_PORTS[parts.scheme]) else f":{parts.port}"
    # Not parsed and written anew: many servers tell `+` from `%20`, and `a` from `a=`.
    query = "&".join(pair for pair in parts.query.split("&") if not _TRACKING.fullmatch(pair.partition("=")[0]))
    fragment = _TEXT_FRAGMENT.sub("", parts.fragment)
    return urlunsplit((parts.scheme, host + port, *(_encoded(part) for part in (parts.path, query, fragment))))


def _encoded(part: str) -> str:
    return quote(part, safe="/%:@!$&'()*+,;=~?#[]|^{}") if not part.isascii() else part


def _target(parts: SplitResult) -> str | None:
    """Where a redirect of a search engine leads; None: it is none, or does not say."""
    for host, path, names in _REDIRECTS:
        if host.fullmatch(parts.hostname or "") and path.fullmatch(parts.path):
            if not names:  # Yahoo: .../RU=https%3a%2f%2fexample.com/RK=...
                return unquote(parts.path.partition("RU=")[2].partition("/")[0]) or None
            values = parse_qs(parts.query)
            return next((_plain(values[name][0]) for name in names if name in values), None)
    return None


def _plain(target: str) -> str | None:
    """A target as it stands, or as Bing writes it: `a1` and base64."""
    if target.startswith(("http://", "https://")):
        return target
    try:
        decoded = base64.urlsafe_b64decode(target.removeprefix("a1") + "==").decode()
    except (binascii.Error, ValueError):
        return None
    return decoded if decoded.startswith(("http://", "https://")) else None


def _is_one_of(parts: SplitResult, kinds: tuple[tuple[re.Pattern[str], re.Pattern[str]], ...]) -> bool:
    return any(host.fullmatch(parts.hostname or "") and path.fullmatch(parts.path) for host, path in kinds)
