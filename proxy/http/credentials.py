"""The credentials of requests, which prove to a server who sends them."""

from dataclasses import dataclass, field
from typing import Protocol

import httpx


class Credential(Protocol):
    """Proves to an upstream who sends a request."""

    @property
    def secrets(self) -> tuple[str, ...]:
        """The values that no error may quote."""
        ...

    @property
    def uses_client_key(self) -> bool:
        """Whether the credential belongs to the client, so that the client gets errors about it."""
        ...

    def lines(self, method: str, target: bytes, body: bytes) -> bytes:
        """The header lines that one request needs, each with its line end.

        Raises:
            httpx.LocalProtocolError: the credential cannot be sent in a header.
        """
        ...


@dataclass(frozen=True, slots=True)
class BearerKey:
    """A key that is sent unchanged with every request. Implements `Credential`."""

    key: str = field(repr=False)
    uses_client_key: bool = False

    @property
    def secrets(self) -> tuple[str, ...]:
        """The key."""
        return (self.key,)

    def lines(self, method: str, target: bytes, body: bytes) -> bytes:  # noqa: ARG002 - the protocol's
        """The header with the key."""
        if not (self.key.isascii() and self.key.isprintable()):
            raise httpx.LocalProtocolError("The key cannot be sent in a header.")
        return b"authorization: Bearer %b\r\n" % self.key.encode()
