"""Messages about values of a configuration file, for people who know neither YAML's terms nor Python's."""

import math
from collections.abc import Iterable, Mapping
from datetime import date
from difflib import get_close_matches
from typing import Any, Final, get_args

from msgspec import inspect

from proxy.config import model as c

_STATES: Final = [backend.written for backend in c.BACKENDS.values()]
PATTERNS: Final[Mapping[Any, str]] = {
    c.Url: "must be an http:// or https:// URL of a host, without user, query or fragment",
    c.StateUrl: "must be {}, or {}".format(", ".join(_STATES[:-1]), _STATES[-1]),
    c.Keys: "must be printable ASCII without blanks: it has to fit into a header",
    c.Key: "must be printable ASCII without blanks: it has to fit into a header",
    c.HeaderName: "has characters that no header's name may have",
    c.HeaderValue: "must be printable ASCII: it has to fit into a header",
    c.ToolHeaderValue: "must be printable ASCII: it has to fit into a header",
    c.Sha256: "must be 64 hexadecimal digits, as `toolproxy hash-key` prints them",
    c.Origin: "must be an origin as browsers send it: scheme://host[:port] in lower case and without a path, or *",
    c.FunctionName: "must be module:function, or the name of an entry point",
    c.FunctionPath: "must be module:function",
    c.ToolName: "a tool's name may have letters, digits, '_' and '-', at most 64 of them",
}
_TYPES: Final[Mapping[type[inspect.Type], str]] = {
    inspect.IntType: "a whole number",
    inspect.FloatType: "a number",
    inspect.StrType: "text",
    inspect.BoolType: "true or false",
}
_VALUES: Final[tuple[tuple[type, str], ...]] = (
    (bool, "true or false"),
    (int, "a whole number"),
    (float, "a number"),
    (str, "text"),
    (list, "a list"),
    (dict, "a mapping"),
    (type(None), "empty"),
    (bytes, "binary data"),
    (date, "a date"),
)


def unknown_key(key: str, known: Iterable[str]) -> str:
    """What is wrong with a key that has no meaning at its place, with the known one that looks most like it."""
    near = get_close_matches(key, known, 1)
    return f"unknown key; known are {', '.join(sorted(known))}" + (f"; did you mean {near[0]}?" if near else "")


def why_not(value: object, kind: Any) -> str:
    """Why a value is none of a single-valued type, which has found it not to be."""
    info = inspect.type_info(kind)
    if isinstance(info, inspect.Metadata):
        info = info.type
    match info:
        case inspect.LiteralType():
            return f"must be one of {', '.join(map(str, get_args(kind)))}"
        case inspect.StrType(min_length=least) if isinstance(value, str):
            return "must not be empty" if least and not value else _pattern(kind)
        case inspect.IntType() | inspect.FloatType() if (number := _number(value, info)) is not None:
            return _out_of_range(number, info) or f"must be {_TYPES[type(info)]}, not {_kind_of(value)}"
        case _:
            return f"must be {_TYPES.get(type(info), 'another value')}, not {_kind_of(value)}"


def _pattern(kind: Any) -> str:
    return PATTERNS.get(kind, "has characters that are not allowed here")


def _number(value: object, info: inspect.Type) -> float | None:
    """A number, or the text of one."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return int(value) if isinstance(info, inspect.IntType) and isinstance(value, str) else float(value)
    except (ValueError, OverflowError):
        return math.inf if isinstance(value, int) else None


def _out_of_range(number: float, info: inspect.IntType | inspect.FloatType) -> str | None:
    """The bound that a number exceeds; no number is within any bound if it is not a number."""
    if info.ge is not None and not number >= info.ge:
        return f"must be at least {info.ge:.15g}"
    if info.gt is not None and not number > info.gt:
        return f"must be more than {info.gt:.15g}"
    if info.le is not None and not number <= info.le:
        return f"must be at most {info.le:.15g}"
    if info.lt is not None and not number < info.lt:
        return f"must be less than {info.lt:.15g}"
    return None


def _kind_of(value: object) -> str:
    return next((words for kind, words in _VALUES if isinstance(value, kind)), type(value).__name__)
