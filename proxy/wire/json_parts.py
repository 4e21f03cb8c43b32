"""Large JSON is parsed part by part, so that a parser written in C does not keep the interpreter from others for long.

orjson takes up to 100 ms for half a million values, and no other thread runs meanwhile, not even the event loop's. Here
a large text is split into its values, level by level, which msgspec does in a twentieth of the time, and orjson parses
some kilobytes of them at a time. In all that takes a third longer.
"""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, Final

import msgspec
import orjson

_PART_BYTES: Final = 64 * 1024
_BATCH: Final = 256
_QUICK: Final = 100_000  # quotation marks, and commas: two for each string and name, and one for any other value
_SPLIT_BYTES: Final = 256 * 1024  # of an object, which has some ten thousand members at most
# Each level is searched to its end: a request's blocks are on the fourth, or on the sixth within results.
_MOST_LEVELS: Final = 8
_SHORT: Final = 8  # bytes of an item: a million of them are parsed in 10 ms
_MOST_SHORT: Final = 1_000_000
_MOST_MEMBERS: Final = 20_000
_OBJECT, _LIST = b"{["
_BLANKS: Final = b" \t\r\n"

_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_items: Final = msgspec.json.Decoder(list[msgspec.Raw])


def loads(data: bytes) -> Any:
    """The JSON value in `data`, as `orjson.loads` returns it.

    Raises:
        orjson.JSONDecodeError: `data` is not JSON.
    """
    if len(data) > _PART_BYTES and (data.count(b'"') > _QUICK or data.count(b",") > _QUICK):
        try:
            return _value(data.strip(_BLANKS), _MOST_LEVELS)
        except (msgspec.MsgspecError, orjson.JSONDecodeError, UnicodeError, RecursionError):
            pass  # orjson's own error says where in the whole text the fault is
    return orjson.loads(data)


def _value(data: bytes | msgspec.Raw, levels: int) -> Any:
    if len(data) <= _PART_BYTES or not levels:
        return orjson.loads(memoryview(data))
    begin = memoryview(data)[0]
    if begin == _OBJECT:
        found: dict[str, Any] = members(bytes(data))
        names, values = [*found], _values([*found.values()], levels - 1)
        for at, batch in zip(range(0, len(names), _BATCH), values, strict=True):
            found.update(zip(names[at : at + _BATCH], batch, strict=True))
        return found
    if begin == _LIST and not (len(data) < _MOST_SHORT * _SHORT and _is_of_short_items(bytes(data))):
        return [*chain.from_iterable(_values(_items.decode(data), levels - 1))]
    return orjson.loads(memoryview(data))


def members(text: bytes) -> dict[str, msgspec.Raw]:
    """The members of an object, each value still as JSON, read some ten thousand at a time.

    Raises:
        msgspec.DecodeError: the text is not JSON, or is no object.
        UnicodeDecodeError: a name is not UTF-8.
    """
    if text.count(b":") < _MOST_MEMBERS:
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


def _is_of_short_items(text: bytes) -> bool:
    """Whether a list is of numbers or short words."""
    return len(text) < _SHORT * text.count(b",") and text.count(b"{") + text.count(b"[") < _PART_BYTES


def _values(items: Sequence[msgspec.Raw], levels: int) -> Iterator[list[Any]]:
    """The values of these items, in batches."""
    for at in range(0, len(items), _BATCH):
        batch = items[at : at + _BATCH]
        if sum(map(len, batch)) <= _PART_BYTES:
            yield orjson.loads(b"[%b]" % b",".join(batch))
        else:
            yield [_value(item, levels) for item in batch]
