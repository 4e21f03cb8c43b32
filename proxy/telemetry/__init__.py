"""The telemetry of one proxy, put together as its configuration asks; what is switched off is not imported."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.types import ASGIApp

from proxy.config.loaded import Loaded
from proxy.config.model import Config
from proxy.config.redaction import Redactor
from proxy.kit.secrets import Secrets
from proxy.ports import Clock, ExtraHeaders, Observer, RecentRequests, Scrape
from proxy.recording.cases import CasesUnder, KeptCases, Tools
from proxy.telemetry import log, workers
from proxy.telemetry.events import FanOut, Subscriber
from proxy.telemetry.log import LogObserver
from proxy.telemetry.recent import Recent
from proxy.telemetry.records import RecordSink, RequestRecorder, trace_headers
from proxy.telemetry.trace_context import incoming_trace

if TYPE_CHECKING:
    from proxy.telemetry.metrics import Metrics


@dataclass(slots=True)
class Telemetry:
    """The parts of telemetry that the composition root uses.

    Attributes:
        observe: takes every event.
        redact: masks secrets in records and traces.
        sinks: take the records of requests.
        clock: times the records.
        version: of the proxy.
        metrics: counts events; None: metrics are off.
        recent: has the records of the last requests; None: no configuration so far lets anybody read them.
        cases: has their cases; None: no configuration so far has had content recorded.
        extra_headers: trace headers for each request to an upstream or a tool; None: traces are off.
        incoming: middleware that reads the trace headers of a request; None: traces are off.
        close: sends the spans that are waiting; blocks for some seconds at most.
    """

    observe: FanOut
    redact: Redactor
    sinks: list[RecordSink]
    clock: Clock
    version: str
    metrics: "Metrics | None" = None
    recent: Recent | None = None
    cases: KeptCases | None = None
    extra_headers: ExtraHeaders | None = None
    incoming: Callable[[ASGIApp], ASGIApp] | None = None
    close: Callable[[], None] = lambda: None

    @property
    def scrape(self) -> Scrape | None:
        """Gives the metrics; None: metrics are off."""
        return self.metrics.scrape if self.metrics else None

    def recent_requests(self, config: Config) -> RecentRequests | None:
        """The records of the last requests, kept from the first call on; None where nobody may read them."""
        if not _may_be_read(config):
            return None
        if self.recent is None:
            self.recent = Recent(workers.directory(), redact=self.redact)
            self.add_sink(self.recent)
        return self.recent

    def cases_under(
        self, loaded: Loaded, tools: Callable[[], Tools], secrets: Callable[[], Secrets]
    ) -> CasesUnder | None:
        """The cases of requests under a configuration; None where it has no content recorded, or nobody may read it."""
        config = loaded.config
        if not (config.telemetry.log_content and _may_be_read(config)):
            return None
        if self.cases is None:
            self.cases = KeptCases(workers.directory(), version=self.version, observe=self.observe)
        return CasesUnder(self.cases, loaded, tools, secrets)

    def apply(self, config: Config, secrets: frozenset[str]) -> None:
        """Go on as a configuration has it, and mask these secrets everywhere.

        What was counted and recorded stays. Metrics and traces stay on or off.
        """
        self.redact.replace(secrets)
        log.reconfigure(config.telemetry, secrets=secrets)
        if self.metrics is not None:
            self.metrics.change(config)
        self.observe.change(content=config.telemetry.log_content)

    def add_sink(self, sink: RecordSink) -> None:
        """Give records of requests to one more sink."""
        self.sinks.append(sink)
        if len(self.sinks) == 1:
            self.observe.add(RequestRecorder(self.sinks, clock=self.clock))


def build_telemetry(config: Config, secrets: Iterable[str], clock: Clock, *, version: str) -> Telemetry:
    """The log, and those of metrics, records and traces that the configuration asks for, behind one observer."""
    subscribers: list[Subscriber] = [LogObserver()]
    redact = Redactor(secrets)
    metrics = _metrics(config, version=version, serves=True)
    if metrics is not None:
        subscribers.append(metrics)
    observe = FanOut(subscribers, content=config.telemetry.log_content)
    telemetry = Telemetry(observe, redact, [], clock, version, metrics)
    if config.telemetry.otlp_endpoint:
        from proxy.telemetry.traces import Exporter  # noqa: PLC0415 - OpenTelemetry is an extra

        exporter = Exporter(config.telemetry.otlp_endpoint, version=version, redact=redact)
        telemetry.add_sink(exporter)
        telemetry.extra_headers, telemetry.incoming, telemetry.close = trace_headers, incoming_trace, exporter.close
    return telemetry


def build_observer(config: Config, *, version: str) -> Observer:
    """The observer of a supervisor, which answers no request: the log and, where they are on, metrics."""
    metrics = _metrics(config, version=version, serves=False)
    return FanOut([LogObserver(), *([metrics] if metrics else [])], content=False)


def _metrics(config: Config, *, version: str, serves: bool) -> "Metrics | None":
    if not config.telemetry.metrics:
        return None
    from proxy.telemetry.metrics import Metrics  # noqa: PLC0415 - prometheus_client is not needed without

    return Metrics(config, version=version, serves=serves)


def _may_be_read(config: Config) -> bool:
    """Whether anyone may read /debug: a client with `admin`; without clients, whoever can reach loopback."""
    if config.clients:
        return any(client.admin for client in config.clients)
    return not config.server.allow_anonymous
