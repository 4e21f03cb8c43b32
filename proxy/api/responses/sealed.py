"""`encrypted_content`: what a client carries for us from one request to the next and can neither read nor make.

A model's thoughts, or what a client that stores nothing here was not shown of a run that ended in its own calls.
Sealed for one caller, so that it is of no use to another. One that cannot be opened is ignored: the conversation goes
on without it.
"""

import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from hmac import digest
from os import urandom
from typing import Any

import orjson
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from proxy.loop.chat import Json
from proxy.loop.continuation import Continuation

_PURPOSE = b"toolproxy encrypted_content 1"
_NONCE_BYTES = 12  # AES-GCM's own length


def key_from(secrets: Iterable[str]) -> bytes:
    """A key of 32 bytes that every worker and replica with the same secrets has; a random one where there are none."""
    known = [sha256(secret.encode()).digest() for secret in sorted(secrets)]
    return digest(b"".join(known), _PURPOSE, "sha256") if known else urandom(32)


@dataclass(frozen=True, slots=True)
class Thoughts:
    """What a model thought."""

    text: str


@dataclass(frozen=True, slots=True)
class Hidden:
    """What a client was not shown of a run."""

    run_id: str
    continuation: Continuation


class Seal:
    """Seals and opens for one caller."""

    def __init__(self, key: bytes, scope: str) -> None:
        self._cipher = AESGCM(key)
        self._scope = scope.encode()

    def thoughts(self, text: str) -> str:
        """Sealed thoughts."""
        return self._seal({"thoughts": text})

    def hidden(self, run_id: str, continuation: Continuation) -> str:
        """A sealed continuation."""
        return self._seal({"run": run_id, "hidden": continuation.as_json()})

    def open(self, sealed: Any) -> Thoughts | Hidden | None:
        """What is in it; None for what was not sealed here for this caller."""
        try:
            data = urlsafe_b64decode(sealed)
            plain = self._cipher.decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], self._scope)
        except (InvalidTag, TypeError, ValueError):
            return None
        held: Json = orjson.loads(zlib.decompress(plain))  # ours: only now is it certain
        if "hidden" in held:
            return Hidden(held["run"], Continuation.from_json(held["hidden"]))
        return Thoughts(held["thoughts"])

    def _seal(self, held: Json) -> str:
        nonce = urandom(_NONCE_BYTES)
        sealed = self._cipher.encrypt(nonce, zlib.compress(orjson.dumps(held)), self._scope)
        return urlsafe_b64encode(nonce + sealed).decode()
