"""Prometheus metrics, counted from events. How many series there can be is settled by the configuration.

Whatever a stranger can choose - a model's name, a path, an error code - is a label only where it is one of a known few;
any other is "other".
"""

from collections.abc import Callable, Iterable, Mapping, Sized
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from proxy import request_context
from proxy.config import Config
from proxy.telemetry import workers
from proxy.telemetry.observer import Handler
from proxy.telemetry.routes import OTHER, route_of
from proxy.telemetry.series import Counter, Histogram, Series

NONE: Final = "none"

# Stops that are a limit's doing, and refusals that are.
LIMIT_STOPS: Final = frozenset({"max_turns", "max_tool_calls", "max_total_tokens", "deadline", "repeated_call"})
LIMIT_ERRORS: Final = frozenset({"rate_limit_exceeded", "overloaded", "max_duration_exceeded", "request_too_large"})

_UPSTREAM_CODES: Final = frozenset({
    "upstream_error", "upstream_timeout", "overloaded", "invalid_api_key", "account_not_usable", "permission_denied",
    "insufficient_quota", "rate_limit_exceeded", "model_not_found", "context_length_exceeded", "content_filter",
})  # fmt: skip
_MEANINGS: Final[Mapping[int, str]] = {
    401: "invalid_api_key",
    402: "insufficient_quota",
    403: "permission_denied",
    404: "model_not_found",
    408: "upstream_timeout",
    429: "rate_limit_exceeded",
}
_FIRST_SERVER_ERROR = 500
_MOST_KNOWN = 1000


class Known:
    """The values that a label may have: those that are known, and for any other "other"."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names: dict[object, str] = {name: name for name in names}
        self._names[None] = NONE

    def __call__(self, name: object) -> str:
        """The label's value."""
        return self._names.get(name, OTHER)


class Few:
    """The first `most` values that come, for names that only become known with time; for any later one "other"."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._seen: set[str] = set()

    def __call__(self, name: object) -> str:
        """The label's value."""
        text = str(name)
        if text in self._seen:
            return text
        if len(self._seen) >= self._most:
            return OTHER
        self._seen.add(text)
        return text


class _Tokens(NamedTuple):
    """What the tokens are counted by that a client's requests to a model take."""

    prompt: Counter
    completion: Counter


class _Loops(NamedTuple):
    """What the loops of a model are counted by."""

    turns: Histogram
    tool_calls: Histogram


class _Alike(NamedTuple):
    """What requests of one route, client, model and status are counted by; `tokens` and `loops` once there are any."""

    requests: Counter
    seconds: Histogram
    first_byte: Histogram
    tokens: Callable[[], _Tokens]
    loops: Callable[[], _Loops]


class _Calls(NamedTuple):
    """What calls of a tool with one outcome are counted by."""

    number: Counter
    seconds: Histogram


class _Answers(NamedTuple):
    """What an upstream's answers are counted by."""

    seconds: Histogram
    first: Histogram


class Metrics:
    """Counts events. Implements `observer.Subscriber`; `scrape` is `ports.Scrape`."""

    def __init__(self, config: Config, *, version: str) -> None:
        self._directory = workers.directory()
        self._series = Series()
        self._open_requests, self._open_streams = (
            self._series.open_requests.labels(),
            self._series.open_streams.labels(),
        )
        self._model = Known(name for name in config.models if name != "*")
        self._client = Known(client.name for client in config.clients)
        self._upstream = Known(config.upstreams)
        self._tool = Few(200)  # an MCP server's tools come and go; the most that were seen at one are about a hundred
        # The series of all that is alike, found once; what they are looked up by, strangers can choose.
        self._alike = lru_cache(_MOST_KNOWN)(self._find_alike)
        self._calls = lru_cache(_MOST_KNOWN)(self._find_calls)
        self._answers = lru_cache(_MOST_KNOWN)(self._find_answers)
        self._handlers: Mapping[str, Handler] = {
            "request.started": self._request_started,
            "response.started": self._response_started,
            "request.completed": self._request_completed,
            "tool.completed": self._tool_ended,
            "tool.failed": self._tool_ended,
            "tool.crashed": lambda fields: self._tool_ended({**fields, "outcome": "crashed"}),
            "tool.abandoned": lambda fields: self._tool_ended({**fields, "outcome": "abandoned"}),
            "tool.cache_hit": lambda fields: self._series.tool_cache_hits.labels(self._tool(fields["tool"])).inc(),
            "tool.retried": lambda fields: self._series.tool_retries.labels(self._tool(fields["tool"])).inc(),
            "tool.breaker_opened": self._tool_breaker_opened,
            "tool.fell_back": self._tool_fell_back,
            "upstream.answered": self._upstream_answered,
            "upstream.retried": self._upstream_retried,
            "upstream.fell_back": self._upstream_fell_back,
            "turn.failed": self._upstream_failed,
            "relay.failed": self._upstream_failed,
            "upstream.breaker_opened": lambda fields: self._breaker(fields, 1),
            "upstream.breaker_closed": lambda fields: self._breaker(fields, 0),
            "continuation.sought": self._continuation_sought,
            "continuation.kept": self._continuation_kept,
        }
        self._series.info.labels(version).set(1)
        self._series.open_requests_limit.labels().set(config.server.max_concurrent_requests)

    def handler(self, event: str) -> Handler | None:
        """What counts events of that name; None: they count for nothing."""
        return self._handlers.get(event)

    def scrape(self, tasks: Callable[[], Sized]) -> bytes:
        """Everything in Prometheus' text format; `tasks` finds those of the event loop."""
        self._series.tasks.labels().set(len(tasks()))
        if self._directory:
            workers.forget_dead_ones(Path(self._directory))
        return self._series.text(self._directory)

    def _request_started(self, _: Mapping[str, Any]) -> None:
        self._open_requests.inc()

    def _response_started(self, fields: Mapping[str, Any]) -> None:
        if fields["event_stream"]:
            self._open_streams.inc()

    def _request_completed(self, fields: Mapping[str, Any]) -> None:
        said = request_context.fields()
        alike = self._alike(fields["path"], said.get("client"), said.get("model"), fields["status"])
        self._open_requests.dec()
        if fields.get("event_stream"):
            self._open_streams.dec()
        alike.requests.inc()
        alike.seconds.observe(fields["seconds"])
        if (first_byte := fields.get("first_byte")) is not None:
            alike.first_byte.observe(first_byte)
        self._count_use(said, alike)

    def _find_alike(self, path: Any, client: Any, model: Any, status: Any) -> _Alike:
        route, by_model = route_of(path), self._model(model)
        return _Alike(
            self._series.requests.labels(route, self._client(client), by_model, str(status)),
            self._series.request_seconds.labels(route, by_model),
            self._series.first_byte_seconds.labels(route, by_model),
            tokens=cache(partial(self._tokens, self._client(client), by_model)),
            loops=cache(partial(self._loops, by_model)),
        )

    def _find_calls(self, tool: Any, outcome: Any) -> _Calls:
        name = self._tool(tool)
        return _Calls(self._series.tool_calls.labels(name, outcome), self._series.tool_seconds.labels(name))

    def _find_answers(self, upstream: Any) -> _Answers:
        name = self._upstream(upstream)
        return _Answers(self._series.upstream_seconds.labels(name), self._series.upstream_first_seconds.labels(name))

    def _tokens(self, client: str, model: str) -> _Tokens:
        series = self._series.tokens
        return _Tokens(series.labels(client, model, "prompt"), series.labels(client, model, "completion"))

    def _loops(self, model: str) -> _Loops:
        return _Loops(self._series.turns.labels(model), self._series.request_tool_calls.labels(model))

    def _count_use(self, said: Mapping[str, Any], alike: _Alike) -> None:
        """What a request has used, and which limit it met."""
        series = self._series
        if "turns" in said:
            loops = alike.loops()
            loops.turns.observe(said["turns"])
            loops.tool_calls.observe(said.get("tool_calls") or 0)
        if (tokens := said.get("prompt_tokens")) and _is_count(tokens):
            alike.tokens().prompt.inc(tokens)
        if (tokens := said.get("completion_tokens")) and _is_count(tokens):
            alike.tokens().completion.inc(tokens)
        if (stop := said.get("stop")) in LIMIT_STOPS:
            series.limits.labels(str(stop)).inc()
        if (error := said.get("error")) in LIMIT_ERRORS:
            series.limits.labels(str(error)).inc()
        if (rung := said.get("rung")) is not None:
            series.forced_answers.labels(str(rung)).inc()

    def _tool_ended(self, fields: Mapping[str, Any]) -> None:
        calls = self._calls(fields["tool"], fields.get("outcome") or "ok")
        calls.number.inc()
        calls.seconds.observe(fields["seconds"])

    def _tool_breaker_opened(self, fields: Mapping[str, Any]) -> None:
        self._series.tool_breaker_openings.labels(self._tool(fields["tool"])).inc()

    def _tool_fell_back(self, fields: Mapping[str, Any]) -> None:
        self._series.tool_fallbacks.labels(self._tool(fields["tool"]), self._tool(fields["to"])).inc()

    def _upstream_answered(self, fields: Mapping[str, Any]) -> None:
        answers = self._answers(fields["upstream"])
        answers.seconds.observe(fields["seconds"])
        if (first := fields["first"]) is not None:
            answers.first.observe(first)

    def _upstream_failed(self, fields: Mapping[str, Any]) -> None:
        error = meaning_of(fields.get("code"), fields.get("status"))
        self._series.upstream_errors.labels(self._upstream(fields["upstream"]), error).inc()

    def _upstream_retried(self, fields: Mapping[str, Any]) -> None:
        self._upstream_failed(fields)
        self._series.upstream_retries.labels(self._upstream(fields["upstream"])).inc()

    def _upstream_fell_back(self, fields: Mapping[str, Any]) -> None:
        self._upstream_failed(fields)
        self._series.upstream_fallbacks.labels(self._upstream(fields["upstream"]), self._upstream(fields["to"])).inc()

    def _breaker(self, fields: Mapping[str, Any], is_open: int) -> None:
        self._series.breaker_open.labels(self._upstream(fields["upstream"])).set(is_open)

    def _continuation_sought(self, fields: Mapping[str, Any]) -> None:
        self._series.state_lookups.labels("hit").inc(fields["found"])
        self._series.state_lookups.labels("miss").inc(fields["sought"] - fields["found"])

    def _continuation_kept(self, fields: Mapping[str, Any]) -> None:
        if fields.get("entries") is not None:
            self._series.state_entries.labels().set(fields["entries"])
        if fields.get("bytes") is not None:
            self._series.state_bytes.labels().set(fields["bytes"])


def _is_count(said: object) -> bool:
    """Whether an upstream's number of tokens can be one."""
    return isinstance(said, (int, float)) and said > 0


def meaning_of(code: object, status: object) -> str:
    """An upstream's error as one of a known few: codes of its own making are told by their status."""
    if code in _UPSTREAM_CODES:
        return str(code)
    if not isinstance(status, int) or status >= _FIRST_SERVER_ERROR:
        return "upstream_error"
    return _MEANINGS.get(status, "invalid_request")
