"""`url_citation` annotations: where an answer contains a URL that a tool really returned.

The offsets count Unicode code points, as Python's do, and as OpenAI's `start_index` and `end_index`.
"""

import re
from collections.abc import Mapping

from proxy.core.chat import Json

# Everything that can belong to a URL in running text; where it ends is decided by what was returned.
_CANDIDATE = re.compile(r"https?://[^\s<>\"`|\\^{}]+", re.IGNORECASE)
# What may follow a URL without belonging to it; a full stop only where no further word follows at once.
_GOES_ON = re.compile(r"[\w/%=&?#~+@$-]|[.:!,;](?=[\w/])")


def annotations(text: str, sources: Mapping[str, str]) -> list[Json]:
    """The citations in `text`, in order; `sources`: URL -> title, of all that the tools of this answer returned."""
    if not sources:
        return []
    known = {url.rstrip("/"): (url, title) for url, title in sources.items()}
    longest_first = sorted(known, key=len, reverse=True)
    cited: list[Json] = []
    for candidate in _CANDIDATE.finditer(text):
        written = candidate.group()
        base = next((base for base in longest_first if _is_whole(written, base)), None)
        if base is not None:
            url, title = known[base]
            end = candidate.start() + len(base) + (written[len(base) :].startswith("/"))
            span = {"start_index": candidate.start(), "end_index": end, "title": title or url, "url": url}
            cited.append({"type": "url_citation", "url_citation": span})
    return cited


def _is_whole(written: str, base: str) -> bool:
    """Whether `written` begins with the URL `base`, whole: not with another one that only begins alike."""
    if not written.startswith(base):
        return False
    rest = written[len(base) :]
    return not _GOES_ON.match(rest.removeprefix("/"))
