"""What was made lately of things that clients send with every request, such as the list of an agent's tools.

Unlike a message, such a list is not a part of a conversation, so `known` does not have it. It is found by its bytes and
by whose it is: nobody can find out by the time of an answer what others have sent.
"""

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import orjson

from proxy.api.body_memory import cost_of

T = TypeVar("T")

_MOST_BYTES = 8 * 1024 * 1024
_OVERHEAD = 1024  # of an entry, in bytes


def text_of(*declared: Any) -> bytes | None:
    """What a request declares, as JSON; None: nothing, or values that are not remembered, such as long integers."""
    if not any(declared):
        return None
    try:
        return orjson.dumps(declared)
    except orjson.JSONEncodeError:
        return None


class Remembered:
    """Results by all that they were made from, within a bound; where it is reached, all of them are forgotten.

    A result is shared by requests, and therefore never changed.

    Args:
        most_bytes: the bound, by an upper estimate of the memory that results take.
    """

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        # With the objects that are compared by their identity, which nothing else gets as long as they are held.
        self._made: dict[Hashable, tuple[tuple[object, ...], Any]] = {}

    def of(self, text: bytes | None, same: tuple[object, ...], equal: tuple[Hashable, ...], make: Callable[[], T]) -> T:
        """What was made before from the same things, or else what `make` makes of them now.

        Args:
            text: JSON from which it is made, and which tells how large it is; None: it is made anew.
            same: objects that it depends on, which have to be the same ones.
            equal: values that it depends on.
            make: makes it; an exception is passed on, and nothing is remembered.
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
