"""Several workers that count and remember together: each in files of its own, and whichever is asked reads them all.

prometheus_client looks at `PROMETHEUS_MULTIPROC_DIR` when it is imported: the directory is made before any worker.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from proxy.config import Config
from proxy.loop.errors import ConfigurationError

VARIABLE: Final = "PROMETHEUS_MULTIPROC_DIR"

_WHAT_IS_OPEN = re.compile(r"gauge_live[a-z]+_(\d+)\.db")


@contextmanager
def counting_together(config: Config) -> Iterator[None]:
    """Makes the directory, and removes it when the workers have stopped.

    It lies below the one that the environment names, if it names one. A single worker counts in its own memory.

    Raises:
        ConfigurationError: it cannot be made.
    """
    given = os.environ.pop(VARIABLE, None)
    if config.server.workers == 1 or not config.telemetry.metrics:
        yield
        return
    try:
        folder = TemporaryDirectory(prefix="toolproxy-metrics-", dir=given)
    except OSError as exc:
        how = "set TMPDIR to one, or telemetry.metrics to false"
        raise ConfigurationError([f"several workers need a writable folder for their metrics ({exc}): {how}"]) from exc
    with folder as made:
        os.environ[VARIABLE] = made
        yield


def directory() -> str | None:
    """Where this worker counts together with others; None where it is alone."""
    return os.environ.get(VARIABLE)


def remove_gauges_of_dead_workers(where: Path) -> None:
    """What a worker that is gone has counted stays; what it had open does not."""
    for path in where.glob("gauge_live*.db"):
        match = _WHAT_IS_OPEN.fullmatch(path.name)
        if match and not _lives(int(match[1])):
            with suppress(FileNotFoundError):  # another worker was asked at the same time
                path.unlink()


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
