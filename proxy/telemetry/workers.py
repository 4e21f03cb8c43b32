"""The directory in which several workers share metrics and records: each writes files of its own, and reads all.

prometheus_client reads `PROMETHEUS_MULTIPROC_DIR` when it is imported, so the directory is made before any worker.
Records may hold conversations, so a directory whose processes were killed is removed by the next start.
"""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Final

from proxy.config.model import Config
from proxy.wire.errors import ConfigurationError

VARIABLE: Final = "PROMETHEUS_MULTIPROC_DIR"

_PREFIX: Final = "toolproxy-metrics-"
_LOCK: Final = "in-use"


@contextmanager
def shared_directory(config: Config) -> Iterator[None]:
    """Make the directory, and remove it when the workers have stopped; a single worker uses its own memory.

    It is made in the directory that the environment variable names, if that is set.

    Raises:
        ConfigurationError: the directory cannot be made.
    """
    given = os.environ.pop(VARIABLE, None)
    if config.server.workers == 1 or not config.telemetry.metrics:
        yield
        return
    with _directory_in(given) as made, (Path(made) / _LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _remove_leftovers(Path(given or gettempdir()))
        os.environ[VARIABLE] = made
        yield


def check_directory(config: Config) -> None:
    """Raise `ConfigurationError` where `shared_directory` would."""
    if config.server.workers > 1 and config.telemetry.metrics:
        _directory_in(os.environ.get(VARIABLE)).cleanup()


def _directory_in(given: str | None) -> TemporaryDirectory[str]:
    try:
        return TemporaryDirectory(prefix=_PREFIX, dir=given)
    except OSError as exc:
        how = f"set {VARIABLE if given else 'TMPDIR'} to one, or telemetry.metrics to false"
        raise ConfigurationError([f"several workers need a writable folder for their metrics ({exc}): {how}"]) from exc


def _remove_leftovers(parent: Path) -> None:
    """Remove the directories of supervisors that were killed: nobody holds their locks any more."""
    for path in parent.glob(f"{_PREFIX}*/{_LOCK}"):
        with suppress(OSError), path.open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path.parent, ignore_errors=True)


def directory() -> str | None:
    """The shared directory; None where there is one worker only."""
    return os.environ.get(VARIABLE)


def processes(where: Path | None) -> list[int]:
    """The processes that count in a directory, the supervisor among them; without one, this process."""
    if where is None:
        return [os.getpid()]
    return sorted(filter(is_running, {_writer_of(path) for path in where.glob("counter_*.db")}))


def remove_gauges_of_dead_workers(where: Path) -> None:
    """Remove the gauges of workers that have ended, such as their open requests; their counters stay."""
    for path in where.glob("gauge_live*.db"):
        if not is_running(_writer_of(path)):
            path.unlink(missing_ok=True)  # another worker may have been asked at the same time


def _writer_of(path: Path) -> int:
    """The process that writes a file of metrics, such as `gauge_livesum_123.db`."""
    return int(path.stem.rpartition("_")[2])


def is_running(process: int) -> bool:
    """Whether there is a process of that number."""
    try:
        os.kill(process, 0)
    except OSError as exc:
        return isinstance(exc, PermissionError)  # it belongs to somebody else
    return True
