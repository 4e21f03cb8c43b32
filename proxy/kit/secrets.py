"""The secrets that seal what clients keep for the proxy."""

from msgspec import Struct


class Secrets(Struct, frozen=True):
    """The secrets that a process knows at present.

    Attributes:
        known: the first one seals, and each of them opens; empty: there is none, as with `memory://` by default.
        since: when the proxy began to seal with a secret, in seconds since 1970.
    """

    known: tuple[str, ...] = ()
    since: float = 0.0
