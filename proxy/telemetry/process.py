"""The operating system's figures of a process, or of all workers together: CPU time, memory, open files (proc(5))."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

PROCESS_METRICS: Final = {
    "toolproxy_process_cpu_seconds_total": "CPU time of all worker processes and their supervisor, in seconds",
    "toolproxy_process_resident_memory_bytes": "Resident memory of these processes; what they share counts for each",
    "toolproxy_process_virtual_memory_bytes": "Virtual memory of these processes",
    "toolproxy_process_open_fds": "Open file descriptors of these processes",
    "toolproxy_process_max_fds": "File descriptors that one of these processes may have open",
    "toolproxy_process_start_time_seconds": "When the first of these processes started, in seconds since 1970",
}
_FIRST: Final = "toolproxy_process_start_time_seconds"
_LIMIT: Final = "toolproxy_process_max_fds"


class ProcessFigures(Collector):
    """Sums the figures of several processes; where there is no /proc, there are none.

    Args:
        pids: the processes that are running now.
    """

    def __init__(self, pids: Callable[[], Iterable[int]], registry: CollectorRegistry) -> None:
        self._pids = pids
        registry.register(self)

    def describe(self) -> Iterable[Metric]:
        """Describe no metrics, so that registering the collector does not collect them."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """The sum of each figure, the earliest start, and the lowest limit."""
        found: dict[str, list[Metric]] = {}
        for pid in self._pids():
            for metric in ProcessCollector("toolproxy", pid=partial(int, pid), registry=None).collect():
                found.setdefault(metric.samples[0].name, []).append(metric)
        for name, metrics in found.items():
            merge = min if name in (_FIRST, _LIMIT) else sum
            first = metrics[0]
            first.documentation = PROCESS_METRICS[name]
            first.samples[0] = first.samples[0]._replace(value=merge(one.samples[0].value for one in metrics))
            yield first
