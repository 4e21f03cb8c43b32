"""Texts that may be JSON: the arguments of a call, a leaked call, what a tool or an upstream has written.

A model nests brackets as deep as it likes. orjson reads 1024 levels and writes 254, Python's own code bears about a
thousand, and some servers read only 128; so a text that is nested deeper than `DEEPEST` counts as no JSON anywhere. So
does one of more than `MOST_VALUES`, because code in C keeps the interpreter for as long as it parses.
"""

import json
import re
from typing import Any, Final

import msgspec
import orjson

from proxy.wire.json_values import holds_too_many_values

DEEPEST: Final = 200
"""The levels of a value. The answer or the request around it needs some of those that orjson writes."""

MOST_VALUES: Final = 128 * 1024
"""The values in a text, which are parsed within 10 ms. A model writes 131,072 tokens at most, commas included."""

_WRITTEN: Final = 254  # levels that orjson writes
_TOO_MANY: Final = f"it holds more than {MOST_VALUES} values"
_TOO_DEEP: Final = "it is nested too deep"
_ORJSON_TOO_DEEP: Final = "depth limit exceeded"
_LONG: Final = 4096  # characters; in a shorter text values are made in the time of looking at them
_OBJECT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])  # reads the values without making them
# A number that may be an integer beyond 64 bits; behind a comma, a colon, a bracket or a blank, as numbers are in JSON.
_LONG_NUMBER: Final = re.compile(r"[\s\[,:]-?\d{19}")
_LONGEST_INTEGER: Final = 20  # digits of one that may have 64 bits
# The search for such digits in a text in which every digit is 0 takes a twelfth of the time of a regular expression.
_ALIKE: Final = bytes.maketrans(b"123456789", b"000000000")
_LONG_ROW: Final = b"0" * 19
_MOST_EXACT: Final = 1024 * 1024  # bytes: Python's parser takes ten times as long as orjson's
_LEAST_INTEGER, _MOST_INTEGER = -(2**63), 2**64 - 1


def read_json(text: str) -> Any:
    """The value of a JSON text.

    Raises:
        orjson.JSONDecodeError: the text is not JSON, is nested too deep, or holds too many values.
    """
    if _holds_too_many_values(text):
        raise orjson.JSONDecodeError(_TOO_MANY, "", 0)
    value = orjson.loads(text)
    if len(text) > DEEPEST and _may_be_too_deep(text) and _has_too_many_levels(value):
        raise orjson.JSONDecodeError(_TOO_DEEP, "", 0)
    return value


def json_value(text: str) -> Any:
    """The value of a JSON text; None: the text is `null`, or not JSON."""
    try:
        return read_json(text)
    except orjson.JSONDecodeError:
        return None


def json_object(text: str) -> dict[str, Any] | None:
    """The object in a JSON text; None: the text is not JSON, or another value."""
    value = json_value(text)
    return value if isinstance(value, dict) else None


def is_object(text: str) -> bool:
    """Whether a text is a JSON object, as `json_object` tells it, but faster for a long text."""
    if len(text) <= _LONG or _may_be_too_deep(text):
        return json_object(text) is not None
    try:
        _OBJECT.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError):  # the second for half a character
        return False
    return not _holds_too_many_values(text)


def exact_json(text: str) -> Any:
    """The value as `read_json` returns it, with an `orjson.Fragment` of its digits for each integer beyond 64 bits."""
    value = read_json(text)
    if not _LONG_NUMBER.search(text):
        return value
    return json.loads(text, parse_int=_integer)


def with_exact_calls(data: bytes) -> Any:
    """The value of messages of the Messages API, where the arguments of calls are objects; their integers are exact.

    An integer beyond 64 bits is an `orjson.Fragment`, as in `exact_json`. A text without calls is read by orjson alone.

    Raises:
        orjson.JSONDecodeError: `data` is not JSON.
    """
    value = orjson.loads(data)
    if b'"tool_use"' not in data or len(data) > _MOST_EXACT or data.translate(_ALIKE).rfind(_LONG_ROW) < 0:
        return value
    try:
        return json.loads(data, parse_int=_integer) if _LONG_NUMBER.search(data.decode()) else value
    except RecursionError:  # Python's parser permits less nesting
        return value


def is_too_deep(text: str) -> bool:
    """Whether a text is no JSON because it is nested too deep, as far as it was read."""
    try:
        read_json(text)
    except orjson.JSONDecodeError as exc:
        return exc.msg in (_TOO_DEEP, _ORJSON_TOO_DEEP)
    return False


def is_json(text: str) -> bool:
    """Whether a text is JSON."""
    try:
        read_json(text)
    except orjson.JSONDecodeError:
        return False
    return True


def _holds_too_many_values(text: str) -> bool:
    return len(text) > MOST_VALUES and holds_too_many_values(text.encode("utf-8", "replace"), MOST_VALUES)


def _may_be_too_deep(text: str) -> bool:
    """Each level opens a bracket, and most texts have few of them."""
    return text.count("[") + text.count("{") > DEEPEST


def _integer(digits: str) -> Any:
    if len(digits) <= _LONGEST_INTEGER and _LEAST_INTEGER <= (value := int(digits)) <= _MOST_INTEGER:
        return value
    return orjson.Fragment(digits)


def _has_too_many_levels(value: Any) -> bool:
    for _ in range(_WRITTEN - DEEPEST):
        value = [value]
    try:
        orjson.dumps(value)  # in C, which counts the levels faster than a walk does
    except orjson.JSONEncodeError:
        return True
    return False
