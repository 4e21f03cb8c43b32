"""Prometheus metrics, counted from events.

The configuration bounds the number of series, though a client may send any path and any model name: a label has a
bounded number of values.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from functools import partial
from pathlib import Path
from typing import Any, Final

from proxy.config.model import Config
from proxy.kit import request_context
from proxy.loop.actions import Stop
from proxy.paths import route_of
from proxy.ports import KeyStates
from proxy.telemetry import workers
from proxy.telemetry.events import Handler
from proxy.telemetry.series import Series

# Those values of a request's `stop` that mean that it reached a limit.
LIMIT_STOPS: Final = frozenset(Stop) - {Stop.ANSWER, Stop.CLIENT_TOOL_CALLS}

# Tools of MCP servers come and go; the largest servers have about a hundred.
_MOST_TOOLS: Final = 200

_OTHER: Final = "other"
_UPSTREAM_ERRORS: Final = frozenset({
    "upstream_error", "upstream_timeout", "overloaded", "invalid_api_key", "account_not_usable", "permission_denied",
    "insufficient_quota", "upstream_auth_failed", "upstream_quota_exceeded", "rate_limit_exceeded",
    "model_not_found", "context_length_exceeded", "content_filter",
})  # fmt: skip
_ERRORS_BY_STATUS: Final[Mapping[int, str]] = {
    401: "invalid_api_key",
    402: "insufficient_quota",
    403: "permission_denied",
    404: "model_not_found",
    408: "upstream_timeout",
    429: "rate_limit_exceeded",
}
_FIRST_SERVER_ERROR = 500


_COUNTED: Final[Mapping[str, tuple[str, ...]]] = {
    "limit.reached": ("limits", "kind"),
    "page.failed": ("pages_read", "outcome"),
    "tool.breaker_opened": ("tool_breaker_openings", "tool"),
    "tool.cache_hit": ("tool_cache_hits", "tool"),
    "tool.checked": ("tool_checks", "tool", "outcome"),
    "tool.fell_back": ("tool_fallbacks", "tool", "to"),
    "tool.key_used": ("tool_key_requests", "tool", "key"),
    "tool.retried": ("tool_retries", "tool"),
    "tools.searched": ("tool_searches", "outcome"),
    "upstream.fell_back": ("upstream_fallbacks", "upstream", "to"),
    "upstream.key_used": ("upstream_key_requests", "upstream", "key"),
    "upstream.retried": ("upstream_retries", "upstream"),
}
"""Events that are counted as they are: the metric, and the fields that are its labels."""

_SWITCHED: Final[Mapping[str, tuple[str, str, int]]] = {
    "tool.breaker_opened": ("tool_breaker_open", "tool", 1),
    "tool.breaker_closed": ("tool_breaker_open", "tool", 0),
    "upstream.breaker_opened": ("upstream_breaker_open", "upstream", 1),
    "upstream.breaker_closed": ("upstream_breaker_open", "upstream", 0),
}
"""Events that set a gauge: its name, the field that is its label, and its value."""


class AllowedLabels:
    """A label with a fixed set of values: any other name becomes "other", and None becomes "none"."""

    def __init__(self) -> None:
        self._names: dict[object, str] = {None: "none"}

    def allow(self, names: Iterable[str]) -> None:
        """Add values; those of an earlier configuration remain, for requests that began under it."""
        self._names |= {name: name for name in names}

    def __call__(self, name: object) -> str:
        """The label's value for a name."""
        return self._names.get(name, _OTHER)


class FirstSeenLabels:
    """A label whose values are not known at start: the first `most` names are values, any later one becomes "other"."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._seen: set[str] = set()

    def __call__(self, name: object) -> str:
        """The label's value for a name."""
        text = str(name)
        if text not in self._seen:
            if len(self._seen) >= self._most:
                return _OTHER
            self._seen.add(text)
        return text


class Metrics:
    """Counts events. Implements `events.Subscriber`; `scrape` is `ports.Scrape`.

    Args:
        config: bounds the values of labels.
        version: of the program.
        serves: whether this process answers requests; a supervisor does not.
    """

    def __init__(self, config: Config, *, version: str, serves: bool = True) -> None:
        self._directory = workers.directory()
        self._shown_keys: set[tuple[str, str]] = set()
        self._clients, self._models, self._upstreams = AllowedLabels(), AllowedLabels(), AllowedLabels()
        self._series = Series(
            {
                "route": route_of,
                "client": self._clients,
                "model": self._models,
                "upstream": self._upstreams,
                "tool": FirstSeenLabels(_MOST_TOOLS),
                "to": FirstSeenLabels(_MOST_TOOLS + len(config.upstreams)),
            }
        )
        counted = {event: partial(self._count, name, labels) for event, (name, *labels) in _COUNTED.items()}
        switched = {event: partial(self._switch, *gauge) for event, gauge in _SWITCHED.items()}
        self._find = self._series.find
        handlers: Mapping[str, Handler] = {
            "request.started": lambda _: self._find["open_requests"]().inc(),
            "response.started": self._response_started,
            "budget.checked": self._budget_checked,
            "request.completed": self._request_completed,
            "tool.completed": self._tool_ended,
            "tool.failed": self._tool_ended,
            "tool.crashed": lambda fields: self._tool_ended({**fields, "outcome": "crashed"}),
            "tool.abandoned": lambda fields: self._tool_ended({**fields, "outcome": "abandoned"}),
            "page.completed": lambda fields: self._find["pages_read"](fields.get("outcome", "read")).inc(),
            "page.crashed": lambda _: self._find["pages_read"]("failed").inc(),
            "upstream.answered": self._upstream_answered,
            "upstream.retried": self._upstream_failed,
            "upstream.fell_back": self._upstream_failed,
            "turn.failed": self._upstream_failed,
            "relay.failed": self._upstream_failed,
            "continuation.sought": self._continuation_sought,
            "continuation.kept": self._continuation_kept,
            "server.started": lambda _: self._loaded(),
            "configuration.reloaded": self._reloaded,
            "configuration.refused": self._reload_refused,
        }
        self._handlers = (counted, switched, handlers)
        self._find["info"](version).set(1)
        if serves:
            self.change(config)

    def change(self, config: Config) -> None:
        """Count under another configuration too: its names become values of labels."""
        self._clients.allow(client.name for client in config.clients)
        self._models.allow(name for name in config.models if "*" not in name)
        self._upstreams.allow(config.upstreams)
        self._series.forget_labels()
        self._find["open_requests_limit"]().set(config.server.max_concurrent_requests)

    def handler(self, event: str) -> Handler | None:
        """A function that counts events of that name; None: they are not counted."""
        found = [handlers[event] for handlers in self._handlers if event in handlers]
        return found[0] if len(found) == 1 else partial(_each, found) if found else None

    def scrape(self, tasks: Callable[[], Sized], keys: KeyStates) -> bytes:
        """All metrics in Prometheus' text format; `tasks` finds the tasks of the event loop."""
        self._find["asyncio_tasks"]().set(len(tasks()))
        self._show_keys(keys)
        if self._directory:
            workers.remove_gauges_of_dead_workers(Path(self._directory))
        return self._series.text(self._directory)

    def _show_keys(self, keys: KeyStates) -> None:
        """Set how many keys are in each state; none where an upstream or a tool has none any more."""
        self._shown_keys.update(keys)
        for owner in self._shown_keys:
            kind, name = owner
            states = keys.get(owner, ())
            usable, refused = states.count("usable"), states.count("refused")
            for state, count in (("usable", usable), ("resting", len(states) - usable - refused), ("refused", refused)):
                self._find[f"{kind}_keys"](name, state).set(count)

    def _count(self, name: str, labels: Sequence[str], fields: Mapping[str, Any]) -> None:
        self._find[name](*map(fields.__getitem__, labels)).inc()

    def _switch(self, name: str, label: str, number: int, fields: Mapping[str, Any]) -> None:
        self._find[name](fields[label]).set(number)

    def _response_started(self, fields: Mapping[str, Any]) -> None:
        if fields["event_stream"]:
            self._find["open_streams"]().inc()

    def _request_completed(self, fields: Mapping[str, Any]) -> None:
        request: Mapping[str, Any] = request_context.fields.get({})
        client, model, path = request.get("client"), request.get("model"), fields["path"]
        self._find["open_requests"]().inc(-1)
        if fields.get("event_stream"):
            self._find["open_streams"]().inc(-1)
        self._find["requests"](path, client, model, fields["status"]).inc()
        self._find["request_seconds"](path, model).observe(fields["seconds"])
        if (first_byte := fields.get("first_byte")) is not None:
            self._find["request_first_byte_seconds"](path, model).observe(first_byte)
        if "turns" in request:
            self._find["request_turns"](model).observe(request["turns"])
            self._find["request_tool_calls"](model).observe(request.get("tool_calls") or 0)
        self._count_use(request)
        if (stop := request.get("stop")) in LIMIT_STOPS:
            self._find["limits"](stop).inc()
        if (rung := request.get("rung")) is not None:
            self._find["forced_answers"](rung).inc()

    def _count_use(self, request: Mapping[str, Any]) -> None:
        """Count what a request has used, by client and model; an upstream may send any number, a negative one too."""
        client, model = request.get("client"), request.get("model")
        for field, kind in (("prompt_tokens", "prompt"), ("completion_tokens", "completion")):
            if (tokens := request.get(field, 0)) > 0:
                self._find["tokens"](client, model, kind).inc(tokens)
        if (cached := request.get("cached_tokens", 0)) > 0:
            self._find["cached_tokens"](client, model).inc(cached)
        if (calls := request.get("tool_calls", 0)) > 0:
            self._find["client_tool_calls"](client, model).inc(calls)
        if (cost := request.get("cost", 0)) > 0:
            self._find["cost"](client, model).inc(cost)

    def _budget_checked(self, fields: Mapping[str, Any]) -> None:
        for kind, (limit, used) in fields["kinds"].items():
            self._find["client_budget_limit"](fields["client"], kind).set(limit)
            self._find["client_budget_used"](fields["client"], kind).set(used)

    def _tool_ended(self, fields: Mapping[str, Any]) -> None:
        tool = fields.get("answered_by") or fields["tool"]
        self._find["tool_calls"](tool, fields.get("outcome") or "ok").inc()
        self._find["tool_seconds"](tool).observe(fields["seconds"])

    def _upstream_answered(self, fields: Mapping[str, Any]) -> None:
        self._find["upstream_seconds"](fields["upstream"]).observe(fields["seconds"])
        if (first := fields["first"]) is not None:
            self._find["upstream_first_seconds"](fields["upstream"]).observe(first)

    def _upstream_failed(self, fields: Mapping[str, Any]) -> None:
        error = upstream_error(fields.get("code"), fields.get("status"))
        self._find["upstream_errors"](fields["upstream"], error).inc()

    def _loaded(self) -> None:
        self._find["config_last_reload_successful"]().set(1)
        self._find["config_last_reload_success_timestamp_seconds"]().set(time.time())

    def _reloaded(self, _: Mapping[str, Any]) -> None:
        self._find["reloads"]("ok").inc()
        self._loaded()

    def _reload_refused(self, _: Mapping[str, Any]) -> None:
        self._find["reloads"]("refused").inc()
        self._find["config_last_reload_successful"]().set(0)

    def _continuation_sought(self, fields: Mapping[str, Any]) -> None:
        self._find["state_lookups"]("hit").inc(fields["found"])
        self._find["state_lookups"]("miss").inc(fields["sought"] - fields["found"])

    def _continuation_kept(self, fields: Mapping[str, Any]) -> None:
        if fields.get("entries") is not None:
            self._find["state_entries"]().set(fields["entries"])
        if fields.get("bytes") is not None:
            self._find["state_bytes"]().set(fields["bytes"])


def _each(handlers: Iterable[Handler], fields: dict[str, Any]) -> None:
    for handle in handlers:
        handle(fields)


def upstream_error(code: object, status: object) -> str:
    """The kind of an upstream's error: its code where we know that code, else what its status stands for."""
    if code in _UPSTREAM_ERRORS:
        return str(code)
    if not isinstance(status, int) or status >= _FIRST_SERVER_ERROR:
        return "upstream_error"
    return _ERRORS_BY_STATUS.get(status, "invalid_request")
