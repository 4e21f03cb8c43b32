"""Memory for the bodies of open requests: bounded for the process, because a body grows when it is parsed.

    announced    a body that cannot fit is refused before it is sent; nothing is reserved yet, so that a client which
                 announces much and sends little takes no memory from others
    arriving     every piece is counted at the cost of plain text
    complete     the body is counted at its cost when parsed, or at an upper bound of that cost, until the request has
                 ended; so is the stored JSON of earlier requests that is read for this one

A body that exceeds the bound is refused with 503. A body that would not fit even alone is refused with 413, because a
retry would not help.
"""

import os
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from msgspec import Struct

from proxy.wire.errors import Overloaded, ProxyError, RequestTooLarge

# Memory per byte of a body while its request is open: the byte itself, the text parsed from it, the text written for
# the upstream. Sixteen requests of 30 MB of ASCII took 2.7 bytes per byte (`python -m bench.bodies`).
PLAIN: Final = 3
# One character beyond Latin-1 makes each character of a Python string take two bytes, one emoji makes each take four
# (PEP 393). Once a string has been encoded, it keeps its UTF-8 form as well.
_WIDE, _WIDEST = 5, 7
# Upper bounds, measured: a list takes 64 bytes, an empty object 64, an object with one member 184, and each further
# value 64. So an opening brace counts twice.
_STRUCTURE: Final = b"{[,:"
_MARK_COST: Final = 64
# The cost per byte of the most expensive body: `{"a":{"a":...` comes to 33.
_MOST: Final = 36

SHARE: Final = "toolproxy.body_memory"
"""The key of a request's `Share` in its scope; absent where no middleware bounds the memory."""


@dataclass(slots=True)
class BodyMemory:
    """The bound of one process, and the memory that is reserved, in bytes."""

    limit: int
    used: int = 0


class Share(Struct):
    """The memory that is reserved for one request.

    Attributes:
        memory: the memory of the process.
        reserved: the bytes that are reserved at present.
        parsed: how many of these are for JSON that is parsed, or about to be.
    """

    memory: BodyMemory
    reserved: int = 0
    parsed: int = 0

    @property
    def is_scarce(self) -> bool:
        """Whether more than half of the memory is reserved, so that slow bodies keep other requests waiting."""
        return 2 * self.memory.used > self.memory.limit

    def count_parsed(self, text: bytes) -> None:
        """Count JSON that is about to be parsed, at the cost of parsed JSON. Raises `Overloaded`, `RequestTooLarge`."""
        cost = self.parsed + len(text) * _MOST
        # Finding the exact cost takes as long as parsing the text, and matters only when memory is short.
        if 2 * (self.memory.used - self.reserved + cost) > self.memory.limit:
            cost = self.parsed + cost_of(text)
        self.reserve(cost)
        self.parsed = cost

    def reserve(self, cost: int) -> None:
        """Reserve `cost` bytes instead of those reserved so far. Raises `Overloaded`, `RequestTooLarge`."""
        used = self.memory.used - self.reserved + cost
        if used > self.memory.limit and cost > self.reserved:  # to give some back is always possible
            raise self._refusal(cost)
        self.memory.used = used
        self.reserved = cost

    def require(self, cost: int) -> None:
        """Check whether `cost` bytes would fit instead of those reserved so far.

        Raises:
            Overloaded: they would not fit now.
            RequestTooLarge: they would not even fit alone.
        """
        if self.memory.used - self.reserved + cost > self.memory.limit:
            raise self._refusal(cost)

    def _refusal(self, cost: int) -> ProxyError:
        if cost > self.memory.limit:
            return RequestTooLarge("The request would take more memory than the proxy has for all requests together.")
        return Overloaded("The proxy holds as many bytes of request bodies as it may; try again in a moment.")


def cost_of(body: bytes) -> int:
    """An upper bound, in bytes, of the memory that a body takes while its request is open, parsed as JSON."""
    marks = len(body) - len(body.translate(None, _STRUCTURE))
    return len(body) * _cost_of_text(body) + (marks + body.count(b"{")) * _MARK_COST


def _cost_of_text(body: bytes) -> int:
    """The cost per byte of text; an escape counts as the most expensive character that it may stand for."""
    if body.isascii() and body.rfind(b"\\u") < 0:  # in a third of the time of `find`
        return PLAIN
    widest = (b"\xf0", b"\xf1", b"\xf2", b"\xf3", b"\xf4", b"\\ud", b"\\uD")
    return _WIDEST if any(mark in body for mark in widest) else _WIDE


def available_memory(root: Path = Path("/")) -> int:
    """Bytes that this process may use: the smallest of the machine's memory and the limits of its containers.

    Args:
        root: the root of the file system; tests have one of their own.
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
            # In a container, `path` may be a path of the host, and only the mount point itself is visible.
            for folder in (inner, *inner.parents):
                yield mount / folder / name
