"""Sealed text: a client carries it from one request to the next, and can neither read nor forge it.

A text is sealed for one caller and is of no use to any other. A text that cannot be opened is ignored.

The key is derived from a secret that the configuration gives or the state store keeps. Where there is neither, it is
derived from the keys of the upstreams, which all workers and replicas have. Then a change of these keys makes sealed
texts unreadable, and anyone who knows all keys can forge a text. So the content of a sealed text is checked like any
other input.
"""

import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from contextlib import suppress
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
from proxy.config.keys import FROM_CLIENT, is_guessable
from proxy.config.model import Config, keys_of
from proxy.kit.beside import MOST_AT_ONCE
from proxy.kit.secrets import Secrets
from proxy.recording.recording import CURRENT
from proxy.wire.chat import Json
from proxy.wire.credentials import BOUND, NO_CREDENTIALS, Credentials
from proxy.wire.errors import RequestTooLarge

MOST_OPENED: Final = 32 * 1024 * 1024
"""The bytes to which the sealed texts of a request may open together, unless `server.max_body_bytes` says otherwise."""

_SEALED_FIELDS = (b'"encrypted_content"', b'"signature"')
# How many times larger a sealed text may be when it is opened; a model that repeats itself gets to a thousand.
_USUAL_RATIO = 16
_OF_SECRET = b"toolproxy state.secret 1"
_OF_UPSTREAM_KEYS = b"toolproxy encrypted_content 1"
_NONCE_BYTES = 12  # AES-GCM's own length
_KEY_OF_THIS_PROCESS = urandom(32)


class SealingKeys:
    """The keys that seal and open texts under one configuration.

    For `state.ttl` after the first secret came into use, texts that were sealed with the upstreams' keys are opened
    too, unless one of these keys could be guessed.

    Args:
        secrets: the secrets that are known at present.
        config: the configuration.
        now: the present time, in seconds since 1970.
    """

    def __init__(self, secrets: Callable[[], Secrets], config: Config, *, now: Callable[[], float]) -> None:
        self._secrets = secrets
        keys = [key for one in config.upstreams.values() for key in keys_of(one.api_key).values()]
        self._upstream_keys = tuple(key for key in keys if key != FROM_CLIENT)
        self._ttl = config.state.ttl
        self._now = now

    def for_caller(self, caller: Caller) -> tuple[bytes, ...]:
        """The keys for a caller: the first one seals, and each of them opens."""
        secrets = self._secrets()
        upstream_keys = self._upstream_keys or ((caller.upstream_key,) if caller.upstream_key else ())
        if not secrets.known:
            return (_key_from(upstream_keys, _OF_UPSTREAM_KEYS) if upstream_keys else _KEY_OF_THIS_PROCESS,)
        keys = tuple([_key_from((secret,), _OF_SECRET) for secret in secrets.known])
        if self._now() >= secrets.since + self._ttl or not upstream_keys or any(map(is_guessable, upstream_keys)):
            return keys
        return (*keys, _key_from(upstream_keys, _OF_UPSTREAM_KEYS))


def size_opened(body: bytes) -> int:
    """The size of a request by which `beside` judges it: larger than the body if that seems to hold sealed text."""
    size = len(body)
    if size <= MOST_AT_ONCE < size * _USUAL_RATIO and any(body.rfind(name) >= 0 for name in _SEALED_FIELDS):
        return size * _USUAL_RATIO
    return size


@lru_cache(maxsize=1024)
def _key_from(secrets: tuple[str, ...], purpose: bytes) -> bytes:
    """A key of 32 bytes for one purpose, the same in every worker and replica that has these secrets."""
    known = [sha256(secret.encode()).digest() for secret in sorted(secrets)]
    return digest(b"".join(known), purpose, "sha256")


@lru_cache(maxsize=1024)
def _cipher(key: bytes) -> AESGCM:
    """The cipher of a key, cached because it takes 3 % of a request to make."""
    return AESGCM(key)


class Sealer:
    """Seals and opens for one request.

    Args:
        keys: of 32 bytes each; the first one seals, and each of them opens.
        scope: the scope of the caller, without which nothing can be opened.
        most_bytes: the largest size of all opened texts of the request. They are compressed, so that a text of some
            kilobytes may open to megabytes.
        share: counts the memory of opened texts; None: it is not counted.
        credentials: the credentials of the user. A text that may depend on their use opens only for the same ones.
    """

    def __init__(
        self,
        keys: tuple[bytes, ...],
        scope: str,
        *,
        most_bytes: int = MOST_OPENED,
        share: Share | None = None,
        credentials: Credentials = NO_CREDENTIALS,
    ) -> None:
        self._ciphers = [_cipher(key) for key in keys]
        self._scope = scope.encode()
        self._left = most_bytes
        self._share = share
        self._credentials = credentials
        self._cost = 0  # of the opened texts, in bytes of memory

    def seal(self, held: Json) -> str:
        """A sealed text that holds the object."""
        if bound := self._credentials.bound():
            held = {**held, BOUND: bound}
        return self.seal_bytes(orjson.dumps(held))

    def seal_bytes(self, text: bytes) -> str:
        """A sealed text that holds these bytes."""
        nonce = urandom(_NONCE_BYTES)
        level = zlib.Z_DEFAULT_COMPRESSION if len(text) <= MOST_AT_ONCE else zlib.Z_BEST_SPEED  # 10 ms for a megabyte
        sealed = self._ciphers[0].encrypt(nonce, zlib.compress(text, level), self._scope)
        return urlsafe_b64encode(nonce + sealed).decode()

    def open(self, sealed: Any) -> Json | None:
        """The object in a sealed text; None if it was not sealed here for this caller and these credentials.

        Raises:
            RequestTooLarge: the texts of the request are too large when they are opened.
            Overloaded: they would take more memory than is left at the moment.
        """
        try:
            packed = self._decrypted(urlsafe_b64decode(sealed))
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
        if not isinstance(held, dict) or not self._credentials.opens(held.get(BOUND)):
            return None
        if (recording := CURRENT.get()) is not None:
            recording.open(sealed, held, len(text))
        return held

    def _decrypted(self, data: bytes) -> bytes:
        """Data decrypted with the key that fits. Raises `InvalidTag`: none does; `ValueError`: its nonce is cut off."""
        *others, last = self._ciphers
        nonce, sealed = data[:_NONCE_BYTES], data[_NONCE_BYTES:]
        for cipher in others:
            with suppress(InvalidTag):
                return cipher.decrypt(nonce, sealed, self._scope)
        return last.decrypt(nonce, sealed, self._scope)

    def count_opened(self) -> None:
        """Reserve the memory of the opened texts. A request is read in a thread, where nothing can be reserved.

        Raises as `open`.
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
