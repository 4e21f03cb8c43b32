"""The forms in which URLs are compared: hosts in punycode, paths without dot segments. Pure.

Filters, searches and the guard of web pages go by the same forms, so that what is checked is what is opened.
"""

import re

import idna

# A segment `.` or `..`, its dots perhaps percent-encoded: https://url.spec.whatwg.org/#double-dot-path-segment
_DOTS = re.compile(r"/(?:\.|%2e){1,2}(?=/|\Z)", re.IGNORECASE)


def ascii_host(name: str) -> str | None:
    """A host in lower case and punycode, as browsers look it up (UTS 46); None: no host can have this name."""
    if name.isascii():
        return name.lower()
    try:
        return idna.encode(name, uts46=True).decode().lower()
    except (idna.IDNAError, UnicodeError):
        return None


def without_dots(path: str) -> str:
    """A path that begins with a slash, its dot segments resolved (RFC 3986, 5.2.4); `//` stays."""
    if not _DOTS.search(path):
        return path
    kept: list[str] = []
    for segment in path.removeprefix("/").split("/"):
        dots = segment.lower().replace("%2e", ".")
        if dots == "..":
            del kept[-1:]
        elif dots != ".":
            kept.append(segment)
    if dots in {".", ".."}:  # what the last segment names is a directory
        kept.append("")
    return "/" + "/".join(kept)
