"""Processes: starting them on a core of their own, what they use, ending them."""

import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

TARGET_PRIORITY, TIMING_PRIORITY = 2, 4  # of `come_first`: what is measured, and what notes times
_TICK = os.sysconf("SC_CLK_TCK")
_START_SECONDS = 120.0
_STOP_SECONDS = 10.0
# What is installed has its bytecode beside it; where none may be written, each start would compile everything anew.
_ENVIRON = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


@contextmanager
def running(
    command: Sequence[str],
    *,
    cores: set[int] | None = None,
    environ: Mapping[str, str] | None = None,
    log: Path | None = None,
    cwd: Path | None = None,
) -> Iterator[subprocess.Popen[str]]:
    """A process; its standard output can be read, its standard error goes to a file."""
    with (log or Path(os.devnull)).open("w") as errors:
        process = subprocess.Popen(  # noqa: S603 - our own commands
            command,
            stdout=subprocess.PIPE,
            stdin=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=cwd,
            env={**_ENVIRON, **(environ or {})},
            preexec_fn=(lambda: os.sched_setaffinity(0, cores)) if cores else None,  # noqa: PLW1509 - no threads here
        )
        try:
            yield process
        finally:
            _stop(process)


def _stop(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()


def first_line(process: subprocess.Popen[str]) -> str:
    """The first line that a process prints. Raises `RuntimeError` where none comes."""
    stream: IO[str] | None = process.stdout
    if stream is None or not select.select([stream], [], [], _START_SECONDS)[0] or not (line := stream.readline()):
        raise RuntimeError(f"{process.args!r} did not start")
    return line.strip()


def tree(pid: int) -> list[int]:
    """A process and all its descendants."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (stat := _stat(int(entry.name))):
            parents.setdefault(int(stat[1]), []).append(int(entry.name))
    found = [pid]
    for known in found:
        found += parents.get(known, ())
    return found


def cpu_seconds(pid: int) -> float:
    """What a process tree has used of the CPU, in itself and in the kernel."""
    ticks = 0
    for known in tree(pid):
        if stat := _stat(known):
            ticks += int(stat[11]) + int(stat[12])
    return ticks / _TICK


def memory(pid: int) -> int:
    """What a process tree takes of memory in bytes: what it shares with others is split among them (Pss)."""
    size = 0
    for known in tree(pid):
        lines = Path(f"/proc/{known}/smaps_rollup").read_text().splitlines()
        size += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return size * 1024


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat behind the name, the process's state first."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def cores() -> tuple[set[int], set[int]] | tuple[None, None]:
    """One core for what is measured and the others for what loads it; None where there is only one."""
    mine = sorted(os.sched_getaffinity(0))
    return ({mine[0]}, set(mine[1:2])) if len(mine) > 1 else (None, None)


def wait_for(what: str, ready: object, *, seconds: float = _START_SECONDS) -> None:
    """Wait until `ready()` is true. Raises `RuntimeError` where it never is."""
    ends = time.monotonic() + seconds
    while not ready():  # type: ignore[operator]
        if time.monotonic() > ends:
            raise RuntimeError(f"{what} did not start")
        time.sleep(0.02)


def come_first(pid: int, priority: int) -> None:
    """Let the first thread of a process run whenever it has work, and its others after it but before other processes.

    What else runs on the machine would be blamed on what is measured, or on what notes times. Needs root; without it
    nothing happens.
    """
    with suppress(PermissionError, ProcessLookupError):
        for entry in Path(f"/proc/{pid}/task").iterdir():
            thread = int(entry.name)
            os.sched_setscheduler(thread, os.SCHED_FIFO, os.sched_param(priority if thread == pid else priority - 1))


PYTHON = sys.executable
