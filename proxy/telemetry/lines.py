"""The stream that log lines go to: what is written in one turn of the event loop goes out together.

A system call for each line costs more than the line. Nothing is kept for longer than a turn, so a line is there before
anything else happens; only a process that is killed in the middle of a turn takes that turn's lines with it.
"""

import asyncio
import os
import stat
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TextIO

# So much is written to a pipe in one piece, whoever else writes to it: several workers share one (pipe(7), PIPE_BUF).
_AT_ONCE = 4096
# Half of an emoji, where a library's line has one, is left to the stream, which has a way of its own to write it.
_HALF_CHARACTERS = "surrogatepass"


class TurnStream:
    """A stream of bytes and text over a text stream, for whole lines, and structlog's logger over it.

    Threads may share it.

    What cannot be written is lost: a full disk or a closed pipe is no reason to refuse requests.

    Args:
        stream: where the lines go.
        mask: takes out of a text, which may be several lines, what must not be seen.
    """

    def __init__(self, stream: TextIO, mask: Callable[[str], str] = str) -> None:
        self._stream = stream
        self._mask = mask
        self._is_file = _is_file(stream)
        self._waiting: deque[bytes] = deque()
        self._writing = threading.Lock()  # a text stream is none that threads may share
        self._flushing: asyncio.AbstractEventLoop | None = None  # which is going to

    def put(self, line: bytes) -> None:
        """Write a line of UTF-8, with its end."""
        self._waiting.append(line)
        if self._flushing is None or not self._flushing.is_running():
            self.flush()

    def msg(self, line: str) -> None:
        """Write a line, without its end."""
        self.put(_encoded(line + "\n"))

    # What structlog calls for a line of each level.
    debug = info = warning = error = critical = msg

    def write(self, text: str) -> int:
        """Keep some text for the next flush."""
        self._waiting.append(_encoded(text))
        return len(text)

    def flush(self) -> None:
        """Write what is kept: at the end of this turn of the event loop, or at once where none is running."""
        if self._flushing is not None and self._flushing.is_running():
            return
        loop = asyncio._get_running_loop()  # noqa: SLF001 - the public way raises where there is none
        if loop is None:
            self._write_out()
        else:
            self._flushing = loop
            loop.call_soon(self._write_out)

    def _write_out(self) -> None:
        self._flushing = None
        taken: list[bytes] = []
        with suppress(IndexError):  # that was the last, or another thread has just taken it
            while True:
                taken.append(self._waiting.popleft())
        if taken:
            for piece in [b"".join(taken)] if self._is_file else _in_pieces(taken):
                self._put(piece.decode("utf-8", _HALF_CHARACTERS))

    def _put(self, text: str) -> None:
        with suppress(OSError, ValueError), self._writing:
            self._stream.write(self._mask(text))
            self._stream.flush()


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", _HALF_CHARACTERS)


def _in_pieces(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Lines together, as long as they stay in one piece."""
    together: list[bytes] = []
    size = 0
    for line in lines:
        if together and size + len(line) > _AT_ONCE:
            yield b"".join(together)
            together, size = [], 0
        together.append(line)
        size += len(line)
    yield b"".join(together)


def _is_file(stream: TextIO) -> bool:
    """Whether it is an ordinary file: that takes whatever is written at once in one piece."""
    try:
        return stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
    except (AttributeError, OSError, ValueError):  # it is none of the operating system's
        return False
