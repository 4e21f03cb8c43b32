"""Decompresses bodies in pieces: 48 KB can become 50 MB, which must never be in memory at once."""

import asyncio
import zlib
from collections.abc import Iterator

import httpx

from proxy.http.response import Response

PIECE = 64 * 1024
# Pieces after which other tasks get their turn: a megabyte takes about three milliseconds.
_GIVE_WAY = 16

# zlib recognises both formats by their headers; "deflate" in HTTP is the zlib format (RFC 9110, section 8.4.1.2).
_ZLIB_OR_GZIP = zlib.MAX_WBITS | 32
_BARE = -zlib.MAX_WBITS
_HEAD_BYTES = 2
_CODINGS = frozenset({"gzip", "x-gzip", "deflate"})
_NO_CODING = frozenset({"", "identity", "none"})  # the last is no registered name, but some servers send it


class Inflater:
    """Decompresses a body that was compressed although the request asked for `identity`.

    Raises:
        ValueError: from any method: the coding is not supported, or the bytes are not valid in it.
    """

    def __init__(self, coding: str) -> None:
        coding = coding.strip().lower()
        if coding not in _CODINGS | _NO_CODING:
            raise ValueError("the content coding is not understood")
        self._zlib = zlib.decompressobj(_ZLIB_OR_GZIP) if coding in _CODINGS else None
        self._may_be_bare = coding == "deflate"  # without zlib's header, as some servers send it
        self._begun = b""  # the beginning of a zlib header, which has two bytes

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The decompressed pieces of `data`, none larger than `PIECE`; `data` itself if it is not compressed."""
        if self._zlib is None:
            yield data
            return
        if self._may_be_bare:
            data = self._begun = self._begun + data
            if len(data) < _HEAD_BYTES:
                return
        piece = b""
        # After a full piece zlib may hold more, even if it has consumed all of `data`.
        while (data or len(piece) == PIECE) and not self._zlib.eof:
            try:
                piece = self._zlib.decompress(data, PIECE)
            except zlib.error as exc:
                if not self._may_be_bare:
                    raise ValueError("the compressed body cannot be unpacked") from exc
                self._zlib, self._may_be_bare = zlib.decompressobj(_BARE), False
                continue
            self._may_be_bare = False
            data = self._zlib.unconsumed_tail
            if piece:
                yield piece

    def close(self) -> None:
        """Require that the body is complete."""
        if self._zlib is not None and not self._zlib.eof:
            raise ValueError("the compressed body broke off")


class DecodedResponse(Response):
    """A response that the server may have compressed without being asked. The body is decompressed in pieces."""

    def __init__(self, response: Response) -> None:
        self.status, self.headers = response.status, response.headers
        self._response = response
        self._inflater: Inflater | None = None
        self._pieces: Iterator[bytes] = iter(())
        self._taken = 0

    async def read(self) -> bytes:
        """The next piece of the body. Raises `httpx.DecodingError` if it cannot be decompressed."""
        try:
            if self._inflater is None:
                self._inflater = Inflater(self.header(b"content-encoding").decode("latin-1"))
            while (piece := next(self._pieces, None)) is None:
                data = await self._response.read()
                if not data:
                    self._inflater.close()
                    return b""
                self._pieces = self._inflater.feed(data)
            self._taken += 1
            if self._taken % _GIVE_WAY == 0:
                await asyncio.sleep(0)
        except ValueError as exc:
            raise httpx.DecodingError(str(exc)) from exc
        return piece

    def end_within(self, seconds: float) -> None:
        """Read for at most `seconds` more."""
        self._response.end_within(seconds)

    async def aclose(self) -> None:
        """Discard the rest of the body."""
        await self._response.aclose()
