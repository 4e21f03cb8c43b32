"""URLs in the form in which they are compared: hosts in punycode, paths without dot segments. Pure.

Filters, searches and the guard of web pages use the same form, so that the URL that was checked is the URL that is
opened.
"""

import re
import unicodedata
from contextlib import suppress
from urllib.parse import unquote_to_bytes

import idna

# A segment `.` or `..`, its dots perhaps percent-encoded: https://url.spec.whatwg.org/#double-dot-path-segment
_DOTS = re.compile(r"/(?:\.|%2e){1,2}(?=/|\Z)", re.IGNORECASE)

_PUNYCODE = re.compile(r"\bxn--[a-z0-9-]+", re.IGNORECASE)
_PUNYCODE_HOST = re.compile(r"[a-z0-9.-]*xn--[a-z0-9.-]+")
_ENCODED_LETTERS = re.compile(r"(?:%[89a-f][0-9a-f])+", re.IGNORECASE)


def ascii_host(name: str) -> str | None:
    """A host name in lower case and punycode, as browsers look it up (UTS 46); None: no host can have this name."""
    if name.isascii():
        return name.lower()
    try:
        return idna.encode(name, uts46=True).decode().lower()
    except (idna.IDNAError, UnicodeError):
        host = ""
        if any(unicodedata.category(char) == "So" for char in name):  # a snowman: browsers look it up by IDNA 2003
            with suppress(UnicodeError):
                host = name.encode("idna").decode().lower()
        return host if _PUNYCODE_HOST.fullmatch(host) else None


def without_dots(path: str) -> str:
    """A path that begins with a slash, with dot segments resolved (RFC 3986, 5.2.4); `//` stays."""
    if not _DOTS.search(path):
        return path
    kept: list[str] = []
    for segment in path.removeprefix("/").split("/"):
        dots = segment.lower().replace("%2e", ".")
        if dots == "..":
            del kept[-1:]
        elif dots != ".":
            kept.append(segment)
    if dots in {".", ".."}:  # a dot segment at the end names a directory
        kept.append("")
    return "/" + "/".join(kept)


def readable(url: str) -> str:
    """A URL as browsers show it: the host not in punycode, and percent-encoded letters beyond ASCII decoded."""
    if "%" not in url and "xn--" not in url:
        return url
    scheme, separator, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    try:
        shown = f"{scheme}{separator}{_PUNYCODE.sub(lambda label: idna.ulabel(label[0]), host)}{slash}{path}"
        return _ENCODED_LETTERS.sub(lambda letters: unquote_to_bytes(letters[0]).decode(), shown)
    except (idna.IDNAError, UnicodeError):  # browsers do not decode it either
        return url
