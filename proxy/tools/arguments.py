"""Turns the arguments that a model wrote into an object that fits the tool's schema, or into an error to correct.

    strict parse -> bounded repair of the text -> the tool's own repair -> schema

A call is never run with guessed arguments: a repair is accepted only if the text has a single reading. Only the schemas
of the configured tools are compiled; schemas from clients are not.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import json_repair
import jsonschema_rs
import orjson

from proxy.loop.chat import Json
from proxy.loop.results import InvalidArguments

# The repair of 200 KB has been measured at more than a second, and calls that are worth repairing are short.
MOST_REPAIRED_CHARACTERS = 16 * 1024
_MOST_FAULTS = 5
# Text with deeper nesting is not repaired, because the repair is recursive.
_DEEPEST_REPAIRED = 32
_DEEPEST_WRITTEN = 254  # levels that orjson writes; it reads more
# Escapes in a JSON string, and the words for no value in JSON and Python.
_ESCAPE = re.compile(r'\\["\\/bfnrt]')
_NOTHING = re.compile(r"\b(None|null)\b")
# Python writes these as numbers, and JSON has neither, so a text or no value may be meant.
_NO_NUMBER = re.compile(r"\b(NaN|Infinity)\b")
_LAST_OF_A_WHOLE_TEXT = ("}", "]", '"')


def validator_of(schema: Json) -> jsonschema_rs.Validator:
    """A schema, compiled.

    Raises:
        ValueError: it is not a JSON Schema, or it refers to another document.
    """
    # By default the library fetches remote references; no tool's schema may make us send requests.
    return jsonschema_rs.validator_for(schema, retriever=_refuse_reference)


def schema_fault(schema: Json) -> str | None:
    """The fault of a schema for a tool's arguments, in one line; None: it has none."""
    if schema.get("type", "object") != "object":
        return "must be a JSON Schema of type object"
    try:
        validator_of(schema)
    except ValueError as exc:
        return f"is no JSON Schema: {str(exc).splitlines()[0]}"
    return None


def parse_arguments(
    text: str, validator: jsonschema_rs.Validator, *, repair: Callable[[Json], Json] | None = None
) -> Json:
    """A call's arguments as an object that fits the schema; an empty text and `null` stand for no arguments.

    Args:
        text: the arguments as the model wrote them.
        validator: the validator of the tool's schema.
        repair: the tool's own repair, which rewrites other names and forms of the arguments to fit the schema.

    Raises:
        InvalidArguments: the arguments cannot be used; the message is for the model.
    """
    try:
        arguments = orjson.loads(text) if text.strip() else None
    except orjson.JSONDecodeError as exc:
        arguments = mended(text)
        if arguments is None or not validator.is_valid(repair(arguments) if repair else arguments):
            raise InvalidArguments(f"The arguments are not valid JSON: {exc.msg}.") from exc
    if isinstance(arguments, str):  # an object that was written as a string, as some models do
        with suppress(orjson.JSONDecodeError):
            arguments = orjson.loads(arguments) if arguments.strip() else None
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        raise InvalidArguments("The arguments must be one JSON object.")
    if len(text) > _DEEPEST_WRITTEN:  # each level takes a character
        try:
            orjson.dumps(arguments)
        except orjson.JSONEncodeError as exc:
            raise InvalidArguments("The arguments are nested too deep.") from exc
    if repair is not None:
        arguments = repair(arguments)
    if not validator.is_valid(arguments):
        faults = [_describe(error) for error in validator.iter_errors(arguments)]
        shown = "; ".join(faults[:_MOST_FAULTS])
        raise InvalidArguments(f"The arguments do not fit the tool's schema: {shown}.")
    return arguments


def mended(text: str) -> Json | None:
    """The object that a broken text stands for; None: it has no reading, or more than one.

    Only punctuation may be repaired: a repair that drops, adds or moves a word or a number has chosen between readings.
    (The library takes the last of two objects, for example, and the last of two values with one name.)
    """
    text = text.strip()
    if len(text) > MOST_REPAIRED_CHARACTERS or _depth(text) > _DEEPEST_REPAIRED or _NO_NUMBER.search(text):
        return None
    if not _seems_whole(text):
        return None
    meant = json_repair.loads(text, skip_json_loads=True)
    if not isinstance(meant, dict):
        return None
    same_words = _letters("".join(_words_in(meant))) == _letters(_NOTHING.sub("", _ESCAPE.sub("", text)))
    if not same_words or _names_in(meant) > text.count(":"):
        return None
    try:
        orjson.dumps(meant)
    except orjson.JSONEncodeError:  # an integer beyond 64 bits
        return None
    return meant


def _seems_whole(text: str) -> bool:
    """Whether only closing brackets can be missing at the end of a text."""
    quotes = _ESCAPE.sub("", text).count('"')
    return text.startswith("{") and text.endswith(_LAST_OF_A_WHOLE_TEXT) and quotes % 2 == 0


def _words_in(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for name, item in value.items():
            yield str(name)
            yield from _words_in(item)
    elif isinstance(value, list):
        for item in value:
            yield from _words_in(item)
    elif value is not None:
        yield str(value)


def _names_in(value: Any) -> int:
    if isinstance(value, dict):
        return len(value) + sum(map(_names_in, value.values()))
    return sum(map(_names_in, value)) if isinstance(value, list) else 0


def _letters(text: str) -> str:
    return "".join(character for character in text if character.isalnum()).lower()


def _depth(text: str) -> int:
    deepest = depth = 0
    for character in text:
        depth += (character in "{[") - (character in "}]")
        deepest = max(deepest, depth)
    return deepest


def _describe(error: jsonschema_rs.ValidationError) -> str:
    where = ".".join(str(part) for part in error.instance_path)
    return f"{where}: {error.message}" if where else str(error.message)


def _refuse_reference(uri: str) -> Any:
    raise ValueError(f"remote references are not followed: {uri}")
