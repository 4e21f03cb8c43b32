"""Every series by name: the table that `docs/operations.md`, the dashboard and the alerts refer to.

Importing it imports prometheus_client, which looks at `PROMETHEUS_MULTIPROC_DIR` then and never again.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, Final, Generic, Literal, TypeVar

from prometheus_client import CollectorRegistry, disable_created_metrics, generate_latest
from prometheus_client import Counter as CheckedCounter
from prometheus_client import Gauge as CheckedGauge
from prometheus_client import Histogram as CheckedHistogram
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.values import MutexValue

# From what a cache answers in to the default of `limits.max_duration`.
SECONDS: Final = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640, 1200)
COUNTS: Final = (0, 1, 2, 3, 4, 5, 7, 10, 15, 20, 50)

_ROUTE: Final = ("route", "model")

disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each, with nothing in it but its age


class Counter(CheckedCounter):
    """The library's, without its checks: ours has its labels whenever it counts, and never counts down.

    And without its lock, where one process counts for itself: all events are heard by the thread of the event loop.
    """

    def inc(self, amount: float = 1, _: Any = None) -> None:
        """Count."""
        value = self._value
        if value.__class__ is MutexValue:
            value._value += amount  # noqa: SLF001 - there is no other way around the lock
        else:
            value.inc(amount)


class Gauge(CheckedGauge):
    """The same."""

    def inc(self, amount: float = 1) -> None:
        """One more."""
        value = self._value
        if value.__class__ is MutexValue:
            value._value += amount  # noqa: SLF001 - the same
        else:
            value.inc(amount)

    def dec(self, amount: float = 1) -> None:
        """One less."""
        self.inc(-amount)


class Histogram(CheckedHistogram):
    """The same; and the bucket is found by halving, not one by one."""

    def observe(self, amount: float, _: Any = None) -> None:
        """Count one, of that size."""
        total, bucket = self._sum, self._buckets[bisect_left(self._upper_bounds, amount)]
        if total.__class__ is MutexValue:
            total._value += amount  # noqa: SLF001 - the same
            bucket._value += 1  # noqa: SLF001
        else:
            total.inc(amount)
            bucket.inc(1)


class Series:
    """All of them, in a registry of their own: one process may hold several proxies."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.labels: dict[str, tuple[str, ...]] = {}
        self._make_requests()
        self._make_use()
        self._make_tools()
        self._make_upstreams()
        self._make_state()

    def _make_requests(self) -> None:
        self.info = self._gauge("info", "1, with the version as its label", ["version"], mode="livemax")
        self.requests = self._counter("requests", "Answered requests", ["route", "client", "model", "status"])
        self.request_seconds = self._seconds("request_seconds", "From a request to the end of its answer", _ROUTE)
        self.first_byte_seconds = self._seconds(
            "request_first_byte_seconds", "From a request to the first byte of its answer, keep-alives included", _ROUTE
        )
        self.open_requests = self._gauge("open_requests", "Requests that are being answered")
        self.open_requests_limit = self._gauge("open_requests_limit", "As many as may be (max_concurrent_requests)")
        self.open_streams = self._gauge("open_streams", "Answers that are being streamed")
        self.tasks = self._gauge(
            "asyncio_tasks", "Tasks of the event loop, of the worker that is asked", mode="livemostrecent"
        )

    def _make_use(self) -> None:
        self.turns = self._counts("request_turns", "Upstream calls of one request with server tools", ["model"])
        self.request_tool_calls = self._counts("request_tool_calls", "Tool calls of one such request", ["model"])
        self.tokens = self._counter("tokens", "Tokens, by the upstreams' own count", ["client", "model", "kind"])
        self.limits = self._counter("limits", "Requests that met a limit", ["kind"])
        self.forced_answers = self._counter("forced_answers", "Answers that a model had to be made to give", ["rung"])

    def _make_tools(self) -> None:
        self.tool_calls = self._counter("tool_calls", "Tool calls", ["tool", "outcome"])
        self.tool_seconds = self._seconds("tool_seconds", "One tool call, whatever became of it", ["tool"])
        self.tool_cache_hits = self._counter("tool_cache_hits", "Calls answered with an earlier result", ["tool"])
        self.tool_retries = self._counter("tool_retries", "Calls of a tool that were tried again", ["tool"])
        self.tool_breaker_openings = self._counter(
            "tool_breaker_openings", "How often a tool kept failing and was left alone for a while", ["tool"]
        )
        self.tool_fallbacks = self._counter("tool_fallbacks", "Calls that another tool was asked for", ["tool", "to"])

    def _make_upstreams(self) -> None:
        self.upstream_seconds = self._seconds("upstream_seconds", "One upstream call that succeeded", ["upstream"])
        self.upstream_first_seconds = self._seconds(
            "upstream_first_seconds", "From an upstream call to the first part that a client sees", ["upstream"]
        )
        self.upstream_errors = self._counter("upstream_errors", "Upstream calls that failed", ["upstream", "error"])
        self.upstream_retries = self._counter("upstream_retries", "Upstream calls that were tried again", ["upstream"])
        self.upstream_fallbacks = self._counter(
            "upstream_fallbacks", "Requests that went on to another model's upstream", ["upstream", "to"]
        )
        self.breaker_open = self._gauge(
            "upstream_breaker_open", "1 while an upstream is left alone", ["upstream"], mode="livemax"
        )

    def _make_state(self) -> None:
        self.state_entries = self._gauge("state_entries", "Continuations in memory, when one was last kept")
        self.state_bytes = self._gauge("state_bytes", "Their size in bytes")
        self.state_lookups = self._counter("state_lookups", "Continuations that a history asked for", ["outcome"])

    def text(self, directory: str | None) -> bytes:
        """Prometheus' text format; `directory`: where several workers count."""
        registry = self.registry
        if directory:
            registry = CollectorRegistry()
            MultiProcessCollector(registry, directory)  # type: ignore[no-untyped-call]
        return generate_latest(registry)

    def _counter(self, name: str, says: str, labels: Sequence[str] = ()) -> "Family[Counter]":
        return Family(Counter(self._named(name, labels), says, labels, registry=self.registry))

    def _seconds(self, name: str, says: str, labels: Sequence[str]) -> "Family[Histogram]":
        return Family(Histogram(self._named(name, labels), says, labels, buckets=SECONDS, registry=self.registry))

    def _counts(self, name: str, says: str, labels: Sequence[str]) -> "Family[Histogram]":
        return Family(Histogram(self._named(name, labels), says, labels, buckets=COUNTS, registry=self.registry))

    def _gauge(
        self,
        name: str,
        says: str,
        labels: Sequence[str] = (),
        *,
        mode: Literal["livesum", "livemax", "livemostrecent"] = "livesum",
    ) -> "Family[Gauge]":
        name = self._named(name, labels)
        return Family(Gauge(name, says, labels, registry=self.registry, multiprocess_mode=mode))

    def _named(self, name: str, labels: Sequence[str]) -> str:
        """The series' whole name, noted with its labels: the library tells nobody."""
        whole = f"toolproxy_{name}"
        self.labels[whole] = tuple(labels)
        return whole


Kind = TypeVar("Kind", Counter, Gauge, Histogram)


class Family(Generic[Kind]):
    """All series of one name. The library takes a lock to find one of them; this remembers."""

    __slots__ = ("_found", "_metric")

    def __init__(self, metric: Kind) -> None:
        self._metric: Kind = metric
        self._found: dict[tuple[str, ...], Kind] = {}

    def labels(self, *values: str) -> Kind:
        """The series with these labels; without any, the only one."""
        found = self._found.get(values)
        if found is None:
            found = self._found[values] = self._metric.labels(*values) if values else self._metric
        return found
