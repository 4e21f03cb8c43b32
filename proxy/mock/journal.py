"""The memory of the scripted upstream: its last requests, and the attempts at each turn; of one or of all workers."""

import mmap
import os
import time
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from hashlib import sha256
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, Protocol

import orjson

from proxy.kit.header_names import SECRET_NAME
from proxy.wire.chat import Json

MOST_REQUESTS: Final = 1000
_MOST_BYTES: Final = 64 * 1024 * 1024
_LINE_BREAKS: Final = bytes.maketrans(b"\r\n", b"  ")  # stand only between the values of JSON
_SLOTS: Final = 65_536  # of counters; two conversations share one once in so many pairs


class Journal(Protocol):
    """The last requests, each as JSON."""

    def add(self, entry: bytes) -> None:
        """Remember a request, and forget the oldest ones beyond the bounds."""
        ...

    def clear(self) -> None:
        """Forget all requests."""
        ...

    def entries(self) -> list[bytes]:
        """The requests, the oldest first."""
        ...


class Memory:
    """The journal of one process. Implements `Journal`."""

    def __init__(self) -> None:
        self._entries: deque[bytes] = deque()
        self._bytes = 0

    def add(self, entry: bytes) -> None:
        """See `Journal.add`."""
        self._entries.append(entry)
        self._bytes += len(entry)
        while len(self._entries) > MOST_REQUESTS or self._bytes > _MOST_BYTES:
            self._bytes -= len(self._entries.popleft())

    def clear(self) -> None:
        """See `Journal.clear`."""
        self._entries.clear()
        self._bytes = 0

    def entries(self) -> list[bytes]:
        """See `Journal.entries`."""
        return [*self._entries]


class Folder:
    """The journal of several workers, each of which writes lines to two files of its own. Implements `Journal`.

    A full file takes the place of the worker's older one.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path = directory / f"journal-{os.getpid()}.jsonl"

    def add(self, entry: bytes) -> None:
        """See `Journal.add`."""
        with self._path.open("ab") as file:
            file.write(entry + b"\n")
            size = file.tell()
        if size > _MOST_BYTES:
            self._path.replace(self._path.with_suffix(".old"))

    def clear(self) -> None:
        """See `Journal.clear`."""
        for path in self._directory.glob("journal-*"):
            path.unlink(missing_ok=True)

    def entries(self) -> list[bytes]:
        """See `Journal.entries`; the requests of all workers, in the order in which they came."""
        lines: list[bytes] = []
        for path in self._directory.glob("journal-*"):
            with suppress(FileNotFoundError):  # it is just becoming the older one
                lines += path.read_bytes().splitlines()
        timed: list[tuple[float, bytes]] = []
        for line in lines:
            with suppress(orjson.JSONDecodeError):  # a line that is just being written
                timed.append((orjson.loads(line)["at"], line))
        return [line for _, line in sorted(timed, key=itemgetter(0))][-MOST_REQUESTS:]


def entry_of(method: str, path: str, headers: Iterable[tuple[bytes, bytes]], body: bytes, status: int) -> bytes:
    """A request as JSON on one line: when it came, what it was, and the status of its answer."""
    try:
        orjson.loads(body)
        sent: Any = orjson.Fragment(body.translate(_LINE_BREAKS))
    except orjson.JSONDecodeError:
        sent = body.decode("utf-8", "replace") or None
    named = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
    fields = {
        "at": time.time(),
        "method": method,
        "path": path,
        "status": status,
        "headers": named,
        "body": sent,
    }
    return orjson.dumps(fields)


def without_keys(entry: Mapping[str, Any]) -> Json:
    """An entry for everybody who can reach the journal: the values of headers with keys are masked."""
    shown = {name: "***" if SECRET_NAME.search(name) else value for name, value in entry["headers"].items()}
    return {**entry, "headers": shown}


class Attempts:
    """Counts how often the same turn was asked for, in all workers.

    Args:
        directory: of the file that the workers share; None: there is one worker.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self._counts: bytearray | mmap.mmap = bytearray(_SLOTS)
        if directory is not None:
            path = directory / "attempts"
            with path.open("a+b") as file:
                file.truncate(_SLOTS)  # a file that has this size already stays as it is
                self._counts = mmap.mmap(file.fileno(), _SLOTS)

    def next(self, turn: bytes, attempts: int) -> int:
        """The number of the next attempt at a turn, which has so many; after the last one the first comes again."""
        slot = int.from_bytes(sha256(turn).digest()[:4]) % _SLOTS
        number = self._counts[slot] % attempts
        self._counts[slot] = (number + 1) % attempts
        return number

    def clear(self) -> None:
        """Begin anew with every turn."""
        self._counts[:] = bytes(_SLOTS)
