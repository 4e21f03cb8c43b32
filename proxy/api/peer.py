"""What a server may tell of a request's client beyond ASGI: ours does, and another one need not."""

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from starlette.types import Scope

PEER: Final = "toolproxy.peer"
"""Where it stands in the scope."""


class Peer(Protocol):
    """The client of one request, as its connection knows it."""

    loop: asyncio.AbstractEventLoop
    """The event loop that its connection lives in; to ask for the one that is running takes a system call."""

    @property
    def body_is_here(self) -> bool:
        """Whether `receive` gives all that is still to come of the body without waiting."""
        ...

    def take_body(self) -> bytes | None:
        """All that is still to come of the body, at once and in place of `receive`; None: it has to be waited for."""
        ...

    def write_chunk(self, data: bytes) -> bool:
        """Write a part of a response whose head and first part were sent; False where it has to be sent as well.

        For what no layer between here and the server has to see: there is more to come, and the client is reading.
        """
        ...

    def call_when_left(self, callback: Callable[[], None] | None) -> bool:
        """Have `callback` called when the client leaves, instead of what was to be called; False where it has left."""
        ...


def peer_of(scope: Scope) -> Peer | None:
    """The client of a request; None where the server tells nothing but what ASGI demands."""
    peer: Peer | None = scope.get(PEER)
    return peer
