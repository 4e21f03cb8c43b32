"""Large JSON, parsed and written part by part, so that code in C does not keep the interpreter from others for long.

orjson takes up to 100 ms to parse half a million values or to write 30 MB, and no other thread runs meanwhile, not even
the event loop's. Here a large text is split into its values, level by level, which msgspec does in a twentieth of the
time, and orjson parses some kilobytes of them at a time. That takes up to twice as long in all.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, Final

import msgspec
import orjson

PART_BYTES: Final = 64 * 1024
# To count the marks of a text takes 0.5 ms a megabyte, a sixth of an agent's request. Of a text of up to this size, it
# is told by samples whether it may have many of them. Their places depend on the process (`hash` of bytes), so that
# nobody can hide many between them.
_SAMPLED: Final = 1024 * 1024
_SAMPLES: Final = 64
_SAMPLE_BYTES: Final = 256
_LONG_BYTES: Final = 4 * 1024 * 1024  # of one text, which orjson reads in 4 ms
_BATCH: Final = 256
_QUICK: Final = 100_000  # quotation marks, and commas: two for each string and name, and one for any other value
_SPLIT_BYTES: Final = 256 * 1024  # of an object, which has some ten thousand members at most
# Each level is searched to its end: a request's blocks are on the fourth, or on the sixth within results.
_MOST_LEVELS: Final = 8
_SHORT: Final = 8  # bytes of an item: a million of them are parsed in 10 ms
_MOST_SHORT: Final = 1_000_000
_MOST_MEMBERS: Final = 20_000
_OBJECT, _LIST, _TEXT = b'{["'
# Where a text may be cut: behind 12 bytes without a backslash, but within no character; and before an escape, unless it
# is the second half of one character. A backslash behind another may be the second of a pair.
_CUT: Final = re.compile(rb"(?<=[^\\]{12})(?![\x80-\xbf])|(?<!\\)(?=\\(?!u[dD][c-fC-F]))")
_SEARCHED: Final = 4096
_BLANKS: Final = b" \t\r\n"

_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_items: Final = msgspec.json.Decoder(list[msgspec.Raw])


def loads(data: bytes) -> Any:
    """The JSON value in `data`, as `orjson.loads` returns it.

    Raises:
        orjson.JSONDecodeError: `data` is not JSON.
    """
    if len(data) > PART_BYTES and (len(data) > _LONG_BYTES or _holds_many_values(data)):
        try:
            return _value(data.strip(_BLANKS), _MOST_LEVELS)
        except (msgspec.MsgspecError, orjson.JSONDecodeError, UnicodeError, RecursionError):
            pass  # orjson's own error says where in the whole text the fault is
    return orjson.loads(data)


def _holds_many_values(data: bytes) -> bool:
    if len(data) <= _SAMPLED:
        places = [hash((data[:_SAMPLE_BYTES], number)) % (len(data) - _SAMPLE_BYTES) for number in range(_SAMPLES)]
        sample = b"".join([data[at : at + _SAMPLE_BYTES] for at in places])
        few = _QUICK / 4 * len(sample) / len(data)
        if sample.count(b'"') < few and sample.count(b",") < few:
            return False
    return data.count(b'"') > _QUICK or data.count(b",") > _QUICK


def dumps(value: Any) -> bytes:
    """A value as `orjson.dumps` writes it. Raises `orjson.JSONEncodeError`."""
    return b"".join(_written(value, _MOST_LEVELS))


def _value(data: bytes | msgspec.Raw, levels: int) -> Any:
    if len(data) <= PART_BYTES or not levels:
        return orjson.loads(memoryview(data))
    begin = memoryview(data)[0]
    if begin == _OBJECT:
        found: dict[str, Any] = members(bytes(data))
        names, values = [*found], _values([*found.values()], levels - 1)
        for at, batch in zip(range(0, len(names), _BATCH), values, strict=True):
            found.update(zip(names[at : at + _BATCH], batch, strict=True))
        return found
    if begin == _TEXT:
        return _text(data)
    if begin == _LIST and not (len(data) < _MOST_SHORT * _SHORT and _is_of_short_items(bytes(data))):
        return [*chain.from_iterable(_values(_items.decode(data), levels - 1))]
    return orjson.loads(memoryview(data))


def members(text: bytes) -> dict[str, msgspec.Raw]:
    """The members of an object, each value still as JSON, read some ten thousand at a time.

    Of a name that is there twice, the last value counts; whether the others are JSON is not looked at.

    Raises:
        msgspec.DecodeError: the text is not JSON, or is no object.
        UnicodeDecodeError: a name is not UTF-8.
    """
    if len(text) <= _SAMPLED or text.count(b":") < _MOST_MEMBERS:
        return _members.decode(text)
    found: dict[str, msgspec.Raw] = {}
    begin, size = text.find(b"{") + 1, _SPLIT_BYTES
    if text[:begin].strip(_BLANKS) != b"{":
        return _members.decode(text)
    while (end := text.find(b',"', begin + size)) >= 0:
        try:
            found |= _members.decode(b"{%b}" % text[begin:end])
        except msgspec.DecodeError:
            size *= 2  # the comma is within a value
        else:
            begin, size = end + 1, _SPLIT_BYTES
    return found | _members.decode(b"{%b" % text[begin:])


def _text(data: bytes | msgspec.Raw) -> str:
    """A text, whose parts are as long as `_LONG_BYTES`."""
    if len(data) <= _LONG_BYTES:
        return str(orjson.loads(memoryview(data)))
    text, begin, end = bytes(data), 1, len(data) - 1
    if text[end] != _TEXT:
        return str(orjson.loads(text))  # which says what is missing
    parts: list[str] = []
    while begin < end:
        match = _CUT.search(text, at := begin + _LONG_BYTES, min(at + _SEARCHED, end))
        cut = match.start() if match else end
        parts.append(orjson.loads(b'"%b"' % text[begin:cut]))
        begin = cut
    return "".join(parts)


def _is_of_short_items(text: bytes) -> bool:
    """Whether a list is of numbers or short words."""
    return len(text) < _SHORT * text.count(b",") and text.count(b"{") + text.count(b"[") < PART_BYTES


def _values(items: Sequence[msgspec.Raw], levels: int) -> Iterator[list[Any]]:
    """The values of these items, in batches."""
    for at in range(0, len(items), _BATCH):
        batch = items[at : at + _BATCH]
        if sum(map(len, batch)) <= PART_BYTES:
            yield orjson.loads(b"[%b]" % b",".join(batch))
        else:
            yield [_value(item, levels) for item in batch]


def _written(value: Any, levels: int) -> Iterator[bytes]:
    """The parts of a value's JSON."""
    if not _is_long(value, levels):
        yield orjson.dumps(value)
    elif isinstance(value, str):
        yield b'"'
        for at in range(0, len(value), PART_BYTES):
            yield orjson.dumps(value[at : at + PART_BYTES])[1:-1]
        yield b'"'
    elif isinstance(value, dict):
        before = b"{"
        for name, member in value.items():
            yield b"%b%b:" % (before, orjson.dumps(name))
            yield from _written(member, levels - 1)
            before = b","
        yield b"}"
    else:
        before = b"["
        for at in range(0, len(value), _BATCH):
            batch = value[at : at + _BATCH]
            if not any(_is_long(item, levels - 1) for item in batch):
                yield before + orjson.dumps(batch)[1:-1]
                before = b","
                continue
            for item in batch:
                yield before
                yield from _written(item, levels - 1)
                before = b","
        yield b"]"


def _is_long(value: Any, levels: int) -> bool:
    """Whether a value has a long text, or a long list, within so many levels; deeper ones are left to orjson."""
    if not levels:
        return False
    if isinstance(value, dict):
        return any(_is_long(member, levels - 1) for member in value.values())
    if isinstance(value, list):
        return len(value) > _BATCH or any(_is_long(item, levels - 1) for item in value)
    return isinstance(value, str) and len(value) > PART_BYTES
