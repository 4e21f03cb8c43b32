"""What the bodies of open requests take of memory: bounded for the process, for a body grows when it is parsed.

    announced    a body that cannot fit is refused before it is sent; nothing is counted yet, so that a client which
                 announces much and sends little takes no room from others
    arriving     every piece counts for what it will cost as plain text
    complete     counts for what it costs parsed, or for the most that it could, until the request is over; so does what
                 was kept of earlier requests and is read for this one

Beyond the bound: 503. A body that would not even fit alone: 413, since trying again is of no use.
"""

from typing import Final

from starlette.types import Scope

from proxy.loop.errors import Overloaded, RequestTooLarge

# What a byte of a body costs as long as its request is open: itself, the text that is parsed of it, and what is written
# for the upstream. Sixteen requests of 30 MB of ASCII took 2.7 bytes per byte (`python -m bench.bodies`).
_PLAIN: Final = 3
# For one character beyond Latin-1 Python keeps two bytes for each of a text's characters, for an emoji four (PEP 393);
# once it is written, its UTF-8 stays with it.
_WIDE, _WIDEST = 5, 7
# What orjson makes of a list is 64 bytes and more; of an object 64, with a member 184; of a value in either up to 64.
# An object counts twice.
_STRUCTURE: Final = b"{[,:"
_MARK_COST: Final = 64
# No body costs more: `{"a":{"a":...` comes to 33.
_MOST: Final = 36

_SHARE: Final = "toolproxy.body_memory"


class BodyMemory:
    """The bound of one process, in bytes."""

    __slots__ = ("limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0


class Share:
    """What one request has of it."""

    __slots__ = ("_held", "_memory")

    def __init__(self, memory: BodyMemory) -> None:
        self._memory = memory
        self._held = 0

    @property
    def is_scarce(self) -> bool:
        """Whether more than half of the memory is used, so that who takes long with a body keeps others from theirs."""
        return 2 * self._memory.used > self._memory.limit

    def announce(self, size: int) -> None:
        """Check whether a body of so many bytes could be taken now. Raises `Overloaded`, `RequestTooLarge`."""
        self._check(size * _PLAIN)

    def count_arrived(self, size: int) -> None:
        """Count what has arrived so far. Raises `Overloaded`, `RequestTooLarge`."""
        self._hold(size * _PLAIN)

    def count_whole(self, body: bytes) -> None:
        """Count what a body costs that is about to be parsed. Raises `Overloaded`, `RequestTooLarge`."""
        held, self._held = self._held, 0
        self._memory.used -= held
        self.count_more(body)

    def count_more(self, text: bytes) -> None:
        """Count what further JSON costs that is about to be parsed. Raises `Overloaded`, `RequestTooLarge`."""
        most = self._held + len(text) * _MOST
        # To look through a text takes as long as to parse it. While half of the memory is free, nothing depends on it.
        is_roomy = 2 * (self._memory.used - self._held + most) <= self._memory.limit
        self._hold(most if is_roomy else self._held + cost_of(text))

    def give_back(self) -> None:
        """The request is over."""
        self._memory.used -= self._held
        self._held = 0

    def _hold(self, cost: int) -> None:
        self._check(cost)
        self._memory.used += cost - self._held
        self._held = cost

    def _check(self, cost: int) -> None:
        memory = self._memory
        if memory.used - self._held + cost <= memory.limit:
            return
        if cost > memory.limit:
            raise RequestTooLarge("The request would take more memory than the proxy has for all requests together.")
        raise Overloaded("The proxy holds as many bytes of request bodies as it may; try again in a moment.")


def open_share(scope: Scope, memory: BodyMemory) -> Share:
    """The share of a request that begins, to be given back when it is over."""
    share = scope[_SHARE] = Share(memory)
    return share


def share_of(scope: Scope) -> Share | None:
    """The share of a request; None where no layer bounds them."""
    share: Share | None = scope.get(_SHARE)
    return share


def cost_of(body: bytes) -> int:
    """Bytes of memory that a body takes at the most while its request is open, parsed as JSON."""
    marks = len(body) - len(body.translate(None, _STRUCTURE))
    return len(body) * _cost_of_text(body) + (marks + body.count(b"{")) * _MARK_COST


def _cost_of_text(body: bytes) -> int:
    """The cost of a byte of text: an escape counts as the character that it may stand for."""
    if body.isascii() and b"\\u" not in body:
        return _PLAIN
    widest = (b"\xf0", b"\xf1", b"\xf2", b"\xf3", b"\xf4", b"\\ud", b"\\uD")
    return _WIDEST if any(mark in body for mark in widest) else _WIDE
