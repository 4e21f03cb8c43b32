"""The last requests: so many of them, and so many bytes, whatever they were."""

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
from proxy.telemetry.story import Story

MOST_REQUESTS: Final = 500
MOST_BYTES: Final = 8 * 1024 * 1024
# Of one worker's journal, which consists of two parts; all of them are read for one page.
_PART_BYTES: Final = 1024 * 1024
_MOST_JOURNALS: Final = 64


class Recent:
    """Implements `story.Reader` and `ports.History`.

    Args:
        directory: where several workers tell each other what they have answered; None: there is one.
        redact: masks secrets in a text.
        most_requests: that are remembered.
        most_bytes: of all of them together.
    """

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
        self._open: dict[int, Story] = {}
        self._kept = Journal(Path(directory)) if directory else Memory(most_requests, most_bytes)

    def begun(self, story: Story) -> None:
        """It is open, and shown as far as it has come; looking at the pages themselves is no news."""
        if not str(story.fields.get("path")).startswith("/debug"):
            self._open[id(story)] = story

    def ended(self, story: Story) -> None:
        """It is kept, and the oldest make room."""
        if self._open.pop(id(story), None) is not None:
            self._kept.add(self._written(story))

    def latest(self) -> list[Json]:
        """Open requests and the last ones that were answered, the newest first."""
        stories = _parsed(chain(map(self._written, self._open.values()), self._kept))
        return sorted(stories, key=lambda story: -story["began_at"])[: self._most_requests]

    def find(self, request_id: str) -> Json | None:
        """The newest request of that id, if it is still remembered."""
        return next((story for story in self.latest() if story["request_id"] == request_id), None)

    def _written(self, story: Story) -> bytes:
        """A story as JSON without secrets."""
        text = orjson.dumps(story.as_json(), default=str, option=orjson.OPT_NON_STR_KEYS).decode()
        return self._redact(text).encode()


class Memory:
    """What one process remembers by itself."""

    def __init__(self, most_entries: int, most_bytes: int) -> None:
        self._most_entries = most_entries
        self._most_bytes = most_bytes
        self._entries: deque[bytes] = deque()
        self._bytes = 0

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._entries)

    def add(self, entry: bytes) -> None:
        """Remember one, and forget the oldest."""
        self._entries.append(entry)
        self._bytes += len(entry)
        while len(self._entries) > self._most_entries or self._bytes > self._most_bytes:
            self._bytes -= len(self._entries.popleft())


class Journal:
    """What several workers remember together: lines in a file of each one's own, which all of them read.

    A file that is full becomes the worker's older one, in the place of the one before.
    """

    def __init__(self, directory: Path, *, part_bytes: int = _PART_BYTES) -> None:
        self._directory = directory
        self._part_bytes = part_bytes
        self._path = directory / f"recent-{os.getpid()}.jsonl"
        self._written = 0
        for path in sorted(directory.glob("recent-*"), key=lambda path: path.stat().st_mtime)[:-_MOST_JOURNALS]:
            path.unlink(missing_ok=True)  # of workers that are gone

    def __iter__(self) -> Iterator[bytes]:
        for path in self._directory.glob("recent-*"):
            with suppress(FileNotFoundError):  # it is just becoming the older one
                yield from path.read_bytes().splitlines()

    def add(self, entry: bytes) -> None:
        """Remember one."""
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
