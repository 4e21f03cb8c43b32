"""Sealed text: a client carries it from one request to the next, and can neither read nor forge it.

A text is sealed for one caller and is of no use to any other. A text that cannot be opened is ignored.
"""

import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable
from functools import lru_cache
from hashlib import sha256
from hmac import digest
from os import urandom
from typing import Any, Final

import orjson
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from proxy.api.access import Caller
from proxy.api.body_memory import Share, cost_of
from proxy.config.model import FROM_CLIENT, UpstreamConfig
from proxy.kit.beside import MOST_AT_ONCE
from proxy.wire.chat import Json
from proxy.wire.errors import RequestTooLarge

MOST_OPENED: Final = 32 * 1024 * 1024
"""The bytes to which the sealed texts of a request may open together, unless `server.max_body_bytes` says otherwise."""

_SEALED_FIELDS = (b'"encrypted_content"', b'"signature"')
# How many times larger a sealed text may be when it is opened; a model that repeats itself gets to a thousand.
_USUAL_RATIO = 16
_PURPOSE = b"toolproxy encrypted_content 1"
_NONCE_BYTES = 12  # AES-GCM's own length
_KEY_OF_THIS_PROCESS = urandom(32)


def sealing_keys(upstreams: Iterable[UpstreamConfig]) -> tuple[str, ...]:
    """The keys of the upstreams, from which the sealing key is derived: all workers and replicas have them."""
    return tuple(upstream.api_key for upstream in upstreams if upstream.api_key != FROM_CLIENT)


def sealer_for(
    caller: Caller, secrets: tuple[str, ...], *, most_bytes: int = MOST_OPENED, share: Share | None = None
) -> "Sealer":
    """The sealer for a request of a caller.

    Its key is derived from the `secrets`, or without any from the caller's own key. For the other arguments see
    `Sealer`.
    """
    if not secrets and caller.upstream_key is not None:
        secrets = (caller.upstream_key,)
    return Sealer(key_from(secrets), caller.scope, most_bytes=most_bytes, share=share)


def size_opened(body: bytes) -> int:
    """The size of a request by which `beside` judges it: larger than the body if that seems to hold sealed text."""
    if len(body) * _USUAL_RATIO <= MOST_AT_ONCE or not any(name in body for name in _SEALED_FIELDS):
        return len(body)
    return len(body) * _USUAL_RATIO


@lru_cache(maxsize=1024)
def key_from(secrets: tuple[str, ...]) -> bytes:
    """A key of 32 bytes, derived from these secrets in every worker and replica; without any, the process's own."""
    if not secrets:
        return _KEY_OF_THIS_PROCESS
    known = [sha256(secret.encode()).digest() for secret in sorted(secrets)]
    return digest(b"".join(known), _PURPOSE, "sha256")


@lru_cache(maxsize=1024)
def _cipher(key: bytes) -> AESGCM:
    """The cipher of a key, cached because it takes 3 % of a request to make."""
    return AESGCM(key)


class Sealer:
    """Seals and opens for one request.

    Args:
        key: 32 bytes.
        scope: the caller's, without which nothing can be opened.
        most_bytes: how large the texts of the request may be together when they are opened: each is compressed, so that
            a text of some kilobytes may open to megabytes.
        share: counts their memory; None: it is not counted.
    """

    def __init__(self, key: bytes, scope: str, *, most_bytes: int = MOST_OPENED, share: Share | None = None) -> None:
        self._cipher = _cipher(key)
        self._scope = scope.encode()
        self._left = most_bytes
        self._share = share
        self._cost = 0  # of what was opened, in memory

    def seal(self, held: Json) -> str:
        """A sealed text that holds the object."""
        nonce, text = urandom(_NONCE_BYTES), orjson.dumps(held)
        level = zlib.Z_DEFAULT_COMPRESSION if len(text) <= MOST_AT_ONCE else zlib.Z_BEST_SPEED  # 10 ms for a megabyte
        sealed = self._cipher.encrypt(nonce, zlib.compress(text, level), self._scope)
        return urlsafe_b64encode(nonce + sealed).decode()

    def open(self, sealed: Any) -> Json | None:
        """The object in a sealed text; None if it was not sealed here for this caller.

        Raises:
            RequestTooLarge: the texts of the request are too large when they are opened.
            Overloaded: they would take more memory than is left at the moment.
        """
        try:
            data = urlsafe_b64decode(sealed)
            packed = self._cipher.decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], self._scope)
            text = zlib.decompressobj().decompress(packed, self._left + 1)
        except (InvalidTag, TypeError, ValueError, zlib.error):
            return None
        self._left -= len(text)
        if self._left < 0:
            raise RequestTooLarge("What the request carries in sealed form is too large when it is opened.")
        if self._share is not None:
            self._cost += cost_of(text)
            self._share.require(self._share.reserved + self._cost)
        try:
            held = orjson.loads(text)
        except orjson.JSONDecodeError:
            return None
        return held if isinstance(held, dict) else None

    def count_opened(self) -> None:
        """Reserve the memory of what was opened. A request is read in a thread, where nothing can be reserved.

        Raises:
            RequestTooLarge, Overloaded: as `open`.
        """
        if self._share is not None and self._cost:
            self._share.parsed += self._cost
            self._share.reserve(self._share.reserved + self._cost)
            self._cost = 0

    def seal_text(self, text: str) -> str:
        """The sealed form of a text."""
        return self.seal({"text": text})

    def open_text(self, sealed: Any) -> str | None:
        """The text in a sealed text; None if it was not sealed here for this caller."""
        held = self.open(sealed)
        text = held.get("text") if held is not None else None
        return text if isinstance(text, str) else None
