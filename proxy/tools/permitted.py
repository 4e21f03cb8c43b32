"""What a request's filters leave of a tool's output, whatever the tool makes of them itself.

A search that gives hits has dropped those that are not permitted before it wrote its text. The text of any other tool,
such as a search of an MCP server, cannot be cut into pages: if one of them is not permitted, the text is withheld, and
the titles and URLs of the permitted pages take its place.
"""

import re

from msgspec.structs import replace

from proxy.loop.results import ToolOutput
from proxy.loop.search import SearchFilters

_WITHHELD = (
    "The text of this result is withheld: it may come from pages that the user of this conversation does not permit."
)
# Without what may end a URL in running text, or in JSON and Markdown; slashes may be escaped, as some write JSON.
_URL = re.compile(r"(?:https?:|\bwww\.)(?:\\?/|[^\s<>\"'`|\\^{}()\[\]])+", re.IGNORECASE)


def permitted(output: ToolOutput, filters: SearchFilters, *, is_filtered: bool, is_search: bool) -> ToolOutput:
    """The part of an output that is of permitted pages.

    Args:
        output: as the tool gave it.
        filters: they have rules.
        is_filtered: the tool has applied the filters, so that its text is of permitted pages.
        is_search: the tool searches, or stands in for one that does.
    """
    sources = {url: title for url, title in output.sources.items() if filters.permits(url)}
    hits = tuple(hit for hit in output.hits if filters.permits(hit.url))
    if is_filtered:
        return replace(output, sources=sources, hits=hits)
    # A tool that names its sources is taken at its word: the text of a permitted page may link to any other.
    named = output.sources
    if is_search and not named:  # the addresses in its text; a bare `www.` name is one too
        found = (match[0].replace("\\/", "/").rstrip(".,;:!?*") for match in _URL.finditer(output.text))
        named = dict.fromkeys((url if "://" in url else f"https://{url}" for url in found), "")
    kept = {url: title for url, title in named.items() if filters.permits(url)}
    is_of_unknown_pages = is_search and not named and bool(filters.allow)
    if len(kept) == len(named) and not is_of_unknown_pages:
        return output
    pages = "\n\n".join(f"{title}\n{url}".strip() for url, title in kept.items())
    text = f"{_WITHHELD}\n\nPermitted pages:\n\n{pages}" if pages else _WITHHELD
    return replace(output, text=text, sources=sources, hits=hits)
