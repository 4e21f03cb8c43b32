"""Applies the filters of a request to the output of any tool, even if the tool has applied them itself.

A call of a search may narrow the filters with the arguments `allowed_domains` and `blocked_domains`. A model sees these
arguments if the client declares a tool with the name of the server's, such as Claude Code's own `WebSearch`.

A search that returns hits drops those that are not permitted before it writes its text. The text of any other tool,
such as a search of an MCP server, cannot be split into pages: if one of its pages is not permitted, the text is
withheld, and the titles and URLs of the permitted pages take its place.
"""

import re
from contextlib import suppress
from typing import Any

import orjson
from msgspec.structs import replace

from proxy.loop.results import InvalidArguments, ToolOutput
from proxy.wire.chat import Json
from proxy.wire.json_text import read_json
from proxy.wire.search import MOST_DOMAINS, SearchFilters, common, domain_rule

_WITHHELD = (
    "The text of this result is withheld: it may come from pages that the user of this conversation does not permit."
)
# Without the characters that end a URL in running text, JSON or Markdown; some JSON has escaped slashes.
_URL = re.compile(r"(?:https?:|\bwww\.)(?:\\?/|[^\s<>\"'`|\\^{}()\[\]])+", re.IGNORECASE)

DOMAIN_LISTS = ("allowed_domains", "blocked_domains")
"""The arguments by which a call narrows the filters of its request."""

_SCHEME = re.compile(r"\Ahttps?://", re.IGNORECASE)
_BETWEEN_DOMAINS = re.compile(r"[\s,]+")
_MOST_NAMED = 10  # domains in a message


def filters_of_call(filters: SearchFilters, arguments: Json, parameters: Json) -> SearchFilters:
    """The filters of one call of a search: those of its request, narrowed by the lists among its arguments.

    A tool handles a list itself if its schema (`parameters`) has it.

    Raises:
        InvalidArguments: a list is not one of domains, or the request and the call have no permitted page in common.
    """
    own = parameters.get("properties") or {}
    allow, block = (() if key in own else _domains_in(arguments, key) for key in DOMAIN_LISTS)
    if not allow and not block:
        return filters
    if allow and filters.allow and not (allow := common(filters.allow, allow)):
        others = ", ".join(filters.allow[:_MOST_NAMED])
        raise InvalidArguments(f"'allowed_domains' must be within what this conversation permits, which is: {others}.")
    return replace(filters, allow=allow or filters.allow, block=tuple(dict.fromkeys((*filters.block, *block))))


def filtered(output: ToolOutput, filters: SearchFilters, *, is_filtered: bool, is_search: bool) -> ToolOutput:
    """The part of an output that comes from permitted pages.

    Args:
        output: the output of the tool.
        filters: the filters of the call, which have rules.
        is_filtered: whether the tool has applied the filters, so that its text comes from permitted pages.
        is_search: whether the tool searches, or stands in for a tool that does.
    """
    sources = {url: title for url, title in output.sources.items() if filters.permits(url)}
    hits = tuple(hit for hit in output.hits if filters.permits(hit.url))
    if is_filtered:
        return replace(output, sources=sources, hits=hits)
    # The sources that a tool names are trusted: the text of a permitted page may link to any other page.
    named = output.sources
    if is_search and not named:  # the URLs in the text, and bare `www.` names
        found = (match[0].replace("\\/", "/").rstrip(".,;:!?*") for match in _URL.finditer(output.text))
        named = dict.fromkeys((url if "://" in url else f"https://{url}" for url in found), "")
    kept = {url: title for url, title in named.items() if filters.permits(url)}
    is_of_unknown_pages = is_search and not named and bool(filters.allow)
    if len(kept) == len(named) and not is_of_unknown_pages:
        return output
    pages = "\n\n".join(f"{title}\n{url}".strip() for url, title in kept.items())
    text = f"{_WITHHELD}\n\nPermitted pages:\n\n{pages}" if pages else _WITHHELD
    return replace(output, text=text, sources=sources, hits=hits)


def _domains_in(arguments: Json, key: str) -> tuple[str, ...]:
    """An argument's list of domains, each perhaps with a path; a text and a list of URLs are accepted as well."""
    listed = arguments.get(key) or []
    if isinstance(listed, str):
        listed = _listed_in(listed.strip())
    rules: list[str] = []
    for named in listed if isinstance(listed, list) and len(listed) <= MOST_DOMAINS else [None]:
        if named == "":
            continue
        rule = domain_rule(_SCHEME.sub("", named.strip())) if isinstance(named, str) else None
        if rule is None:
            raise InvalidArguments(
                f"'{key}' must be a list of at most {MOST_DOMAINS} domains such as example.com or example.com/path."
            )
        rules.append(rule)
    return tuple(dict.fromkeys(rules))


def _listed_in(text: str) -> Any:
    """The list in a text: JSON, one domain, or several domains separated by blanks or commas."""
    if text.startswith("["):
        with suppress(orjson.JSONDecodeError):
            return read_json(text)
    return [text] if domain_rule(_SCHEME.sub("", text)) else _BETWEEN_DOMAINS.split(text)
