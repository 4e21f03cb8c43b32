"""Every metric by name: the table that `docs/observability.md`, the dashboard and the alerts refer to.

The import of prometheus_client reads `PROMETHEUS_MULTIPROC_DIR`, so `workers` must have set it before this module is
imported.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import prometheus_client
from prometheus_client import CollectorRegistry, disable_created_metrics, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.values import MutexValue

from proxy.telemetry import workers
from proxy.telemetry.process import ProcessFigures

# From the time of a cached answer to the default of `limits.max_duration`.
SECONDS: Final = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640, 1200)
COUNTS: Final = (0, 1, 2, 3, 4, 5, 7, 10, 15, 20, 50)

_MOST_CACHED: Final = 1000  # per metric: clients may choose what the cache is looked up by

disable_created_metrics()  # type: ignore[no-untyped-call]  # they would double the number of series

_Kind: TypeAlias = Literal["counter", "seconds", "counts", "livesum", "livemax", "livemostrecent"]
"""What a metric is: a counter, a histogram of seconds or of counts, or a gauge by how those of workers are joined."""


class Metric(NamedTuple):
    """A metric; `labels` are separated by blanks."""

    name: str
    kind: _Kind
    help: str
    labels: str = ""


METRICS: Final = (
    Metric("info", "livemax", "Always 1; the version is its label", "version"),
    Metric("requests", "counter", "Completed requests", "route client model status"),
    Metric("request_seconds", "seconds", "Seconds from request to end of response", "route model"),
    Metric(
        "request_first_byte_seconds",
        "seconds",
        "Seconds from request to first byte of the response, which may be a keep-alive comment",
        "route model",
    ),
    Metric("open_requests", "livesum", "Requests in progress"),
    Metric(
        "open_requests_limit", "livesum", "Configured maximum of concurrent requests (server.max_concurrent_requests)"
    ),
    Metric("open_streams", "livesum", "Streamed responses in progress"),
    Metric("asyncio_tasks", "livemostrecent", "Tasks of the event loop in the worker that answers the scrape"),
    Metric("request_turns", "counts", "Upstream calls per request with server tools", "model"),
    Metric("request_tool_calls", "counts", "Tool calls per request with server tools", "model"),
    Metric("tokens", "counter", "Tokens, as counted by the upstreams", "client model kind"),
    Metric("cached_tokens", "counter", "Prompt tokens that the upstreams had cached", "client model"),
    Metric("cost", "counter", "Cost of models and tools, in the currency of the configured prices", "client model"),
    Metric("client_tool_calls", "counter", "Tool calls that were run, by client", "client model"),
    Metric("client_budget_limit", "livemostrecent", "What a client may use in a day or month", "client kind"),
    Metric(
        "client_budget_used",
        "livemostrecent",
        "What a client has used of its budget, at the start of its latest request",
        "client kind",
    ),
    Metric("limits", "counter", "Requests that reached a limit, by the kind of limit", "kind"),
    Metric(
        "forced_answers", "counter", "Requests whose model had to be made to answer, by the step that did it", "rung"
    ),
    Metric("tool_calls", "counter", "Tool calls by outcome", "tool outcome"),
    Metric("tool_seconds", "seconds", "Seconds per tool call, failed calls included", "tool"),
    Metric("tool_cache_hits", "counter", "Tool calls answered from the cache", "tool"),
    Metric("tool_checks", "counter", "Results judged by a tool's check, by outcome", "tool outcome"),
    Metric("tool_searches", "counter", "Tool searches of models (find_tools), by outcome", "outcome"),
    Metric("pages_read", "counter", "Pages that searches have fetched for the model, by outcome", "outcome"),
    Metric("tool_retries", "counter", "Retries of tool calls", "tool"),
    Metric("tool_breaker_openings", "counter", "Times that a tool's circuit breaker opened", "tool"),
    Metric(
        "tool_breaker_open",
        "livemax",
        "1 while calls of a tool are suspended because its service fails or refuses them",
        "tool",
    ),
    Metric(
        "tool_keys",
        "livemostrecent",
        "Keys of a tool with several keys, by state, in the worker that answers the scrape",
        "tool state",
    ),
    Metric("tool_key_requests", "counter", "Requests of a tool with several keys, by number of the key", "tool key"),
    Metric("tool_fallbacks", "counter", "Tool calls passed to the fallback tool after a failure", "tool to"),
    Metric("upstream_seconds", "seconds", "Seconds per successful upstream call", "upstream"),
    Metric(
        "upstream_first_seconds",
        "seconds",
        "Seconds from upstream call to the first part visible to the client",
        "upstream",
    ),
    Metric("upstream_errors", "counter", "Failed upstream calls", "upstream error"),
    Metric("upstream_retries", "counter", "Retries of upstream calls", "upstream"),
    Metric("upstream_fallbacks", "counter", "Upstream calls passed to the next model of `fallbacks`", "upstream to"),
    Metric("upstream_breaker_open", "livemax", "1 while an upstream's circuit breaker is open", "upstream"),
    Metric(
        "upstream_keys",
        "livemostrecent",
        "Keys of an upstream with several keys, by state, in the worker that answers the scrape",
        "upstream state",
    ),
    Metric(
        "upstream_key_requests",
        "counter",
        "Calls of an upstream with several keys, by number of the key",
        "upstream key",
    ),
    Metric("state_entries", "livesum", "Continuations and responses in memory, as of the last write"),
    Metric("state_bytes", "livesum", "Bytes of continuations and responses in memory, as of the last write"),
    Metric("state_lookups", "counter", "Lookups of continuations by outcome", "outcome"),
    Metric("reloads", "counter", "Times the configuration was reloaded, by outcome", "outcome"),
    Metric("config_last_reload_successful", "livemostrecent", "1 if the configuration that was read last is valid"),
    Metric(
        "config_last_reload_success_timestamp_seconds",
        "livemostrecent",
        "When the configuration in force was read, in seconds since 1970",
    ),
)


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

    Args:
        label_values: by a label's name, what makes its value of the value that an event has; `str` unless given.

    Attributes:
        labels: the labels of each metric, by its full name.
        find: by the name of a metric, a function from values of events to the series with the label values that they
            become; the series are cached.
    """

    def __init__(self, label_values: Mapping[str, Callable[[Any], str]] | None = None) -> None:
        self.registry = CollectorRegistry()
        self.processes = CollectorRegistry()
        directory = workers.directory()
        ProcessFigures(partial(workers.processes, Path(directory) if directory else None), self.processes)
        self.labels = {f"toolproxy_{metric.name}": tuple(metric.labels.split()) for metric in METRICS}
        self._label_values = label_values or {}
        self._forget: list[Callable[[], None]] = []
        self.find = {metric.name: self._finder(metric) for metric in METRICS}

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

    def _finder(self, metric: Metric) -> Callable[..., Any]:
        made = self._made(metric)
        label_values = [self._label_values.get(label, str) for label in metric.labels.split()]

        def find(*values: object) -> Any:
            labels = [label(value) for label, value in zip(label_values, values, strict=True)]
            return made.labels(*labels) if labels else made

        cached = lru_cache(_MOST_CACHED)(find)
        self._forget.append(cached.cache_clear)
        return cached

    def _made(self, metric: Metric) -> Counter | Gauge | Histogram:
        name, labels = f"toolproxy_{metric.name}", metric.labels.split()
        match metric.kind:
            case "counter":
                return Counter(name, metric.help, labels, registry=self.registry)
            case "seconds" | "counts":
                buckets = SECONDS if metric.kind == "seconds" else COUNTS
                return Histogram(name, metric.help, labels, buckets=buckets, registry=self.registry)
        return Gauge(name, metric.help, labels, registry=self.registry, multiprocess_mode=metric.kind)
