"""The memory of the scripted upstream: its last requests, and the attempts at each turn; of one or of all workers."""

import mmap
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from hashlib import sha256
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, TypeAlias

import orjson

from proxy.kit.header_names import SECRET_NAME
from proxy.kit.last_entries import Folder, Memory
from proxy.wire.chat import Json

MOST_REQUESTS: Final = 1000
_MOST_BYTES: Final = 64 * 1024 * 1024
_LINE_BREAKS: Final = bytes.maketrans(b"\r\n", b"  ")  # stand only between the values of JSON
_SLOTS: Final = 65_536  # of counters; two conversations share one once in so many pairs


Journal: TypeAlias = Memory[bytes] | Folder


def journal_in(directory: Path | None = None) -> Journal:
    """The last requests, each as JSON; with a directory, those of all workers that share it."""
    if directory is None:
        return Memory(MOST_REQUESTS, _MOST_BYTES)
    return Folder(directory, "journal", part_bytes=_MOST_BYTES)


def requests_in(journal: Journal) -> list[Json]:
    """The requests, the oldest first."""
    found: list[Json] = []
    for entry in journal:
        with suppress(orjson.JSONDecodeError):  # a line that is just being written
            found.append(orjson.loads(entry))
    return sorted(found, key=itemgetter("at"))[-MOST_REQUESTS:]


def entry_of(method: str, path: str, headers: Iterable[tuple[bytes, bytes]], body: bytes, status: int) -> bytes:
    """A request as JSON on one line: when it came, what it was, and the status of its answer."""
    try:
        orjson.loads(body)
        sent: Any = orjson.Fragment(body.translate(_LINE_BREAKS))
    except orjson.JSONDecodeError:
        sent = body.decode("utf-8", "replace") or None
    named = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
    entry = {"at": time.time(), "method": method, "path": path, "status": status, "headers": named, "body": sent}
    return orjson.dumps(entry)


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
