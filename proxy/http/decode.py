"""Compressed bodies, unpacked in pieces: 48 KB of one can be 50 MB, and must never be in memory at once."""

import zlib
from collections.abc import AsyncIterable, Iterator

import httpx

from proxy.http.response import Response

PIECE = 64 * 1024

# zlib recognises both by their heads; what "deflate" means in HTTP is the zlib format (RFC 9110, section 8.4.1.2).
_ZLIB_OR_GZIP = zlib.MAX_WBITS | 32
_BARE = -zlib.MAX_WBITS
_HEAD_BYTES = 2
_CODINGS = frozenset({"gzip", "x-gzip", "deflate"})
_NO_CODING = frozenset({"", "identity"})


class Inflater:
    """Unpacks a body that was sent compressed although `identity` was asked for.

    Args:
        coding: the Content-Encoding.

    Raises:
        ValueError: by any method: the coding is not supported, or the bytes are not in it.
    """

    def __init__(self, coding: str) -> None:
        coding = coding.strip().lower()
        if coding not in _CODINGS | _NO_CODING:
            raise ValueError("the content coding is not understood")
        self._zlib = zlib.decompressobj(_ZLIB_OR_GZIP) if coding in _CODINGS else None
        self._may_be_bare = coding == "deflate"  # without the head of zlib's format, as some servers send it
        self._begun = b""  # of that head, which has two bytes

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The pieces that `data` holds, none larger than `PIECE` where anything had to be unpacked."""
        if self._zlib is None:
            yield data
            return
        if self._may_be_bare:
            data = self._begun = self._begun + data
            if len(data) < _HEAD_BYTES:
                return
        piece = b""
        # After a full piece zlib may hold more, even where it has taken all of `data` in.
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


async def inflated(chunks: AsyncIterable[bytes], coding: str, *, most: int) -> bytes:
    """A body, decompressed as it arrives, up to the first piece beyond `most` bytes.

    Raises:
        ValueError: it cannot be decompressed.
    """
    inflater, body = Inflater(coding), bytearray()
    async for data in chunks:
        for piece in inflater.feed(data):
            body += piece
            if len(body) > most:
                return bytes(body)
    return bytes(body)


class DecodedResponse(Response):
    """A response that its server may have compressed unasked; its body is unpacked piece by piece."""

    __slots__ = ("_inflater", "_pieces", "_response")

    def __init__(self, response: Response) -> None:
        self.status, self.headers = response.status, response.headers
        self._response = response
        self._inflater: Inflater | None = None
        self._pieces: Iterator[bytes] = iter(())

    async def read(self) -> bytes:
        """The next piece of the body. Raises `httpx.DecodingError` where it cannot be unpacked."""
        try:
            if self._inflater is None:
                self._inflater = Inflater(self.header(b"content-encoding").decode("latin-1"))
            while (piece := next(self._pieces, None)) is None:
                data = await self._response.read()
                if not data:
                    self._inflater.close()
                    return b""
                self._pieces = self._inflater.feed(data)
        except ValueError as exc:
            raise httpx.DecodingError(str(exc)) from exc
        return piece

    async def aclose(self) -> None:
        """Discard the rest of the body."""
        await self._response.aclose()
