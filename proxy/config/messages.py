"""Messages about values of a configuration file, for people who know neither YAML's terms nor Python's."""

import math
import re
from collections.abc import Iterable, Mapping
from datetime import date
from difflib import get_close_matches
from typing import Any, Final, get_args

from msgspec import inspect

from proxy.config import model as c
from proxy.config.document import Leaf, Node, kind_of
from proxy.config.syntax import GLUED, glued

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
_NOT_ALLOWED: Final = "has characters that are not allowed here"
_WITH_UNIT: Final = re.compile(r"[0-9.]+ ?[A-Za-z]{1,7}")
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


# The form of a part, by its path, for people who have written a mapping for a list, a list for a mapping, or a value.
_FORMS: Final[tuple[tuple[re.Pattern[str], str], ...]] = (
    (re.compile(r".*\.(?:tools|fallbacks|aliases)"), "[NAME]"),
    (re.compile("models"), "glm-4.7: {upstream: zai}"),
    (re.compile(r"models\.(?!.*\.(?:limits|price)$).*"), "{upstream: zai}"),
    (re.compile("upstreams"), 'zai: {base_url: "https://api.z.ai/api/paas/v4", api_key: "${ZAI_API_KEY}"}'),
    (re.compile(r"upstreams\.[^.]*"), '{base_url: "https://api.z.ai/api/paas/v4", api_key: "${ZAI_API_KEY}"}'),
    (re.compile("tools"), 'web_search: {type: serper, api_key: "${SERPER_API_KEY}"}'),
    (re.compile(r"tools\.[^.]*"), '{type: serper, api_key: "${SERPER_API_KEY}"}'),
    (re.compile("clients"), '[{name: app, key: "${TOOLPROXY_KEY}"}]'),
    (re.compile(r"clients\[\d+\]"), '{name: app, key: "${TOOLPROXY_KEY}"}'),
    (re.compile(r"clients\[\d+\]\.models"), '["glm-*"]'),
)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The known name that looks most like another one, as the end of a message; empty if none does."""
    plain = {_plain(one): one for one in known}
    near = get_close_matches(_plain(name), plain, 1)
    return f"; did you mean {plain[near[0]]}?" if near else ""


def _plain(name: str) -> str:
    """A name without what people confuse: capitals, and the marks between its words."""
    return name.lower().replace("-", "_").replace("_", "")


def unknown_key(key: str, known: Iterable[str]) -> str:
    """The fault of a key that has no meaning at its place, with the known key that looks most like it."""
    if missed := GLUED.match(key):
        return glued(missed[1])
    return f"unknown key; known are {', '.join(sorted(known))}{did_you_mean(key, known)}"


def unknown_type(name: str, known: Iterable[str], instead: Mapping[str, str]) -> str:
    """The fault of an unknown `type:` of a tool; `instead`: names that people write for a type -> what to write."""
    if wanted := instead.get(name):
        return f"unknown type {name!r}; write {wanted}"
    return f"unknown type {name!r}; known are {', '.join(known)}{did_you_mean(name, (*known, *instead))}"


def wrong_form(path: str, wanted: str, node: Node) -> str:
    """The fault of a part that should be a list or a mapping, with an example of its form."""
    if isinstance(node, Leaf) and (missed := GLUED.match(node.text)):
        return glued(missed[1])
    form = next((form for pattern, form in _FORMS if pattern.fullmatch(path)), None)
    return f"must be {wanted}, not {kind_of(node)}" + (f"; such as {form}" if form else "")


def why_not(value: object, kind: Any) -> str:
    """The fault of a value that msgspec does not convert to a type of single values."""
    info = inspect.type_info(kind)
    if isinstance(info, inspect.Metadata):
        info = info.type
    match info:
        case inspect.LiteralType():
            known = [*map(str, get_args(kind))]
            return f"must be one of {', '.join(known)}{did_you_mean(value, known) if isinstance(value, str) else ''}"
        case inspect.StrType(min_length=least) if isinstance(value, str):
            return "must not be empty" if least and not value else PATTERNS.get(kind, _NOT_ALLOWED)
        case inspect.IntType() | inspect.FloatType() if (number := _number(value, info)) is not None:
            return _out_of_range(number, info) or f"must be {_TYPES[type(info)]}, not {_kind_of(value)}"
        case _:
            unit = "; write it without a unit" if isinstance(value, str) and _WITH_UNIT.fullmatch(value) else ""
            return f"must be {_TYPES.get(type(info), 'another value')}, not {_kind_of(value)}{unit}"


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
