"""The stream that log lines are written to: those of one iteration of the event loop go out together.

A system call for each line costs more than the line. A line waits for the rest of its iteration only, so just a process
that is killed in the middle of one loses any.
"""

import asyncio
import os
import stat
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Final, TextIO

# Several workers share a pipe; it keeps so many bytes of one write together (pipe(7), PIPE_BUF).
_PIPE_BYTES: Final = 4096


class LineStream:
    """Takes whole lines, from any thread, and writes them to a text stream.

    Lines that cannot be written are lost: a full disk or a closed pipe is no reason to refuse requests.

    Args:
        stream: where the lines go.
        mask: removes secrets from a text of one or more lines.
    """

    def __init__(self, stream: TextIO, mask: Callable[[str], str] = str) -> None:
        self._stream = stream
        self._mask = mask
        self._is_file = _is_file(stream)
        self._waiting: deque[str] = deque()
        self._writing = threading.Lock()
        self._scheduled_on: asyncio.AbstractEventLoop | None = None

    def write(self, line: str) -> int:
        """Write a line with its end: after this iteration of the event loop, or at once where none is running."""
        self._waiting.append(line)
        if self._scheduled_on is None or not self._scheduled_on.is_running():
            loop = asyncio._get_running_loop()  # noqa: SLF001 - the public function raises where there is none
            if loop is None:
                self._write_out()
            else:
                self._scheduled_on = loop
                loop.call_soon(self._write_out)
        return len(line)

    def flush(self) -> None:
        """Nothing: `write` sees to it. Loggers call it after each line."""

    def _write_out(self) -> None:
        self._scheduled_on = None
        lines: list[str] = []
        with suppress(IndexError):  # that was the last line, or another thread has just taken it
            while True:
                lines.append(self._waiting.popleft())
        for piece in ["".join(lines)] if self._is_file else _in_pieces(lines):
            with suppress(OSError, ValueError), self._writing:
                self._stream.write(self._mask(piece))
                self._stream.flush()


def _in_pieces(lines: Iterable[str]) -> Iterator[str]:
    """Lines joined to pieces that a pipe keeps together, as far as the lines are short enough."""
    piece, piece_bytes = "", 0
    for line in lines:
        line_bytes = len(line.encode("utf-8", "surrogatepass"))  # a library's line may hold half of an emoji
        if piece and piece_bytes + line_bytes > _PIPE_BYTES:
            yield piece
            piece, piece_bytes = "", 0
        piece += line
        piece_bytes += line_bytes
    if piece:
        yield piece


def _is_file(stream: TextIO) -> bool:
    """Whether the stream is an ordinary file, which keeps every write in one piece."""
    try:
        return stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
    except (AttributeError, OSError, ValueError):  # it is not the operating system's
        return False
