"""Results made from values that clients send with every request, such as the list of an agent's tools.

Such a list is no message, so `known` does not keep it. A result is found by the bytes of the list and by the client, so
the time of an answer tells no client which lists other clients have sent.
"""

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import orjson

from proxy.api.body_memory import cost_of

T = TypeVar("T")

_MOST_BYTES = 8 * 1024 * 1024
_OVERHEAD = 1024  # of an entry, in bytes


def text_of(*declared: Any) -> bytes | None:
    """The `declared` values of a request as JSON; None: there are none, or one cannot be written, as a long integer."""
    if not any(declared):
        return None
    try:
        return orjson.dumps(declared)
    except orjson.JSONEncodeError:
        return None


class Remembered:
    """Results by all values that they were made from. All are forgotten when they may take more than `most_bytes`.

    A result is shared by requests, and therefore never changed.
    """

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        # With the objects that are compared by their identity, which nothing else gets as long as they are held.
        self._made: dict[Hashable, tuple[tuple[object, ...], Any]] = {}

    def of(self, text: bytes | None, same: tuple[object, ...], equal: tuple[Hashable, ...], make: Callable[[], T]) -> T:
        """The result that was made before from the same values, or the one that `make` returns now.

        Args:
            text: JSON from which the result is made, and by which its size is estimated; None: nothing is remembered.
            same: objects that the result depends on, compared by their identity.
            equal: values that the result depends on, compared by equality.
            make: makes the result. If it raises an exception, nothing is remembered.
        """
        if text is None:
            return make()
        key = text, *map(id, same), *equal
        if (found := self._made.get(key)) is not None:
            made: T = found[1]
            return made
        made = make()
        cost = cost_of(text) + _OVERHEAD
        if self._bytes + cost > self._most_bytes:
            self._made, self._bytes = {}, 0
        if cost <= self._most_bytes:
            self._bytes += cost
            self._made[key] = same, made
        return made
