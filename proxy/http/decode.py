"""A compressed body, unpacked in pieces: 48 KB of it can be 50 MB, and must never be in memory at once."""

import zlib
from collections.abc import Iterator

PIECE = 64 * 1024

# zlib recognises both by their heads; what "deflate" means in HTTP is the zlib format (RFC 9110, section 8.4.1.2).
_ZLIB_OR_GZIP = zlib.MAX_WBITS | 32
_CODINGS = frozenset({"gzip", "x-gzip", "deflate"})
_NO_CODING = frozenset({"", "identity"})


class Inflate:
    """Unpacks what was sent compressed although `identity` was asked for.

    Args:
        coding: the Content-Encoding.

    Raises:
        ValueError: by any method: the coding is not known here, or the bytes are not what it says.
    """

    def __init__(self, coding: str) -> None:
        coding = coding.strip().lower()
        if coding not in _CODINGS | _NO_CODING:
            raise ValueError("the content coding is not understood")
        self._unpacking = zlib.decompressobj(_ZLIB_OR_GZIP) if coding in _CODINGS else None

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The pieces that `data` holds, none larger than `PIECE` where anything had to be unpacked."""
        if self._unpacking is None:
            yield data
            return
        while data and not self._unpacking.eof:
            try:
                piece = self._unpacking.decompress(data, PIECE)
            except zlib.error as exc:
                raise ValueError("the compressed body cannot be unpacked") from exc
            data = self._unpacking.unconsumed_tail
            if piece:
                yield piece

    def close(self) -> None:
        """Nothing more comes."""
        if self._unpacking is not None and not self._unpacking.eof:
            raise ValueError("the compressed body broke off")
