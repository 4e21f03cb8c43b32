"""Compares two JSON values without ids and times, and names every place in which they differ.

An id may have another value if each place of the old id has the same new one. Opaque texts differ only where one of the
two is empty.
"""

import re
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any, Final

import orjson
from msgspec import Struct

MISSING: Final = "(nothing)"
"""Stands for a value that is missing on one side."""

_IDS: Final = frozenset({
    "id", "call_id", "item_id", "previous_response_id", "request_id", "response_id", "tool_call_id", "tool_use_id",
})  # fmt: skip
_TIMES: Final = frozenset({"created", "created_at", "completed_at", "retrieved_at", "seconds"})
_OPAQUE: Final = frozenset({"encrypted_content", "encrypted_index", "signature"})
_MASKED: Final = re.compile(r"x{6,}")
_LONGEST: Final = 200  # characters of a value that is shown


class Difference(Struct, frozen=True):
    """A place in which the answer of today differs from the case.

    Attributes:
        exchange: the number of the exchange, from 1.
        where: the call of an upstream, the tool or the answer.
        field: the path of the field in it.
        then: the value that was recorded, or that the case expects.
        now: the value of today.
    """

    exchange: int
    where: str
    field: str
    then: Any
    now: Any

    def __str__(self) -> str:
        what = f"{self.where}, {self.field}" if self.field else self.where
        return f"exchange {self.exchange}, {what}: {_short(self.then)} then, {_short(self.now)} now"


class Comparison:
    """Compares the parts of one exchange, in which equal ids stay equal."""

    def __init__(self) -> None:
        self._now: dict[str, str] = {}
        self._then: dict[str, str] = {}

    def differences(self, then: Any, now: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
        """The places in which two values differ: path, then, now."""
        match then, now:
            case dict(), dict():
                for key in (*then, *(key for key in now if key not in then)):
                    yield from self._field(
                        then.get(key, MISSING), now.get(key, MISSING), key, f"{path}.{key}".lstrip(".")
                    )
            case list(), list():
                for at, (one, other) in enumerate(zip_longest(then, now, fillvalue=MISSING)):
                    yield from self.differences(one, other, f"{path}[{at}]")
            case str(), str():
                yield from self._texts(then, now, path)
            case _:
                # In Python `1 == True`, in JSON they differ.
                if then != now or isinstance(then, bool) != isinstance(now, bool):
                    yield path, then, now

    def _field(self, then: Any, now: Any, key: str, path: str) -> Iterator[tuple[str, Any, Any]]:
        if key in _TIMES and then is not MISSING and now is not MISSING:
            return
        if key in _OPAQUE and isinstance(then, str) and isinstance(now, str):
            if bool(then) != bool(now):
                yield path, then, now
            return
        if key in _IDS and isinstance(then, str) and isinstance(now, str):
            if self._now.setdefault(then, now) != now or self._then.setdefault(now, then) != then:
                yield path, then, now
            return
        yield from self.differences(then, now, path)

    def _texts(self, then: str, now: str, path: str) -> Iterator[tuple[str, Any, Any]]:
        """Texts; JSON in texts is compared field by field, so that the field is named."""
        if then == now or _without_keys(then) == _without_keys(now):
            return
        if then[:1] in ("{", "[") and now[:1] in ("{", "["):
            try:
                found = [*self.differences(orjson.loads(then), orjson.loads(now), f"{path} as JSON")]
            except orjson.JSONDecodeError:
                found = []
            if found:
                yield from found
                return
        yield path, then, now


def _without_keys(text: str) -> str:
    """The text with one mark for every masked key: a case and an answer of the proxy mask keys differently."""
    return _MASKED.sub("***", text)


def is_same(then: Any, now: Any) -> bool:
    """Whether two values are the same, ids and times apart."""
    return next(Comparison().differences(then, now), None) is None


def without_ids(value: Any) -> Any:
    """A JSON value without its ids, times and opaque texts."""
    match value:
        case dict():
            left_out = _IDS | _TIMES | _OPAQUE
            return {key: without_ids(held) for key, held in value.items() if key not in left_out}
        case list():
            return [*map(without_ids, value)]
    return value


def _short(value: Any) -> str:
    if value is MISSING:
        return MISSING
    text = value if isinstance(value, str) else orjson.dumps(value, default=str).decode()
    text = orjson.dumps(text).decode() if isinstance(value, str) else text
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
