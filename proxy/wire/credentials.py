"""The credentials in headers of a request, with which tools act for the user of an app. Pure.

In the configuration, `${request.headers.NAME}` stands for the value of that header of the app's request. It goes to the
tool that asks for it and nowhere else: what is kept between requests, and what was found with a value, is known by a
keyed hash of it, and can be used only by a request that carries the same value.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from hmac import compare_digest, digest
from types import MappingProxyType
from typing import Final

HEADER_OF_REQUEST: Final = re.compile(r"\$\{request\.headers\.([!#$%&'*+.^_`|~0-9A-Za-z-]+)\}")
"""A reference to a header of the app's request."""

_SENDABLE = re.compile(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?")  # RFC 9110, without obsolete characters
_PURPOSE: Final = b"toolproxy credential 1"
_WORD = re.compile(r'[^\s=;,"]{8,}')


def headers_in(values: Iterable[str]) -> frozenset[str]:
    """The names of the headers that values of the configuration refer to, in lower case."""
    return frozenset(name.lower() for value in values for name in HEADER_OF_REQUEST.findall(value))


def forms_of(secret: str) -> set[str]:
    """The forms in which others may repeat the value of a header: whole, without its scheme, each long word of it."""
    return {secret, secret.partition(" ")[2], *_WORD.findall(secret)} - {""}  # "Bearer KEY", "session=KEY; theme=dark"


class Credentials:
    """The credentials of one request, and which of them what it has found depends on.

    Args:
        values: the values of the headers that tools refer to, by name in lower case; empty ones count as absent.
        keys: of 32 bytes each; the first one makes the hashes, and each of them recognises its own.
        scope: the caller, for whom alone the hashes are.

    Attributes:
        scope: the caller.
        names: the names of the headers that the request has.
        used: the names of those with which a tool was called, or something kept was opened.
    """

    def __init__(
        self, values: Mapping[str, str] = MappingProxyType({}), keys: Iterable[bytes] = (), *, scope: str = ""
    ) -> None:
        self._values = {name: value for name, value in values.items() if value}
        self._keys = [digest(key, _PURPOSE, "sha256") for key in keys] if self._values else []
        self.scope = scope
        self.names = frozenset(self._values)
        self.used: set[str] = set()
        self._at_end: list[Callable[[], None]] | None = []  # None: the request has ended

    def at_end(self, callback: Callable[[], None]) -> bool:
        """Have something called when the request ends; False: it has ended."""
        if self._at_end is None:
            return False
        self._at_end.append(callback)
        return True

    def end(self) -> None:
        """End everything that was begun with these credentials, because the request has ended."""
        callbacks, self._at_end = self._at_end or [], None
        for callback in callbacks:
            callback()

    def fill(self, template: str) -> str:
        """A value of the configuration with the values of the headers in it.

        Raises:
            KeyError: the request lacks one of them.
            ValueError: a value has characters that no header may have; the message names its header.
        """
        return HEADER_OF_REQUEST.sub(self._sendable, template)

    def _sendable(self, reference: re.Match[str]) -> str:
        name = reference[1].lower()
        if not _SENDABLE.fullmatch(self._values[name]):
            raise ValueError(name)
        return self._values[name]

    def secrets_in(self, templates: Iterable[str]) -> set[str]:
        """The secrets to mask in the answer of a server that these header templates are sent to."""
        return {form for name in headers_in(templates) for form in forms_of(self._values[name])}

    def hash_of(self, names: Iterable[str]) -> str:
        """A keyed hash of the values of some headers together; empty for no headers."""
        hashes = [f"{name}\0{self._hash(name, self._keys[0])}" for name in sorted(names)]
        return digest(self._keys[0], "\0".join(hashes).encode(), "sha256").hex() if hashes else ""

    def bound(self) -> dict[str, str]:
        """The binding to store with what this request finds, for `opens`: header name -> keyed hash of its value."""
        return {name: self._hash(name, self._keys[0]) for name in sorted(self.used)}

    def opens(self, bound: object) -> bool:
        """Whether the request may open what was kept with `bound`: it carries the same values as the one that found it.

        What it finds from here on depends on these values, too.
        """
        if not bound:
            return True
        if not isinstance(bound, dict) or not all(self._is(name, kept) for name, kept in bound.items()):
            return False
        self.used.update(bound)
        return True

    def _hash(self, name: str, key: bytes) -> str:
        said = f"{self.scope}\0{name}\0{self._values[name]}".encode("utf-8", "surrogatepass")
        return digest(key, said, "sha256").hex()

    def _is(self, name: object, kept: object) -> bool:
        if not isinstance(name, str) or not isinstance(kept, str) or name not in self._values:
            return False
        return any(compare_digest(self._hash(name, key), kept) for key in self._keys)


NO_CREDENTIALS: Final = Credentials()
"""The credentials of a request without any."""

BOUND: Final = "bound"
"""The key of what `Credentials.bound` gives, in what is kept as JSON."""
