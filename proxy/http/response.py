"""The interface of a response, the same for every transport."""

from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

from proxy.http.parser import Headers

READ_BYTES = 8 * 1024
"""The bytes of a body after which its reader gives way to others. Events of so many bytes take the processor for 10 ms
at worst, where each of them has several beginnings of leaked calls."""

Handle: TypeAlias = Callable[[bytes], Coroutine[Any, Any, bool]]
"""Takes a part of a body; returns true if it needs no more."""


class Response:
    """Status, headers, and the bytes of the body as they arrive, not decoded.

    A response has to be closed. If it has been read to its end, the connection is kept for other requests; if not,
    closing the response closes the connection too.

    Attributes:
        status: the HTTP status.
        headers: the headers in their order, with names in lower case.
    """

    __slots__ = ("headers", "status")

    status: int
    headers: Headers

    def header(self, name: bytes) -> bytes:
        """The first value of a header, empty if there is none; `name` in lower case."""
        for known, value in self.headers:
            if known == name:
                return value
        return b""

    def take_whole(self) -> bytes | None:
        """The rest of the body if all of it has already arrived; None if there may be more to read."""
        return None

    async def read(self) -> bytes:
        """The next part of the body; empty at its end. Raises `httpx.HTTPError`."""
        raise NotImplementedError

    async def pump(self, handle: Handle) -> None:
        """Give the body to `handle` as it comes, until it needs no more or the body ends.

        Raises:
            httpx.HTTPError: the body broke off, or cannot be read.
            Exception: any exception of `handle`.
        """
        while (part := await self.read()) and not await handle(part):
            pass

    def end_within(self, seconds: float) -> None:
        """Read for at most `seconds` more. After that, a wait for more raises `httpx.ReadTimeout`."""

    async def aclose(self) -> None:
        """Discard the rest of the body."""
