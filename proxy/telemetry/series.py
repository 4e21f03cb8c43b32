"""Every metric by name: the table that `docs/observability.md`, the dashboard and the alerts refer to.

The import of prometheus_client reads `PROMETHEUS_MULTIPROC_DIR`, so `workers` must have set it before this module is
imported.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import prometheus_client
from prometheus_client import CollectorRegistry, disable_created_metrics, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.values import MutexValue

from proxy.telemetry import workers
from proxy.telemetry.process import ProcessFigures

# From the time of a cached answer to the default of `limits.max_duration`.
SECONDS: Final = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640, 1200)
COUNTS: Final = (0, 1, 2, 3, 4, 5, 7, 10, 15, 20, 50)

_ROUTE: Final = ("route", "model")
_MOST_CACHED: Final = 1000  # per metric: clients may choose what the cache is looked up by

disable_created_metrics()  # type: ignore[no-untyped-call]  # they would double the number of series

Metric = TypeVar("Metric", "Counter", "Gauge", "Histogram")


class _Unchecked:
    """A number that omits the library's checks, and its lock where one process counts: one thread takes all events.

    Checks and lock take 6 % of a request.
    """

    _value: Any

    def inc(self, amount: float = 1, _: Any = None) -> None:
        """Add one or more to the number."""
        if isinstance(self._value, MutexValue):
            self._value._value += amount  # noqa: SLF001 - the public method locks
        else:
            self._value.inc(amount)


class Counter(_Unchecked, prometheus_client.Counter):
    """A number that grows."""


class Gauge(_Unchecked, prometheus_client.Gauge):
    """A number that grows and shrinks."""


class Histogram(prometheus_client.Histogram):
    """A histogram without checks and lock, too, that finds the bucket by bisection."""

    def observe(self, amount: float, _: Any = None) -> None:
        """Count one observation of that size."""
        total, bucket = self._sum, self._buckets[bisect_left(self._upper_bounds, amount)]
        if isinstance(total, MutexValue):
            total._value += amount  # noqa: SLF001 - the public method locks
            bucket._value += 1  # noqa: SLF001
        else:
            total.inc(amount)
            bucket.inc(1)


class Series:
    """All metrics, in a registry of their own: one process may hold several proxies.

    A metric with labels is a function that gives the series for the label values; the series are cached.

    Args:
        label_values: by a label's name, what makes its value of the value that an event has; `str` unless given.
    """

    def __init__(self, label_values: Mapping[str, Callable[[Any], str]] | None = None) -> None:
        self.registry = CollectorRegistry()
        self.processes = CollectorRegistry()
        directory = workers.directory()
        ProcessFigures(partial(workers.processes, Path(directory) if directory else None), self.processes)
        self.labels: dict[str, tuple[str, ...]] = {}
        self._label_values = label_values or {}
        self._forget: list[Callable[[], None]] = []
        self._make_requests()
        self._make_use()
        self._make_tools()
        self._make_upstreams()
        self._make_state()
        self._make_configuration()

    def _make_requests(self) -> None:
        self.info = self._gauges("info", "Always 1; the version is its label", ["version"])
        self.requests = self._counter("requests", "Completed requests", ["route", "client", "model", "status"])
        self.request_seconds = self._seconds("request_seconds", "Seconds from request to end of response", _ROUTE)
        self.first_byte_seconds = self._seconds(
            "request_first_byte_seconds",
            "Seconds from request to first byte of the response, which may be a keep-alive comment",
            _ROUTE,
        )
        self.open_requests = self._gauge("open_requests", "Requests in progress")
        self.open_requests_limit = self._gauge(
            "open_requests_limit", "Configured maximum of concurrent requests (server.max_concurrent_requests)"
        )
        self.open_streams = self._gauge("open_streams", "Streamed responses in progress")
        self.tasks = self._gauge(
            "asyncio_tasks", "Tasks of the event loop in the worker that answers the scrape", "livemostrecent"
        )

    def _make_use(self) -> None:
        self.turns = self._counts("request_turns", "Upstream calls per request with server tools", ["model"])
        self.request_tool_calls = self._counts(
            "request_tool_calls", "Tool calls per request with server tools", ["model"]
        )
        self.tokens = self._counter("tokens", "Tokens, as counted by the upstreams", ["client", "model", "kind"])
        self.cached_tokens = self._counter(
            "cached_tokens", "Prompt tokens that the upstreams had cached", ["client", "model"]
        )
        self.cost = self._counter(
            "cost", "Cost of models and tools, in the currency of the configured prices", ["client", "model"]
        )
        self.client_tool_calls = self._counter(
            "client_tool_calls", "Tool calls that were run, by client", ["client", "model"]
        )
        self.budget_limit = self._gauges(
            "client_budget_limit", "What a client may use in a day or month", ["client", "kind"], "livemostrecent"
        )
        self.budget_used = self._gauges(
            "client_budget_used",
            "What a client has used of its budget, at the start of its latest request",
            ["client", "kind"],
            "livemostrecent",
        )
        self.limits = self._counter("limits", "Requests that reached a limit, by the kind of limit", ["kind"])
        self.forced_answers = self._counter(
            "forced_answers", "Requests whose model had to be made to answer, by the step that did it", ["rung"]
        )

    def _make_tools(self) -> None:
        self.tool_calls = self._counter("tool_calls", "Tool calls by outcome", ["tool", "outcome"])
        self.tool_seconds = self._seconds("tool_seconds", "Seconds per tool call, failed calls included", ["tool"])
        self.tool_cache_hits = self._counter("tool_cache_hits", "Tool calls answered from the cache", ["tool"])
        self.tool_checks = self._counter(
            "tool_checks", "Results judged by a tool's check, by outcome", ["tool", "outcome"]
        )
        self.tool_searches = self._counter(
            "tool_searches", "Tool searches of models (find_tools), by outcome", ["outcome"]
        )
        self.pages_read = self._counter(
            "pages_read", "Pages that searches have fetched for the model, by outcome", ["outcome"]
        )
        self.tool_retries = self._counter("tool_retries", "Retries of tool calls", ["tool"])
        self.tool_breaker_openings = self._counter(
            "tool_breaker_openings", "Times that a tool's circuit breaker opened", ["tool"]
        )
        self.tool_breaker_open = self._gauges(
            "tool_breaker_open",
            "1 while calls of a tool are suspended because its service fails or refuses them",
            ["tool"],
        )
        self.tool_keys = self._gauges(
            "tool_keys",
            "Keys of a tool with several keys, by state, in the worker that answers the scrape",
            ["tool", "state"],
            "livemostrecent",
        )
        self.tool_key_requests = self._counter(
            "tool_key_requests", "Requests of a tool with several keys, by number of the key", ["tool", "key"]
        )
        self.tool_fallbacks = self._counter(
            "tool_fallbacks", "Tool calls passed to the fallback tool after a failure", ["tool", "to"]
        )

    def _make_upstreams(self) -> None:
        self.upstream_seconds = self._seconds("upstream_seconds", "Seconds per successful upstream call", ["upstream"])
        self.upstream_first_seconds = self._seconds(
            "upstream_first_seconds", "Seconds from upstream call to the first part visible to the client", ["upstream"]
        )
        self.upstream_errors = self._counter("upstream_errors", "Failed upstream calls", ["upstream", "error"])
        self.upstream_retries = self._counter("upstream_retries", "Retries of upstream calls", ["upstream"])
        self.upstream_fallbacks = self._counter(
            "upstream_fallbacks", "Upstream calls passed to the next model of `fallbacks`", ["upstream", "to"]
        )
        self.breaker_open = self._gauges(
            "upstream_breaker_open", "1 while an upstream's circuit breaker is open", ["upstream"]
        )
        self.upstream_keys = self._gauges(
            "upstream_keys",
            "Keys of an upstream with several keys, by state, in the worker that answers the scrape",
            ["upstream", "state"],
            "livemostrecent",
        )
        self.upstream_key_requests = self._counter(
            "upstream_key_requests", "Calls of an upstream with several keys, by number of the key", ["upstream", "key"]
        )

    def _make_state(self) -> None:
        self.state_entries = self._gauge("state_entries", "Continuations and responses in memory, as of the last write")
        self.state_bytes = self._gauge(
            "state_bytes", "Bytes of continuations and responses in memory, as of the last write"
        )
        self.state_lookups = self._counter("state_lookups", "Lookups of continuations by outcome", ["outcome"])

    def _make_configuration(self) -> None:
        self.reloads = self._counter("reloads", "Times the configuration was reloaded, by outcome", ["outcome"])
        self.last_reload_successful = self._gauge(
            "config_last_reload_successful", "1 if the configuration that was read last is valid", "livemostrecent"
        )
        self.last_reload_success_time = self._gauge(
            "config_last_reload_success_timestamp_seconds",
            "When the configuration in force was read, in seconds since 1970",
            "livemostrecent",
        )

    def forget_labels(self) -> None:
        """Make the label values of events anew, since what they become has changed."""
        for forget in self._forget:
            forget()

    def text(self, directory: str | None) -> bytes:
        """All metrics in Prometheus' text format, of all workers where they share a `directory`."""
        registry = self.registry
        if directory:
            registry = CollectorRegistry()
            MultiProcessCollector(registry, directory)  # type: ignore[no-untyped-call]
        return generate_latest(registry) + generate_latest(self.processes)

    def _counter(self, name: str, text: str, labels: Sequence[str]) -> Callable[..., Counter]:
        return self._cached(Counter(self._named(name, labels), text, labels, registry=self.registry), labels)

    def _seconds(self, name: str, text: str, labels: Sequence[str]) -> Callable[..., Histogram]:
        name = self._named(name, labels)
        return self._cached(Histogram(name, text, labels, buckets=SECONDS, registry=self.registry), labels)

    def _counts(self, name: str, text: str, labels: Sequence[str]) -> Callable[..., Histogram]:
        name = self._named(name, labels)
        return self._cached(Histogram(name, text, labels, buckets=COUNTS, registry=self.registry), labels)

    def _gauges(
        self, name: str, text: str, labels: Sequence[str], mode: Literal["livemax", "livemostrecent"] = "livemax"
    ) -> Callable[..., Gauge]:
        gauge = Gauge(self._named(name, labels), text, labels, registry=self.registry, multiprocess_mode=mode)
        return self._cached(gauge, labels)

    def _gauge(self, name: str, text: str, mode: Literal["livesum", "livemostrecent"] = "livesum") -> Gauge:
        return Gauge(self._named(name, ()), text, registry=self.registry, multiprocess_mode=mode)

    def _named(self, name: str, labels: Sequence[str]) -> str:
        """The metric's full name, noted with its labels for the documentation."""
        full = f"toolproxy_{name}"
        self.labels[full] = tuple(labels)
        return full

    def _cached(self, metric: Metric, labels: Sequence[str]) -> Callable[..., Metric]:
        """A function from values of events to the series with the label values that they become."""
        label_values = [self._label_values.get(label, str) for label in labels]

        def find(*values: object) -> Metric:
            return metric.labels(*(label(value) for label, value in zip(label_values, values, strict=True)))

        cached = lru_cache(_MOST_CACHED)(find)
        self._forget.append(cached.cache_clear)
        return cached
