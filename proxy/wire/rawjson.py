"""JSON that stays as it was written: numbers that no float holds, and the bytes of a request around a replaced `model`.

orjson reads an integer beyond 64 bits and a number like 1e-400 as the nearest float, and refuses 1e400. Fields that the
proxy does not know have to be passed on untouched, so such a number stays text: an `orjson.Fragment`, which orjson
writes as it is, and which is not a number to any other code.
"""

import json
import re
from collections.abc import Callable
from decimal import Decimal
from math import isfinite
from typing import Any

import orjson

from proxy.wire import json_parts
from proxy.wire.errors import InvalidJson, UpstreamError

# Translates every digit into 0, so that a plain search finds long numbers, in a twelfth of the time of a regular
# expression.
_ALIKE = bytes.maketrans(b"123456789E", b"000000000e")
# Positive integers of up to 19 digits fit 64 bits.
_LONG_NUMBER, _SMALL_NUMBER, _SMALL_EXPONENT = b"0" * 19, b"0e-000", b"-000"
_MOST_LOOKED_AT = 100
# In smaller texts, the search is as fast as writing them.
_LEAST_WRITTEN = 16 * 1024
# Python's own `json` writes blanks, and so is told by the first key.
_SPACED = re.compile(rb'":\s')
_LOOKED_AT_FOR_SPACE = 100
# A number in JSON follows a comma, a colon, a bracket or a blank. Most long rows of digits are part of a text instead:
# a time in nanoseconds, or an id such as GLM's `2025092518192991173204`, which is in every chunk of a stream.
_LOST = re.compile(rb"[\s\[,:](?:-?\d+\.\d{19}|\d{20}|-\d{19}|-?[\d.]+[eE]-\d{3})")
_INFINITE = "infinity"  # in orjson's message about 1e400
# The most digits of an integer that is parsed to be compared; Python refuses to parse more than 4300.
_MOST_DIGITS = 20
_LEAST_INTEGER, _MOST_INTEGER = -(2**63), 2**64 - 1
# Python's parser takes ten times as long as orjson's, so larger bodies are read by orjson alone.
MOST_EXACT_BYTES = 1024 * 1024

# Possessive: a string of twenty megabytes costs one pass and no memory.
_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_TOKEN = re.compile(_STRING + rb"|[{}\[\]]", re.DOTALL)
_KEY = b'"model"'
_VALUE = re.compile(_KEY + rb"\s*+:\s*+(" + _STRING + rb")", re.DOTALL)
_COLON = re.compile(rb"\s*+:")
# An escaped letter of the key, which only a body that hides its model has.
_ESCAPE = rb"\u006"
_ESCAPED_LETTER = re.compile(rb"\\u006[dDfF45cC]")
# A larger body that has "model" more than once is serialized anew: the search costs a microsecond per bracket.
_MOST_SEARCHED = 1024 * 1024


def loads(data: bytes) -> Any:
    """The JSON value in `data`, with its numbers untouched. Raises `orjson.JSONDecodeError`: `data` is not JSON."""
    try:
        # Both are stricter than Python's parser, except with numbers.
        value = orjson.loads(data) if len(data) <= json_parts.PART_BYTES else json_parts.loads(data)
    except orjson.JSONDecodeError as exc:
        if _INFINITE not in exc.msg or len(data) > MOST_EXACT_BYTES:
            raise
        try:
            return _exact(data)
        except (ValueError, RecursionError):
            raise exc from None
    if len(data) > MOST_EXACT_BYTES or (len(data) > _LEAST_WRITTEN and _is_written_alike(data, value)):
        return value
    digits = data.translate(_ALIKE)
    # `find` takes three times as long.
    if digits.rfind(_LONG_NUMBER) < 0 and (digits.rfind(_SMALL_EXPONENT) < 0 or not _holds_small_number(digits)):
        return value
    if not _LOST.search(data):
        return value
    try:
        return _exact(data)
    except RecursionError:  # Python's parser permits less nesting
        return value


def _is_written_alike(data: bytes, value: Any) -> bool:
    """Whether a value is written as it was read, as most SDKs write it; then no number has lost anything.

    That takes a third of the time of looking for such numbers, which is 9 % of an agent's request.
    """
    try:
        return not _SPACED.search(data, 0, _LOOKED_AT_FOR_SPACE) and orjson.dumps(value) == data
    except orjson.JSONEncodeError:  # nested too deep to be written
        return False


def _holds_small_number(digits: bytes) -> bool:
    """Whether a text, in which every digit is 0, may hold a number like 1e-400.

    A minus before three digits is rare, and is found from behind fast: that halves the check of an agent's request, and
    takes 9 % off its processor time.
    """
    at = len(digits)
    for _ in range(_MOST_LOOKED_AT):
        at = digits.rfind(_SMALL_EXPONENT, 0, at)
        if at < 0:
            return False
        if digits[at - 2 : at] == _SMALL_NUMBER[:2]:
            return True
    return digits.find(_SMALL_NUMBER) >= 0


def dumps(request: Any) -> bytes:
    """A request, or part of one, as JSON. orjson reads 1024 levels of nesting, and writes 254.

    Raises:
        InvalidJson: the request is nested deeper than that.
    """
    try:
        return orjson.dumps(request)
    except orjson.JSONEncodeError as exc:
        raise InvalidJson("The request body is nested too deep.") from exc


def dumps_in_parts(request: Any) -> bytes:
    """As `dumps`, for a large request in a thread beside the event loop, which has its turn between the parts."""
    try:
        return json_parts.dumps(request)
    except orjson.JSONEncodeError as exc:
        raise InvalidJson("The request body is nested too deep.") from exc


def dumps_answer(answer: Any, *, write: Callable[[Any], bytes] = orjson.dumps) -> bytes:
    """An upstream's answer, or a value made from one, as JSON. Raises `UpstreamError` if it is nested too deep."""
    try:
        return write(answer)
    except orjson.JSONEncodeError as exc:
        raise UpstreamError("The upstream's answer is nested too deep.") from exc


def _exact(data: bytes) -> Any:
    return json.loads(data, parse_int=_integer, parse_float=_decimal, parse_constant=_refuse)


def _integer(text: str) -> Any:
    if len(text) <= _MOST_DIGITS and _LEAST_INTEGER <= (value := int(text)) <= _MOST_INTEGER:
        return value
    return orjson.Fragment(text)


def _decimal(text: str) -> Any:
    value = float(text)
    return value if isfinite(value) and Decimal(text) == Decimal(repr(value)) else orjson.Fragment(text)


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


def replace_model(body: bytes, name: str) -> bytes:
    """`body` with `name` as its top-level `model`.

    `body` must be a JSON object with a string as its `model`. If it has the key more than once, every value is
    replaced: parsers disagree on which of them counts, and the upstream must not read another name.
    """
    value = orjson.dumps(name)
    # `find` takes three times as long as `rfind`, or more: for an agent's request, a fifth of its processor time.
    is_hidden = body.rfind(_ESCAPE) >= 0 and _ESCAPED_LETTER.search(body) is not None
    at = body.rfind(_KEY)
    if at >= 0 and body.rfind(_KEY, 0, at) < 0 and not is_hidden and (match := _VALUE.match(body, at)):
        if match[1] == value:
            return body
        return body[: match.start(1)] + value + body[match.end(1) :]
    if len(body) > _MOST_SEARCHED:
        return orjson.dumps({**orjson.loads(body), "model": name})
    parts: list[bytes] = []
    copied = 0
    for start, end in _top_level_models(body):
        parts += (body[copied:start], value)
        copied = end
    return b"".join((*parts, body[copied:]))


def _top_level_models(body: bytes) -> list[tuple[int, int]]:
    """The spans of the values of all top-level `model` keys."""
    spans: list[tuple[int, int]] = []
    depth = 0
    is_model = False
    for match in _TOKEN.finditer(body):
        token = match.group()
        if token in (b"{", b"["):
            depth += 1
            is_model = False
        elif token in (b"}", b"]"):
            depth -= 1
        elif depth == 1 and is_model:
            spans.append(match.span())
            is_model = False
        elif depth == 1 and _COLON.match(body, match.end()):
            is_model = orjson.loads(token) == "model"
    return spans
