"""`POST /v1/search`: one search with the configured provider, without a model."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from secrets import token_hex
from typing import NoReturn

import orjson
from starlette.types import Receive, Scope, Send

from proxy.api.body import is_integer, parse_object, read_body, whole
from proxy.api.direct import DirectCalls, Door
from proxy.api.exchange import send_json, while_wanted
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

_RECENCIES = ("day", "week", "month", "year")
_MOST_RESULTS = 20
_RESULTS = 10
_LONGEST_QUERY = 2000  # characters; no provider reads more
_NO_RETRY = {"x-should-retry": "false"}


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
        queries, filters = _queries_in(body), _filters_in(body)
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


def _queries_in(body: Json) -> list[str]:
    """The queries of a request, each once. Raises `RequestError`."""
    single, listed = body.get("query"), body.get("queries")
    if listed is not None and not (isinstance(listed, list) and 0 < len(listed) <= MOST_QUERIES):
        _refuse("queries", f"must be a list of 1 to {MOST_QUERIES} texts")
    if single is None and listed is None:
        _refuse("query", "is required, or 'queries'")
    for name, texts in (("query", [] if single is None else [single]), ("queries", listed or [])):
        for text in texts:
            if not isinstance(text, str) or not text.strip() or len(text) > _LONGEST_QUERY:
                _refuse(name, f"must be text of 1 to {_LONGEST_QUERY} characters")
    return list(dict.fromkeys([*([single] if single else []), *(listed or [])]))


def _filters_in(body: Json) -> SearchFilters:
    """The filters of a request. Raises `RequestError`."""
    count, recency = whole(body.get("max_results")), body.get("recency")
    if count is not None and not is_integer(count, 1, _MOST_RESULTS):
        _refuse("max_results", f"must be an integer from 1 to {_MOST_RESULTS}")
    if recency is not None and recency not in _RECENCIES:
        _refuse("recency", f"must be one of {', '.join(_RECENCIES)}")
    allow, block = (domains_in(body, name, name) for name in ("allowed_domains", "blocked_domains"))
    if allow and block:
        _refuse("blocked_domains", "must not be given together with 'allowed_domains'")
    return SearchFilters(allow=allow, block=block, count=count or _RESULTS, recency=recency)


def _refuse(param: str, demand: str) -> NoReturn:
    raise RequestError(f"'{param}' {demand}.", param=param)


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
    return {**answer, **{name: named for name, named in unanswered.items() if named}}


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
_UNUSABLE: Mapping[Cause, tuple[str, int, str]] = {
    "key": ("The search service refuses the key of this proxy. Tell its operator.", 502, "upstream_auth_failed"),
    "quota": (
        "The search service's credit is used up. Tell the operator of this proxy.",
        502,
        "upstream_quota_exceeded",
    ),
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
            return UpstreamError(
                told, status=status, code=code, headers=headers, retry_after=math.ceil(error.wait or 0)
            )
        case _:
            return UpstreamError("The search failed.")
