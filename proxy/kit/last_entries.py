"""The last entries of something, such as requests, bounded in number and bytes.

One process has them in its memory. Several workers share a folder, so that every worker can read the entries of all.
"""

import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

T = TypeVar("T")

_MOST_FILES: Final = 64  # in a folder; those that were not written for the longest time are of workers that have ended


class Memory(Generic[T]):
    """The last entries, in the memory of this process. `size_of` gives the bytes of an entry."""

    def __init__(self, most_entries: int, most_bytes: int, size_of: Callable[[Any], int] = len) -> None:
        self._most_entries = most_entries
        self._most_bytes = most_bytes
        self._size_of = size_of
        self._entries: deque[T] = deque()
        self._bytes = 0

    def __iter__(self) -> Iterator[T]:
        return iter(tuple(self._entries))

    def add(self, entry: T) -> None:
        """Add an entry, and drop the oldest ones beyond the bounds."""
        self._entries.append(entry)
        self._bytes += self._size_of(entry)
        self.make_room(0)

    def make_room(self, size: int) -> None:
        """Drop the oldest entries until so many bytes are free."""
        while self._entries and (len(self._entries) > self._most_entries or self._bytes + size > self._most_bytes):
            self._bytes -= self._size_of(self._entries.popleft())

    def clear(self) -> None:
        """Drop all entries."""
        self._entries.clear()
        self._bytes = 0


class Folder:
    """The last entries of several workers, each of which appends lines to a file of its own.

    The files are named `name-PID`. A file of `part_bytes` is full, and takes the place of the worker's older one.
    """

    def __init__(self, directory: Path, name: str, *, part_bytes: int) -> None:
        self._directory = directory
        self._pattern = f"{name}-*"
        self._part_bytes = part_bytes
        self._path = directory / f"{name}-{os.getpid()}.jsonl"
        for path in sorted(directory.glob(self._pattern), key=lambda path: path.stat().st_mtime)[:-_MOST_FILES]:
            path.unlink(missing_ok=True)

    def __iter__(self) -> Iterator[bytes]:
        """The entries of all workers; the last one of a file may still be incomplete."""
        for path in self._directory.glob(self._pattern):
            with suppress(FileNotFoundError), path.open("rb") as file:  # it is just becoming the older one
                for line in file:
                    yield line.rstrip(b"\n")

    def add(self, entry: bytes) -> None:
        """Add an entry, which is one line."""
        with self._path.open("ab") as file:
            file.write(entry + b"\n")
            size = file.tell()
        if size > self._part_bytes:
            self._path.replace(self._path.with_suffix(".old"))

    def clear(self) -> None:
        """Drop the entries of all workers."""
        for path in self._directory.glob(self._pattern):
            path.unlink(missing_ok=True)
