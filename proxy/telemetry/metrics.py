"""Prometheus metrics, counted from events. The configuration bounds the number of series; see `labels`."""

from collections.abc import Callable, Mapping, Sized
from pathlib import Path
from typing import Any, Final

from proxy import request_context
from proxy.config import Config
from proxy.telemetry import workers
from proxy.telemetry.labels import AllowedLabels, FirstSeenLabels, route_of, upstream_error
from proxy.telemetry.observer import Handler
from proxy.telemetry.series import Series

# Those values of a request's `stop` and `error` that mean that it reached a limit.
LIMIT_STOPS: Final = frozenset({"max_turns", "max_tool_calls", "max_total_tokens", "deadline", "repeated_call"})
LIMIT_ERRORS: Final = frozenset({"rate_limit_exceeded", "overloaded", "max_duration_exceeded", "request_too_large"})

# Tools of MCP servers come and go; the largest servers have about a hundred.
_MOST_TOOLS: Final = 200


class Metrics:
    """Counts events. Implements `observer.Subscriber`; `scrape` is `ports.Scrape`."""

    def __init__(self, config: Config, *, version: str) -> None:
        self._directory = workers.directory()
        self._series = series = Series(
            {
                "route": route_of,
                "client": AllowedLabels(client.name for client in config.clients),
                "model": AllowedLabels(name for name in config.models if name != "*"),
                "upstream": AllowedLabels(config.upstreams),
                "tool": FirstSeenLabels(_MOST_TOOLS),
                "to": FirstSeenLabels(_MOST_TOOLS + len(config.upstreams)),
            }
        )
        self._handlers: Mapping[str, Handler] = {
            "request.started": lambda _: series.open_requests.inc(),
            "response.started": self._response_started,
            "request.completed": self._request_completed,
            "tool.completed": self._tool_ended,
            "tool.failed": self._tool_ended,
            "tool.crashed": lambda fields: self._tool_ended({**fields, "outcome": "crashed"}),
            "tool.abandoned": lambda fields: self._tool_ended({**fields, "outcome": "abandoned"}),
            "tool.cache_hit": lambda fields: series.tool_cache_hits(fields["tool"]).inc(),
            "tool.retried": lambda fields: series.tool_retries(fields["tool"]).inc(),
            "tool.breaker_opened": lambda fields: series.tool_breaker_openings(fields["tool"]).inc(),
            "tool.fell_back": lambda fields: series.tool_fallbacks(fields["tool"], fields["to"]).inc(),
            "upstream.answered": self._upstream_answered,
            "upstream.retried": self._upstream_retried,
            "upstream.fell_back": self._upstream_fell_back,
            "turn.failed": self._upstream_failed,
            "relay.failed": self._upstream_failed,
            "upstream.breaker_opened": lambda fields: series.breaker_open(fields["upstream"]).set(1),
            "upstream.breaker_closed": lambda fields: series.breaker_open(fields["upstream"]).set(0),
            "continuation.sought": self._continuation_sought,
            "continuation.kept": self._continuation_kept,
        }
        series.info(version).set(1)
        series.open_requests_limit.set(config.server.max_concurrent_requests)

    def handler(self, event: str) -> Handler | None:
        """A function that counts events of that name; None: they are not counted."""
        return self._handlers.get(event)

    def scrape(self, tasks: Callable[[], Sized]) -> bytes:
        """All metrics in Prometheus' text format; `tasks` finds the tasks of the event loop."""
        self._series.tasks.set(len(tasks()))
        if self._directory:
            workers.remove_gauges_of_dead_workers(Path(self._directory))
        return self._series.text(self._directory)

    def _response_started(self, fields: Mapping[str, Any]) -> None:
        if fields["event_stream"]:
            self._series.open_streams.inc()

    def _request_completed(self, fields: Mapping[str, Any]) -> None:
        series = self._series
        request: Mapping[str, Any] = request_context.fields.get({})
        client, model, path = request.get("client"), request.get("model"), fields["path"]
        series.open_requests.inc(-1)
        if fields.get("event_stream"):
            series.open_streams.inc(-1)
        series.requests(path, client, model, fields["status"]).inc()
        series.request_seconds(path, model).observe(fields["seconds"])
        if (first_byte := fields.get("first_byte")) is not None:
            series.first_byte_seconds(path, model).observe(first_byte)
        if "turns" in request:
            series.turns(model).observe(request["turns"])
            series.request_tool_calls(model).observe(request.get("tool_calls") or 0)
        for field, kind in (("prompt_tokens", "prompt"), ("completion_tokens", "completion")):
            tokens = request.get(field)
            if isinstance(tokens, (int, float)) and tokens > 0:  # an upstream may send anything
                series.tokens(client, model, kind).inc(tokens)
        if (stop := request.get("stop")) in LIMIT_STOPS:
            series.limits(stop).inc()
        if (error := request.get("error")) in LIMIT_ERRORS:
            series.limits(error).inc()
        if (rung := request.get("rung")) is not None:
            series.forced_answers(rung).inc()

    def _tool_ended(self, fields: Mapping[str, Any]) -> None:
        self._series.tool_calls(fields["tool"], fields.get("outcome") or "ok").inc()
        self._series.tool_seconds(fields["tool"]).observe(fields["seconds"])

    def _upstream_answered(self, fields: Mapping[str, Any]) -> None:
        self._series.upstream_seconds(fields["upstream"]).observe(fields["seconds"])
        if (first := fields["first"]) is not None:
            self._series.upstream_first_seconds(fields["upstream"]).observe(first)

    def _upstream_failed(self, fields: Mapping[str, Any]) -> None:
        error = upstream_error(fields.get("code"), fields.get("status"))
        self._series.upstream_errors(fields["upstream"], error).inc()

    def _upstream_retried(self, fields: Mapping[str, Any]) -> None:
        self._upstream_failed(fields)
        self._series.upstream_retries(fields["upstream"]).inc()

    def _upstream_fell_back(self, fields: Mapping[str, Any]) -> None:
        self._upstream_failed(fields)
        self._series.upstream_fallbacks(fields["upstream"], fields["to"]).inc()

    def _continuation_sought(self, fields: Mapping[str, Any]) -> None:
        self._series.state_lookups("hit").inc(fields["found"])
        self._series.state_lookups("miss").inc(fields["sought"] - fields["found"])

    def _continuation_kept(self, fields: Mapping[str, Any]) -> None:
        if fields.get("entries") is not None:
            self._series.state_entries.set(fields["entries"])
        if fields.get("bytes") is not None:
            self._series.state_bytes.set(fields["bytes"])
