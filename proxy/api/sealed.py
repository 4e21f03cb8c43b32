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
from typing import Any

import orjson
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from proxy.api.access import Caller
from proxy.config import FROM_CLIENT, UpstreamConfig
from proxy.loop.chat import Json

_PURPOSE = b"toolproxy encrypted_content 1"
_NONCE_BYTES = 12  # AES-GCM's own length
_KEY_OF_THIS_PROCESS = urandom(32)


def sealing_keys(upstreams: Iterable[UpstreamConfig]) -> tuple[str, ...]:
    """The keys of the upstreams, from which the sealing key is derived: all workers and replicas have them."""
    return tuple(upstream.api_key for upstream in upstreams if upstream.api_key != FROM_CLIENT)


def sealer_for(caller: Caller, secrets: tuple[str, ...]) -> "Sealer":
    """The sealer for a caller; its key is derived from the `secrets`, or without any from the caller's own key."""
    if not secrets and caller.upstream_key is not None:
        secrets = (caller.upstream_key,)
    return Sealer(key_from(secrets), caller.scope)


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
    """Seals and opens for one caller."""

    def __init__(self, key: bytes, scope: str) -> None:
        self._cipher = _cipher(key)
        self._scope = scope.encode()

    def seal(self, held: Json) -> str:
        """A sealed text that holds the object."""
        nonce = urandom(_NONCE_BYTES)
        sealed = self._cipher.encrypt(nonce, zlib.compress(orjson.dumps(held)), self._scope)
        return urlsafe_b64encode(nonce + sealed).decode()

    def open(self, sealed: Any) -> Json | None:
        """The object in a sealed text; None if it was not sealed here for this caller."""
        try:
            data = urlsafe_b64decode(sealed)
            plain = self._cipher.decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], self._scope)
        except (InvalidTag, TypeError, ValueError):
            return None
        held: Json = orjson.loads(zlib.decompress(plain))  # safe, because it was authenticated above
        return held

    def seal_text(self, text: str) -> str:
        """The sealed form of a text."""
        return self.seal({"text": text})

    def open_text(self, sealed: Any) -> str | None:
        """The text in a sealed text; None if it was not sealed here for this caller."""
        held = self.open(sealed)
        text = held.get("text") if held is not None else None
        return text if isinstance(text, str) else None
