"""Requests and answers that are relayed as bytes, and whom a relayed stream goes to."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from msgspec import Struct

from proxy.wire.chat import Json

Headers: TypeAlias = Sequence[tuple[bytes, bytes]]

Write: TypeAlias = Callable[[bytes], Awaitable[None]]

CountUsage: TypeAlias = Callable[[Json | None], None]
"""Takes the usage of an upstream call, in the form of Chat Completions; None: it is not known. The numbers may be any
that the upstream has sent: `usage.token_count` knows which can be true."""


@dataclass(frozen=True, slots=True)
class RawRequest:
    """A request to relay: bytes and headers as the client sent them, without hop-by-hop headers."""

    method: str
    path: str  # below the upstream's base URL, with the query: "/embeddings?x=1"
    headers: Headers
    body: bytes


@dataclass(frozen=True, slots=True)
class RawResponse:
    """The head of an upstream's response, and its unread body."""

    status: int
    headers: Headers
    body: AsyncIterator[bytes]


class RelayClient(Struct, frozen=True):
    """The client of a relayed stream.

    Attributes:
        write: takes the events of the response.
        finish: takes the last bytes of the response, after `count` was called.
        count: takes the usage, even after a failure.
        note_ids: called before events with an `id` are written; comments between such events need another form.
    """

    write: Write
    finish: Write
    count: CountUsage
    note_ids: Callable[[], None]
