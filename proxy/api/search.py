"""`POST /v1/search`: one search with the configured provider, without a model."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from secrets import token_hex
from typing import Annotated, Literal, TypeAlias, get_args

import orjson
from msgspec import Meta, Struct
from starlette.types import Receive, Scope, Send

from proxy.api.body import read_body
from proxy.api.direct import DirectCalls, Door
from proxy.api.exchange import send_json, while_wanted
from proxy.api.fields import expect, read_fields
from proxy.api.parsing import parse_object
from proxy.api.ports import Ports
from proxy.api.search_filters import domains_in
from proxy.kit import request_context
from proxy.loop.fence import harmless
from proxy.loop.offer import SEARCH
from proxy.loop.results import (
    Cause,
    InvalidArguments,
    NotUnderstood,
    ResultRefused,
    ToolError,
    ToolOutput,
    ToolTimeout,
    ToolUnavailable,
)
from proxy.wire.chat import Json, ToolCall, ToolSpec
from proxy.wire.errors import NotAllowed, NotFound, ProxyError, RequestError, UpstreamError, UpstreamTimeout
from proxy.wire.search import MOST_QUERIES, SearchFilters, SearchHit, with_queries

_MOST_RESULTS = 20
_RESULTS = 10
_LONGEST_QUERY = 2000  # characters; no provider reads more
_Recency: TypeAlias = Literal["day", "week", "month", "year"]
_Query: TypeAlias = Annotated[str, Meta(pattern=r"\S", max_length=_LONGEST_QUERY)]
_TEXT = f"text of 1 to {_LONGEST_QUERY} characters"
_DEMANDS = {
    "query": f"must be {_TEXT}",
    "queries": f"must be a list of 1 to {MOST_QUERIES} queries, each {_TEXT}",
    "max_results": f"must be an integer from 1 to {_MOST_RESULTS}",
    "recency": f"must be one of {', '.join(get_args(_Recency))}",
}
_NO_RETRY = {"x-should-retry": "false"}


class _SearchRequest(Struct, frozen=True):
    query: _Query | None = None
    queries: Annotated[list[_Query], Meta(min_length=1, max_length=MOST_QUERIES)] | None = None
    max_results: Annotated[int, Meta(ge=1, le=_MOST_RESULTS)] | None = None
    recency: _Recency | None = None


class Search:
    """The endpoint, as an ASGI callable."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._door = Door(ports)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        self._door.admit(scope)
        calls = await self._door.open(scope)
        body = parse_object(await read_body(scope, receive, self._ports.config.server, self._ports.clock))
        asked = read_fields(body, _SearchRequest, _DEMANDS)
        expect(asked.query or asked.queries, "query", "is required, or 'queries'")
        queries = list(dict.fromkeys([*([asked.query] if asked.query else ()), *(asked.queries or ())]))
        filters = _filters_in(asked, body)
        tool = _search_of(spec for _, spec in calls.offered())
        request_context.add({"search": tool.name})
        work = partial(_searched, calls, tool, queries, filters)
        await send_json(send, await while_wanted(scope, receive, work, seconds=calls.limits.max_duration))


def _search_of(tools: Iterable[ToolSpec]) -> ToolSpec:
    """The tool that searches: `web_search`, or else the first search of the file. Raises `NotFound`."""
    searches = [tool for tool in tools if tool.searches]
    if not searches:
        raise NotFound("No search is configured that this client may use.")
    return next((tool for tool in searches if tool.name == SEARCH), searches[0])


def _filters_in(asked: _SearchRequest, body: Json) -> SearchFilters:
    """The filters of a request. Raises `RequestError`."""
    allow, block = (domains_in(body, name, name) for name in ("allowed_domains", "blocked_domains"))
    expect(not (allow and block), "blocked_domains", "must not be given together with 'allowed_domains'")
    return SearchFilters(allow=allow, block=block, count=asked.max_results or _RESULTS, recency=asked.recency)


async def _searched(calls: DirectCalls, tool: ToolSpec, queries: Sequence[str], filters: SearchFilters) -> Json:
    """The body of the answer. Raises `ProxyError`: the search failed."""
    properties = tool.parameters.get("properties") or {}
    # Searches of other types than ours take one query, which an operator may have called `q`.
    name = "q" if "q" in properties and "query" not in properties else "query"
    takes_several = name == "query" and "queries" in properties
    asked = [with_queries({}, queries)] if takes_several else [{name: query} for query in queries]
    rows, failed, left_out = list[Json](), list[str](), list[str]()
    provider = tool.name
    for arguments in asked:
        if not calls.calls_left:
            left_out += [arguments[name]]
            continue
        call = ToolCall(f"search_{token_hex(8)}", tool.name, orjson.dumps(arguments).decode())
        try:
            output, beyond = await calls.output_of(call, filters=filters)
        except ToolError as exc:
            raise _error_of(exc) from exc
        provider = output.provider or output.answered_by or provider
        failed += output.failed_queries
        left_out += beyond
        rows += _rows_of(output, arguments[name], filters.count or _RESULTS)
    answer: Json = {"id": f"search_{token_hex(16)}", "object": "search", "provider": provider, "results": rows}
    unanswered = {"failed": failed, "left_out": left_out}
    return answer | {name: queries for name, queries in unanswered.items() if queries}


def _rows_of(output: ToolOutput, query: str, most: int) -> list[Json]:
    """The pages of an output as the answer has them, at most so many for each query."""
    hits = output.hits or [SearchHit(url, title) for url, title in output.sources.items()]
    counts = Counter[str]()
    rows: list[Json] = []
    for hit in hits:
        asked = hit.query or query
        counts[asked] += 1
        if counts[asked] <= most:
            rows.append(row_of(hit, asked))
    return rows


def row_of(hit: SearchHit, query: str | None = None) -> Json:
    """A page that was found, for a program."""
    row: Json = {"title": harmless(hit.title), "url": hit.url, "snippet": harmless(hit.text), "date": hit.published}
    return row if query is None else {**row, "query": query}


# What a client is told of a search service that cannot be used, the status and the code.
_NO_CREDIT = "The search service's credit is used up. Tell the operator of this proxy."
_UNUSABLE: Mapping[Cause, tuple[str, int, str]] = {
    "key": ("The search service refuses the key of this proxy. Tell its operator.", 502, "upstream_auth_failed"),
    "quota": (_NO_CREDIT, 502, "upstream_quota_exceeded"),
    "busy": ("The search service takes no more requests now.", 503, "overloaded"),
    "down": ("The search service does not work now.", 502, "upstream_error"),
}


def _error_of(error: ToolError) -> ProxyError:
    """The failure of a search as an HTTP error; the words of a tool about it are for a model."""
    match error:
        case InvalidArguments() | NotUnderstood():
            return RequestError("The search service did not understand the query.", param="query")
        case ResultRefused():
            return NotAllowed(str(error), headers=_NO_RETRY)
        case ToolTimeout():
            return UpstreamTimeout("The search took too long.")
        case ToolUnavailable():
            told, status, code = _UNUSABLE[error.cause]
            headers = _NO_RETRY if error.cause in ("key", "quota") else {}
            wait = math.ceil(error.wait or 0)
            return UpstreamError(told, status=status, code=code, headers=headers, retry_after=wait)
        case _:
            return UpstreamError("The search failed.")
