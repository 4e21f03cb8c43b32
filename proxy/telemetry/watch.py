"""Everything that watches one proxy, as its configuration wants it: what is off is not there at all."""

from collections.abc import Callable
from dataclasses import dataclass

from starlette.types import ASGIApp

from proxy.config import Config, secrets_of
from proxy.ports import Clock, ExtraHeaders, History, Observer, Scrape
from proxy.redact import redactor
from proxy.telemetry import log, workers
from proxy.telemetry.observer import FanOut, Subscriber
from proxy.telemetry.recent import Recent
from proxy.telemetry.story import Reader, Storyteller


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class Watching:
    """What the composition root gets.

    Attributes:
        observe: hears every event.
        scrape: gives the metrics; None: they are off.
        history: remembers the last requests; None: nobody could read them.
        extra_headers: gives what ties traces together, for each request to an upstream or a tool; None: there are none.
        incoming: middleware that takes in what ties traces together; None: there are none.
        close: lets go of what is open, and sends what is still to be sent; blocks for some seconds at the most.
    """

    observe: Observer
    scrape: Scrape | None = None
    history: History | None = None
    extra_headers: ExtraHeaders | None = None
    incoming: Callable[[ASGIApp], ASGIApp] | None = None
    close: Callable[[], None] = _nothing


def watch(config: Config, clock: Clock, *, version: str) -> Watching:
    """The observers that the configuration asks for, behind one."""
    observers: list[Subscriber] = [log.LogObserver()]
    readers: list[Reader] = []
    redact = redactor(secrets_of(config))
    scrape = history = None
    if config.telemetry.metrics:
        from proxy.telemetry.metrics import Metrics  # noqa: PLC0415 - prometheus_client is not needed without

        metrics = Metrics(config, version=version)
        observers.append(metrics)
        scrape = metrics.scrape
    if _may_be_read(config):
        history = Recent(workers.directory(), redact=redact)
        readers.append(history)
    extra_headers: ExtraHeaders | None = None
    incoming: Callable[[ASGIApp], ASGIApp] | None = None
    close: Callable[[], None] = _nothing
    if config.telemetry.otlp_endpoint:
        from proxy.telemetry import traces  # noqa: PLC0415 - OpenTelemetry is an extra

        exporter = traces.Exporter(config.telemetry.otlp_endpoint, version=version, redact=redact)
        readers.append(exporter)
        extra_headers, incoming, close = traces.trace_headers, traces.Incoming, exporter.close
    if readers:
        observers.append(Storyteller(readers, clock=clock))
    observe = FanOut(observers, content=config.telemetry.log_content)
    return Watching(observe, scrape, history, extra_headers, incoming, close)


def _may_be_read(config: Config) -> bool:
    """Whether anybody may read /debug: an administrator, or where there are no clients whoever is at this machine."""
    if config.clients:
        return any(client.admin for client in config.clients)
    return not config.server.allow_anonymous
