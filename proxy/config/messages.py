"""Messages about faults in a configuration file, for people who know neither YAML's terms nor msgspec's."""

import re
import types
import typing
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

import msgspec
import yaml

from proxy.config import model as c
from proxy.wire.credentials import HEADER_OF_REQUEST

VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_BEGUN = re.compile(r"\$\{[A-Za-z0-9_]{0,64}")
_OUT_OF_RANGE = re.compile(r"Expected \w+ ([<>]=?) ([-0-9.e+]+)")
_COMPARED = {">=": "at least", ">": "more than", "<=": "at most", "<": "less than"}
_OF_ANOTHER_TYPE = re.compile(r"Expected (\w+(?: \| \w+)*), got (\w+)")
_STEPS = re.compile(r"\.(\w+)|(\[\d+\])")
_MISSING_FIELD = re.compile(r"Object missing required field `(\w+)`")
_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(.+)`")
_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "a mapping",
    "null": "empty",
}
PATTERNS: Mapping[Any, str] = {
    c.Url: "must be an http:// or https:// URL of a host, without user, query or fragment",
    c.StateUrl: "must be {}, {}, or {}".format(*(backend.written for backend in c.BACKENDS.values())),
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


def unknown_key(key: str, known: Iterable[str]) -> str:
    """What is wrong with a key that has no meaning at its place, with the known one that looks most like it."""
    near = get_close_matches(key, known, 1)
    return f"unknown key; known are {', '.join(sorted(known))}" + (f"; did you mean {near[0]}?" if near else "")


def yaml_hint(text: str, exc: yaml.MarkedYAMLError) -> str:
    """Advice on the most common YAML error in this file, `{api_key: ${KEY}}`; empty if the error is another one."""
    mark = exc.problem_mark
    line = text.splitlines()[mark.line] if mark and mark.line < len(text.splitlines()) else ""
    found = VARIABLE.search(line)
    if found is None or "flow" not in (exc.context or ""):
        return ""
    return f'; inside braces or brackets a variable needs quotes: "{found[0]}"'


def variable_fault(text: str, *, refers_to_request: bool = False) -> str | None:
    """The fault of a `${NAME}` in a text, if it has one.

    Args:
        text: the text.
        refers_to_request: whether `${request.headers.NAME}` may stand in it.
    """
    if refers_to_request:
        text = HEADER_OF_REQUEST.sub("", text)
    elif "${request.headers." in text:
        return "${request.headers.NAME} may stand only in the headers of a tool of type http or mcp"
    if any("${" in (match[2] or "") for match in VARIABLE.finditer(text)):
        return "the default of a variable cannot hold another variable"
    begun = _BEGUN.search(VARIABLE.sub("", text))
    if begun is None:
        return None
    if "}" not in VARIABLE.sub("", text)[begun.end() :]:
        return f"{begun[0]} has no closing brace: write ${{NAME}} or ${{NAME:-default}}"
    return f"{begun[0]}...}} is no variable: a name has letters, digits and '_'"


def kind_of(node: yaml.Node) -> str:
    """A YAML node in plain words: a list, a mapping, empty or a single value."""
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    if isinstance(node, yaml.MappingNode):
        return "a mapping"
    return "empty" if node.tag == "tag:yaml.org,2002:null" else "a single value"


def within_struct(message: str, kind: Any) -> tuple[str, str]:
    """A message of msgspec about a structure: the path within it, such as `.errors[1].means`, and plain words."""
    said, _, at = message.partition(" - at ")
    path = at.strip("`").removeprefix("$").replace("[...]", "")
    for name, _ in _STEPS.findall(path):
        kind = _inside(kind, name)
    if found := _MISSING_FIELD.fullmatch(said):
        return f"{path}.{found[1]}", "is missing"
    if found := _UNKNOWN_FIELD.fullmatch(said):
        return f"{path}.{found[1]}", unknown_key(found[1], _inside(kind).__struct_fields__)
    return path, in_plain_words(said, kind)


def _inside(kind: Any, name: str = "") -> Any:
    """The type of a field of a class, or of the items of a list, without an optional None."""
    if name:
        kind = next(info.type for info in msgspec.structs.fields(kind) if info.name == name)
        kind = typing.get_args(kind)[0] if typing.get_origin(kind) is typing.Annotated else kind
    elif typing.get_origin(kind) in (tuple, dict):
        kind = typing.get_args(kind)[-1 if typing.get_origin(kind) is dict else 0]
    options = typing.get_args(kind) if isinstance(kind, types.UnionType) else ()
    return next((option for option in options if option is not type(None)), kind)


def in_plain_words(message: str, kind: Any) -> str:
    """A message of msgspec ("Expected `int`, got `str`") in plain words."""
    message = message.replace("`", "").split(" - at ")[0]
    if typing.get_origin(kind) is typing.Literal:
        return f"must be one of {', '.join(map(str, typing.get_args(kind)))}"
    if "matching regex" in message:
        return PATTERNS.get(kind, "has characters that are not allowed here")
    if message.endswith("of length >= 1"):
        return "must not be empty"
    if found := _OUT_OF_RANGE.fullmatch(message):
        return f"must be {_COMPARED[found[1]]} {float(found[2]):.15g}"
    if found := _OF_ANOTHER_TYPE.fullmatch(message):
        wanted = " or ".join(_KINDS.get(one, one) for one in found[1].split(" | ") if one != "null")
        return f"must be {wanted}, not {_KINDS.get(found[2], found[2])}"
    return message[:1].lower() + message[1:]
