"""Memory for the bodies of open requests: bounded for the process, because a body grows when it is parsed.

    announced    a body that cannot fit is refused before it is sent; nothing is reserved yet, so that a client which
                 announces much and sends little takes no room from others
    arriving     every piece is counted at the cost of plain text
    complete     the body is counted at its cost when parsed, or at the most that could be, until the request is over;
                 so is stored JSON of earlier requests that is read for this one

Beyond the bound: 503. A body that would not even fit alone: 413, since trying again is of no use.
"""

import os
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from msgspec import Struct

from proxy.loop.errors import Overloaded, RequestTooLarge

# Memory per byte of a body while its request is open: the byte itself, the text parsed from it, the text written for
# the upstream. Sixteen requests of 30 MB of ASCII took 2.7 bytes per byte (`python -m bench.bodies`).
_PLAIN: Final = 3
# With one character beyond Latin-1, each character of a text takes two bytes in Python, with an emoji four (PEP 393);
# once the text is written, its UTF-8 stays with it.
_WIDE, _WIDEST = 5, 7
# Upper bounds, measured: a list takes 64 bytes, an empty object 64, one with a member 184, each further value 64. So an
# opening brace counts as two marks.
_STRUCTURE: Final = b"{[,:"
_MARK_COST: Final = 64
# The cost per byte of the most expensive body: `{"a":{"a":...` comes to 33.
_MOST: Final = 36

SHARE: Final = "toolproxy.body_memory"
"""The key of a request's `Share` in its scope; absent where no middleware bounds the memory."""


@dataclass(slots=True)
class BodyMemory:
    """The bound of one process, and what is reserved of it, in bytes."""

    limit: int
    used: int = 0


class Share(Struct):
    """The memory that is reserved for one request.

    Attributes:
        memory: the memory of the process.
        reserved: bytes of it, at present.
        parsed: bytes of it for JSON that is parsed, or about to be.
    """

    memory: BodyMemory
    reserved: int = 0
    parsed: int = 0

    @property
    def is_scarce(self) -> bool:
        """Whether more than half of the memory is reserved, so that a slow body keeps others from theirs."""
        return 2 * self.memory.used > self.memory.limit

    def announce(self, size: int) -> None:
        """Check whether a body of `size` bytes would fit now. Raises `Overloaded`, `RequestTooLarge`."""
        self.reserve(size * _PLAIN)
        self.reserve(0)

    def count_arrived(self, size: int) -> None:
        """Count the `size` bytes of a body that have arrived so far. Raises `Overloaded`, `RequestTooLarge`."""
        self.reserve(size * _PLAIN)

    def count_parsed(self, text: bytes) -> None:
        """Count JSON that is about to be parsed, no longer as arrived. Raises `Overloaded`, `RequestTooLarge`."""
        cost = self.parsed + len(text) * _MOST
        # The exact cost takes as long to find as the text takes to parse, and matters only when memory is short.
        if 2 * (self.memory.used - self.reserved + cost) > self.memory.limit:
            cost = self.parsed + cost_of(text)
        self.reserve(cost)
        self.parsed = cost

    def reserve(self, cost: int) -> None:
        """Reserve `cost` bytes in place of those so far; 0 returns them. Raises `Overloaded`, `RequestTooLarge`."""
        memory = self.memory
        others = memory.used - self.reserved
        if cost > memory.limit:
            raise RequestTooLarge("The request would take more memory than the proxy has for all requests together.")
        if others + cost > memory.limit:
            raise Overloaded("The proxy holds as many bytes of request bodies as it may; try again in a moment.")
        memory.used = others + cost
        self.reserved = cost


def cost_of(body: bytes) -> int:
    """Bytes of memory that a body takes at most while its request is open, parsed as JSON."""
    marks = len(body) - len(body.translate(None, _STRUCTURE))
    return len(body) * _cost_of_text(body) + (marks + body.count(b"{")) * _MARK_COST


def _cost_of_text(body: bytes) -> int:
    """The cost of a byte of text: an escape counts as the character that it may stand for."""
    if body.isascii() and b"\\u" not in body:
        return _PLAIN
    widest = (b"\xf0", b"\xf1", b"\xf2", b"\xf3", b"\xf4", b"\\ud", b"\\uD")
    return _WIDEST if any(mark in body for mark in widest) else _WIDE


def available_memory(root: Path = Path("/")) -> int:
    """Bytes that this process may use: the smallest of the machine's memory and the limits of its containers.

    Args:
        root: of the file system, for tests.
    """
    return min(_memory_limits(root))


def _memory_limits(root: Path) -> Iterator[int]:
    yield os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    address_space, _ = resource.getrlimit(resource.RLIMIT_AS)
    if address_space != resource.RLIM_INFINITY:
        yield address_space
    for path in _cgroup_limit_files(root):
        try:
            yield int(path.read_text())
        except (OSError, ValueError):  # no such controller, or "max"
            continue


def _cgroup_limit_files(root: Path) -> Iterator[Path]:
    """The files with the limits of this process's control groups and their parents (cgroups(7), versions 2 and 1)."""
    mounts = {"": (root / "sys/fs/cgroup", "memory.max")}
    mounts["memory"] = (root / "sys/fs/cgroup/memory", "memory.limit_in_bytes")
    try:
        groups = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:  # not Linux
        return
    for group in groups:
        _, controllers, path = group.split(":", 2)
        if controllers in mounts:
            mount, name = mounts[controllers]
            inner = PurePosixPath(path.lstrip("/"))
            # In a container `path` may be the host's name for it, and only the mount itself is visible.
            for folder in (inner, *inner.parents):
                yield mount / folder / name
