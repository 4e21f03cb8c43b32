"""Calls as bare JSON objects: with the name of a tool, or only with arguments.

Two kinds of objects are sure to be calls, even if the client's messages ask for JSON (`json_mode`): those with the
name of a tool, and those with arguments that only gpt-oss's own browser has.
"""

import re
from collections.abc import Mapping
from functools import partial

from msgspec import Struct

from proxy.turn.leaks import End, Leak, LeakedContent, NotACall, Syntax, bare_name, fitting_tool
from proxy.wire.chat import Json
from proxy.wire.json_text import is_too_deep, json_value
from proxy.wire.rawjson import dumps_answer

_KEY = re.compile(r'[{,]\s*"([^"\\]*)"\s*:')
FIRST_KEY = re.compile(r'\{\s*"([^"\\]*)"')

BROWSER_ARGUMENTS = frozenset({"cursor", "id", "loc", "num_lines", "pattern", "query", "source", "topn", "view_source"})
"""The arguments of gpt-oss's own browser. A model that writes {"cursor": 2, "id": 2} instead of an answer calls a
browser that it does not have."""

# Each of these arguments, with a number or a boolean as its value, proves that an object is such a call.
_ONLY_BROWSERS = ("cursor", "loc", "num_lines", "topn", "view_source")
# The beginnings of a call with the name of a tool, without blanks; the second is Llama's.
_OPENINGS = ('{"name":"', '{"type":"function","name":"')
_NAME_BEGUN = re.compile(r'\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?"name"\s*:\s*"([^"\\]{1,128})"')
CALL_KEYS = frozenset({"type", "id", "index", "name", "arguments", "parameters"})
"""The keys that a call with the name of a tool may have."""
# The longest opening with a name, blanks included.
_LONGEST_OPENING = 256
# The longest call of the browser if only sure calls are buffered.
_LONGEST_BROWSERS = 512


class BareScanner(Struct):
    """Refuses an object that cannot be a call, which mostly shows at its first key; else all of the text belongs to it.

    Attributes:
        tools: the names that may be called -> their JSON Schemas.
        only_sure: whether only an object that is sure to be a call counts as one.
    """

    tools: Mapping[str, Json]
    only_sure: bool
    _begun: str | None = ""  # the beginning of the object; None: the object may be a call, whatever follows

    def feed(self, piece: str) -> None:
        """Take the next piece; the end of the text is the end of the call."""
        if self._begun is None:
            return
        self._begun += piece
        begun = self._begun.lstrip()
        key = FIRST_KEY.match(begun)
        if key is None:
            is_possible = begun[1:].lstrip()[:1] in ("", '"', "}") and len(begun) <= _LONGEST_OPENING
        elif self.only_sure:
            is_browsers = len(begun) <= _LONGEST_BROWSERS and BROWSER_ARGUMENTS.issuperset(_KEY.findall(begun))
            is_possible = is_browsers or may_be_named_call(begun, self.tools)
        else:
            is_named = may_be_named_call(begun, self.tools)
            is_possible = (
                is_named
                or key[1] in BROWSER_ARGUMENTS
                or any(key[1] in _properties(schema) for schema in self.tools.values())
            )
            if not is_named:
                self._begun = None
        if not is_possible:
            raise NotACall
        if len(begun) > _LONGEST_BROWSERS:
            self._begun = None


def may_be_named_call(begun: str, tools: Mapping[str, Json]) -> bool:
    """Whether a text that begins with a brace is, or may become, a call with the name of a tool."""
    text = "".join(begun[:_LONGEST_OPENING].split())
    for opening in _OPENINGS:
        if opening.startswith(text):
            return True
        if text.startswith(opening):
            name, quote, _ = text[len(opening) :].partition('"')
            if quote:
                return bare_name(name) in tools
            return any(tool.startswith(name) or f"functions.{tool}".startswith(name) for tool in tools)
    return False


def syntax(*, only_sure: bool) -> Syntax:
    """The syntax of an object at the beginning of a text; `only_sure`: it counts only if it is sure to be a call."""
    return Syntax((), lambda *_: 0, partial(BareScanner, only_sure=only_sure), partial(_read, only_sure=only_sure))


def too_deep_call(text: str, tools: Mapping[str, Json]) -> Leak | None:
    """The call in an object that names a tool and whose arguments nobody can read; None: the text is none."""
    match = _NAME_BEGUN.match(text.lstrip())
    name = bare_name(match[1]) if match else ""
    return Leak(name, text.strip()) if name in tools and is_too_deep(text) else None


def _read(text: str, tools: Mapping[str, Json], end: End, *, only_sure: bool) -> LeakedContent:
    """Parse a text that may be a call: a name with arguments, or only arguments."""
    value = json_value(text.strip())
    if call := named_call(value, tools):
        return LeakedContent(leaks=(Leak(call[0], dumps_answer(call[1]).decode()),))
    if leak := too_deep_call(text, tools):
        return LeakedContent(leaks=(leak,))
    is_browsers = is_browsers_call(value)
    if (is_browsers or not only_sure) and (name := fitting_tool(value, tools)) is not None:
        return LeakedContent(leaks=(Leak(name, text.strip()),))
    is_cut = end is End.CUT and _is_cut_call(text.strip(), tools, only_sure=only_sure)
    return LeakedContent(garbled=True) if is_browsers or is_cut else LeakedContent(text)


def _is_cut_call(text: str, tools: Mapping[str, Json], *, only_sure: bool) -> bool:
    """Whether the beginning of an object is that of a call: it names a tool, or has only arguments of one tool."""
    keys = set(_KEY.findall(text))
    if only_sure:
        is_browsers = BROWSER_ARGUMENTS.issuperset(keys) and not keys.isdisjoint(_ONLY_BROWSERS)
        return is_browsers or ("name" in keys and may_be_named_call(text, tools))
    is_argument = any(keys <= properties.keys() for properties in map(_properties, tools.values()))
    return is_argument or may_be_named_call(text, tools)


def _properties(schema: Json) -> Json:
    properties = schema.get("properties")
    return properties if isinstance(properties, dict) else {}


def is_browsers_call(value: object) -> bool:
    """Whether a value is sure to be the arguments of gpt-oss's own browser."""
    if not isinstance(value, dict) or not BROWSER_ARGUMENTS.issuperset(value):
        return False
    own = [value[name] for name in _ONLY_BROWSERS if name in value]
    return bool(own) and all(isinstance(one, int) for one in own)


def named_call(value: object, tools: Mapping[str, Json]) -> tuple[str, Json] | None:
    """The tool and the arguments in `{"name": ..., "arguments": ...}`; None: the value is not a call of a tool.

    The arguments are an object, or a string that holds one; Llama calls them `parameters`. An object with other keys,
    such as `description`, is the description of a tool, and so is one whose `parameters` are a JSON Schema.
    """
    if not isinstance(value, dict) or not value.keys() <= CALL_KEYS or not isinstance(name := value.get("name"), str):
        return None
    arguments = value.get("arguments", value.get("parameters"))
    if isinstance(arguments, str):
        arguments = json_value(arguments)
    elif isinstance(arguments, dict) and isinstance(arguments.get("properties"), dict):
        return None
    name = bare_name(name)
    return (name, arguments) if name in tools and isinstance(arguments, dict) else None
