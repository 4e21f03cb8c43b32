"""The records of the last requests, for the debug pages; bounded in number and bytes."""

import os
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Final

import orjson

from proxy.loop.chat import Json
from proxy.redact import Redact
from proxy.telemetry.records import RequestRecord

MOST_REQUESTS: Final = 500
MOST_BYTES: Final = 8 * 1024 * 1024
# Of one worker's journal, which consists of two parts; all of them are read for one page.
_PART_BYTES: Final = 1024 * 1024
_MOST_JOURNALS: Final = 64


class Recent:
    """Implements `records.RecordSink` and `ports.History`.

    Args:
        directory: where several workers share their records; None: there is only one worker.
        redact: masks secrets in a text.
        most_requests: the number of requests that are kept.
        most_bytes: the bytes of all of them together.
    """

    ignored: Final[frozenset[str]] = frozenset()

    def __init__(
        self,
        directory: str | None = None,
        *,
        redact: Redact = str,
        most_requests: int = MOST_REQUESTS,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self._redact = redact
        self._most_requests = most_requests
        self._open: dict[int, RequestRecord] = {}
        self._kept = Journal(Path(directory)) if directory else Memory(most_requests, most_bytes)

    def started(self, record: RequestRecord) -> None:
        """Show an open request; those for the debug pages themselves are left out."""
        if not str(record.fields.get("path")).startswith("/debug"):
            self._open[id(record)] = record

    def completed(self, record: RequestRecord) -> None:
        """Keep the record, and drop the oldest ones beyond the bounds."""
        if self._open.pop(id(record), None) is not None:
            self._kept.add(self._written(record))

    def latest(self) -> list[Json]:
        """Open requests and the last ones that were answered, the newest first."""
        records = _parsed(chain(map(self._written, self._open.values()), self._kept))
        return sorted(records, key=lambda record: -record["began_at"])[: self._most_requests]

    def find(self, request_id: str) -> Json | None:
        """The newest request of that id, if it is still kept."""
        return next((record for record in self.latest() if record["request_id"] == request_id), None)

    def _written(self, record: RequestRecord) -> bytes:
        """A record as JSON without secrets."""
        text = orjson.dumps(record.as_json(), default=str, option=orjson.OPT_NON_STR_KEYS).decode()
        return self._redact(text).encode()


class Memory:
    """Records in the memory of this process."""

    def __init__(self, most_entries: int, most_bytes: int) -> None:
        self._most_entries = most_entries
        self._most_bytes = most_bytes
        self._entries: deque[bytes] = deque()
        self._bytes = 0

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._entries)

    def add(self, entry: bytes) -> None:
        """Add a record, and drop the oldest ones beyond the bounds."""
        self._entries.append(entry)
        self._bytes += len(entry)
        while len(self._entries) > self._most_entries or self._bytes > self._most_bytes:
            self._bytes -= len(self._entries.popleft())


class Journal:
    """Records of several workers: each writes lines to a file of its own, and all files are read.

    A full file replaces the worker's older one, and a new one is begun.
    """

    def __init__(self, directory: Path, *, part_bytes: int = _PART_BYTES) -> None:
        self._directory = directory
        self._part_bytes = part_bytes
        self._path = directory / f"recent-{os.getpid()}.jsonl"
        self._written = 0
        for path in sorted(directory.glob("recent-*"), key=lambda path: path.stat().st_mtime)[:-_MOST_JOURNALS]:
            path.unlink(missing_ok=True)  # of workers that have ended

    def __iter__(self) -> Iterator[bytes]:
        for path in self._directory.glob("recent-*"):
            with suppress(FileNotFoundError):  # it is just becoming the older one
                yield from path.read_bytes().splitlines()

    def add(self, entry: bytes) -> None:
        """Append a record to the journal."""
        if self._written + len(entry) > self._part_bytes and self._written:
            self._path.replace(self._path.with_suffix(".old"))
            self._written = 0
        with self._path.open("ab") as file:
            file.write(entry + b"\n")
        self._written += len(entry) + 1


def _parsed(entries: Iterable[bytes]) -> Iterator[Json]:
    for entry in entries:
        with suppress(orjson.JSONDecodeError):  # a line that is just being written
            yield orjson.loads(entry)
