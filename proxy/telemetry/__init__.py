"""The telemetry of one proxy, put together as its configuration asks; what is switched off is not imported."""

from collections.abc import Callable
from dataclasses import dataclass

from starlette.types import ASGIApp

from proxy.config import Config, secrets_of
from proxy.ports import Clock, ExtraHeaders, History, Observer, Scrape
from proxy.redact import redactor
from proxy.telemetry import workers
from proxy.telemetry.events import FanOut, Subscriber
from proxy.telemetry.log import LogObserver
from proxy.telemetry.recent import Recent
from proxy.telemetry.records import RecordSink, RequestRecorder, trace_headers
from proxy.telemetry.trace_context import IncomingTrace


@dataclass(slots=True)
class Telemetry:
    """What the composition root needs of telemetry.

    Attributes:
        observe: takes every event.
        scrape: gives the metrics; None: metrics are off.
        history: has the records of the last requests; None: nobody may read them.
        extra_headers: trace headers for each request to an upstream or a tool; None: traces are off.
        incoming: middleware that reads the trace headers of a request; None: traces are off.
        close: sends the spans that are waiting; blocks for some seconds at most.
    """

    observe: Observer
    scrape: Scrape | None = None
    history: History | None = None
    extra_headers: ExtraHeaders | None = None
    incoming: Callable[[ASGIApp], ASGIApp] | None = None
    close: Callable[[], None] = lambda: None


def build_telemetry(config: Config, clock: Clock, *, version: str) -> Telemetry:
    """The log, and those of metrics, records and traces that the configuration asks for, behind one observer."""
    subscribers: list[Subscriber] = [LogObserver()]
    sinks: list[RecordSink] = []
    redact = redactor(secrets_of(config))
    telemetry = Telemetry(FanOut(subscribers, content=config.telemetry.log_content))
    if config.telemetry.metrics:
        from proxy.telemetry.metrics import Metrics  # noqa: PLC0415 - prometheus_client is not needed without

        metrics = Metrics(config, version=version)
        subscribers.append(metrics)
        telemetry.scrape = metrics.scrape
    if _may_be_read(config):
        telemetry.history = recent = Recent(workers.directory(), redact=redact)
        sinks.append(recent)
    if config.telemetry.otlp_endpoint:
        from proxy.telemetry.traces import Exporter  # noqa: PLC0415 - OpenTelemetry is an extra

        exporter = Exporter(config.telemetry.otlp_endpoint, version=version, redact=redact)
        sinks.append(exporter)
        telemetry.extra_headers, telemetry.incoming, telemetry.close = trace_headers, IncomingTrace, exporter.close
    if sinks:
        subscribers.append(RequestRecorder(sinks, clock=clock))
    return telemetry


def _may_be_read(config: Config) -> bool:
    """Whether anyone may read /debug: a client with `admin`; without clients, whoever can reach loopback."""
    if config.clients:
        return any(client.admin for client in config.clients)
    return not config.server.allow_anonymous
