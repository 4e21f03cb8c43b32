"""GLM's raw format for tool calls, and the Hermes format, which has the same tags around a JSON object."""

import re
from collections.abc import Mapping
from typing import Any

from proxy.loop.chat import Json
from proxy.loop.leaks import Found, Leak, clean_name, parsed
from proxy.loop.rawjson import dumps_answer

OPEN, CLOSE = "<tool_call>", "</tool_call>"
ARGUMENT = "<arg_key>"  # the first mark of a call whose opening tag was lost
HERMES = re.compile(r"<tool_call>\s*\{")

_NAME = re.compile(r"\s*([\w.-]+)\s*")
_ARGUMENT = re.compile(r"\s*<arg_key>([^<]*)</arg_key>\s*<arg_value>(.*?)</arg_value>\s*", re.DOTALL)
_GLUED_ARGUMENTS = re.compile(r"<arg_key>.*</arg_value>|\{", re.DOTALL)
_NUMBER = re.compile(r"-?\d{1,15}(?:\.\d{1,15})?")


def read(text: str, tools: Mapping[str, Json], *, is_whole: bool) -> Found:
    """Parse a call with its tags, of which the first or the last may be missing.

    Args:
        text: the call.
        tools: the names that may be called -> their JSON Schemas.
        is_whole: whether the closing tag has arrived.

    Raises:
        UpstreamError: the arguments are nested too deep.
    """
    inner = text.removeprefix(OPEN).removesuffix(CLOSE)
    if HERMES.match(text):
        leak = _parse_hermes(inner, tools)
        if leak is not None:
            return Found(leaks=(leak,))
        is_cut_off = '"name"' in text and CLOSE not in text
        return Found(garbled=True) if is_cut_off else Found(text)
    leak, rest = _parse(inner, tools)
    if leak is None or not (leak.name in tools or "<arg_value>" in text):
        return Found(text)
    if not rest and (is_whole or text.rstrip().endswith(("</arg_value>", "}"))):
        return Found(leaks=(leak,))
    # A call that is cut off can neither be run nor shown.
    return Found(garbled=True) if rest.startswith("<") else Found(text)


def split_glued_name(name: str, arguments: str, tools: Mapping[str, Json]) -> tuple[str, str]:
    """A call's name without raw format around it, and its arguments, which GLM has been seen to append to the name."""
    if name in tools:
        return name, arguments
    if _GLUED_ARGUMENTS.search(name):
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
    value = parsed(text)
    if not isinstance(value, dict) or not isinstance(name := value.get("name"), str):
        return None
    cleaned, arguments = clean_name(name, tools), value.get("arguments")
    if cleaned not in tools and arguments is None:
        return None
    return Leak(cleaned, arguments if isinstance(arguments, str) else dumps_answer(arguments or {}).decode())


def _value(text: str) -> Any:
    stripped = text.strip()
    if stripped[:1] in ("{", "[", '"') or stripped in ("true", "false", "null") or _NUMBER.fullmatch(stripped):
        value = parsed(stripped)
        return text if value is None and stripped != "null" else value
    return text
