"""GLM's raw format for tool calls, and the Hermes format, which has the same tags around a JSON object."""

import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from proxy.turn.leaks import End, Leak, LeakedContent, NotACall, Syntax, clean_name, name_length
from proxy.turn.leaks.bare import too_deep_call
from proxy.wire.chat import Json
from proxy.wire.json_text import json_value
from proxy.wire.rawjson import dumps_answer

OPEN, CLOSE = "<tool_call>", "</tool_call>"
ARGUMENT = "<arg_key>"  # the first mark of a call whose opening tag was lost

_HERMES = re.compile(r"<tool_call>\s*\{")
_NAME = re.compile(r"\s*([\w.-]+)\s*")
_ARGUMENT = re.compile(r"\s*<arg_key>([^<]*)</arg_key>\s*<arg_value>(.*?)</arg_value>\s*", re.DOTALL)
_NUMBER = re.compile(r"-?\d{1,15}(?:\.\d{1,15})?")
# The beginning of a call, up to a mark or an object; a longer one is none.
_HEAD = re.compile(r"(?:<tool_call>)?\s*[\w.-]*\s*")
_LONGEST_HEAD = 256
# What may follow it; calls in the syntax of Qwen, <function=name>, are not parsed.
_FIRST_MARKS = ("{", ARGUMENT, "<arg_value>", CLOSE, "<function")
# What decides whether a closing tag is one: it is not inside of a value, or of a string in Hermes' object.
_VALUES = re.compile(r"</?arg_value>|</tool_call>")
_STRINGS = re.compile(r'\\.|"|</tool_call>', re.DOTALL)
_MARKS = ("<arg_value>", "</arg_value>", CLOSE)
_LONGEST_MARK = max(map(len, _MARKS))


class CallScanner(Struct):
    """Finds the closing tag of a call.

    A closing tag in a value counts as text: `<arg_value>` and `</arg_value>` are counted, in Hermes' object quotes.
    """

    _head: str = ""
    _marks: re.Pattern[str] | None = None  # the marks to look for; None: the head is not complete
    _tail: str = ""  # the beginning of a mark at the end of the last piece
    _depth: int = 0  # inside of values or of a string, if above 0

    def feed(self, piece: str) -> int | None:
        """The index in the piece at which the call has ended; None: more of it may follow."""
        text = self._tail + piece
        if self._marks is None:
            head = self._head + piece
            text = _HEAD.sub("", head, count=1)
            is_begun = text.startswith(_FIRST_MARKS)
            is_possible = is_begun or any(mark.startswith(text) for mark in _FIRST_MARKS)
            if not is_possible or len(head) - len(text) > _LONGEST_HEAD:
                raise NotACall
            if not is_begun:
                self._head = head
                return None
            self._marks = _STRINGS if _HERMES.match(head) else _VALUES
        begin, read_to = len(piece) - len(text), 0
        for mark in self._marks.finditer(text):
            read_to = mark.end()
            match mark[0]:
                case "</tool_call>":
                    if self._depth <= 0:
                        return begin + read_to
                case '"':
                    self._depth = 1 - self._depth
                case "<arg_value>":
                    self._depth += 1
                case "</arg_value>":
                    self._depth -= 1
        self._tail = _begun_mark(text[max(read_to, len(text) - _LONGEST_MARK) :])
        return None


def _begun_mark(text: str) -> str:
    """The beginning of a mark, or of an escaped character, at the end of a text."""
    if text.endswith("\\"):
        return "\\"
    begun = text[text.rfind("<") :] if "<" in text else ""
    return begun if any(mark.startswith(begun) for mark in _MARKS) else ""


def _header_length(before: str, mark: str, tools: Mapping[str, Json]) -> int | None:
    return 0 if mark == OPEN else name_length(before, tools) or None


def _read(text: str, tools: Mapping[str, Json], end: End) -> LeakedContent:
    """Parse a call with its tags, of which the first or the last may be missing."""
    inner = text.removeprefix(OPEN).removesuffix(CLOSE)
    unreadable = LeakedContent(garbled=True) if end is End.CUT else LeakedContent(text)
    if _HERMES.match(text):
        leak = _parse_hermes(inner, tools)
        if leak is not None:
            return LeakedContent(leaks=(leak,))
        return LeakedContent(garbled=True) if '"name"' in text and CLOSE not in text else unreadable
    leak, rest = _parse(inner, tools)
    if leak is None or not (leak.name in tools or "<arg_value>" in text):
        return unreadable
    if not rest and (end is End.MARK or text.rstrip().endswith(("</arg_value>", "}"))):
        return LeakedContent(leaks=(leak,))
    # A call that is cut off can neither be run nor shown.
    return LeakedContent(garbled=True) if rest.startswith("<") else unreadable


SYNTAX = Syntax((OPEN, ARGUMENT), _header_length, lambda _: CallScanner(), _read)


def split_glued_name(name: str, arguments: str, tools: Mapping[str, Json]) -> tuple[str, str]:
    """An unknown name without raw format around it, and its arguments, which GLM has been seen to append to it."""
    if "{" in name or ARGUMENT in name:
        glued, rest = _parse(name.removeprefix(OPEN).removesuffix(CLOSE), tools)
        if glued is not None and glued.name in tools and not rest:
            return glued.name, arguments if arguments.strip("{} ") else glued.arguments
    return clean_name(name, tools), arguments


def _parse(text: str, tools: Mapping[str, Json]) -> tuple[Leak | None, str]:
    """`name<arg_key>k</arg_key><arg_value>v</arg_value>...` as a call, and the rest, which could not be parsed.

    A value is a string if it is one in the tool's schema; any other value is JSON if it can be.
    """
    name = _NAME.match(text)
    if name is None:
        return None, text
    cleaned = clean_name(name[1], tools)
    properties = tools.get(cleaned, {}).get("properties")
    at = name.end()
    arguments: Json = {}
    while argument := _ARGUMENT.match(text, at):
        at = argument.end()
        key = argument[1].strip()
        schema = properties.get(key) if isinstance(properties, dict) else None
        is_text = isinstance(schema, dict) and schema.get("type") == "string"
        arguments[key] = argument[2] if is_text else _value(argument[2])
    rest = text[at:].strip()
    if rest.startswith("{") and not arguments:
        return Leak(cleaned, rest), ""
    return Leak(cleaned, dumps_answer(arguments).decode()), rest


def _parse_hermes(text: str, tools: Mapping[str, Json]) -> Leak | None:
    """`{"name": ..., "arguments": ...}` as a call."""
    if leak := too_deep_call(text, tools):
        return leak
    value = json_value(text)
    if not isinstance(value, dict) or not isinstance(name := value.get("name"), str):
        return None
    cleaned, arguments = clean_name(name, tools), value.get("arguments")
    if cleaned not in tools and arguments is None:
        return None
    return Leak(cleaned, arguments if isinstance(arguments, str) else dumps_answer(arguments or {}).decode())


def _value(text: str) -> Any:
    stripped = text.strip()
    if stripped[:1] in ("{", "[", '"') or stripped in ("true", "false", "null") or _NUMBER.fullmatch(stripped):
        value = json_value(stripped)
        return text if value is None and stripped != "null" else value
    return text
