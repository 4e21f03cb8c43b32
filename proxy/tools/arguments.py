"""Turns the arguments that a model wrote into an object that fits the tool's schema, or into an error to correct.

    strict parse -> bounded repair of the text -> the tool's own repair -> schema -> repair of types -> schema

A call is never run with guessed arguments: a repair is accepted only if the text has a single reading. Only the schemas
of the configured tools are compiled; schemas from clients are not.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final

import json_repair
import orjson

from proxy.kit.schema import BoundedSchema
from proxy.loop.results import InvalidArguments
from proxy.tools.types import repaired
from proxy.wire.chat import Json
from proxy.wire.json_text import is_json, is_object, json_object, read_json

MOST_BYTES: Final = 1024 * 1024
"""The longest arguments of a call. A turn with longer ones has failed before."""
# The repair of 200 KB has been measured at more than a second, and calls that are worth repairing are short.
MOST_REPAIRED_CHARACTERS = 16 * 1024
# Text with deeper nesting is not repaired, because the repair is recursive.
_DEEPEST_REPAIRED = 32
# Escapes in a JSON string, and the words for no value in JSON and Python.
_ESCAPE = re.compile(r'\\["\\/bfnrt]')
_NOTHING = re.compile(r"\b(None|null)\b")
# Python writes these as numbers, and JSON has neither, so a text or no value may be meant.
_NO_NUMBER = re.compile(r"\b(NaN|Infinity)\b")
_LAST_OF_A_WHOLE_TEXT = ("}", "]", '"')
# Markdown's fence around a code block.
_CODE = re.compile(r"```(?:json)?\s*\n(.*)\n\s*```", re.DOTALL | re.IGNORECASE)
# How a whole number may be written that a strict reader takes for an integer only without its fraction.
_FRACTION_OF_NOTHING = ".0"


def parse_arguments(
    text: str, schema: BoundedSchema, *, repair: Callable[[Json], Json] | None = None
) -> tuple[Json, str]:
    """A call's arguments as an object that fits the schema, and as the text for the history of the conversation.

    An empty text and `null` stand for no arguments. The text is the given one if that is an object whose types fit.

    Args:
        text: the arguments as the model wrote them.
        schema: the tool's schema.
        repair: the tool's own repair, which rewrites other names and forms of the arguments to fit the schema.

    Raises:
        InvalidArguments: the arguments cannot be used; the message is for the model.
    """
    if len(text) > MOST_BYTES or schema.is_too_much(text):
        raise InvalidArguments("The arguments are too large to be checked against the tool's schema.")
    given = json_object(text)
    history = text
    if given is None:
        given = object_for(text)
        history = _written(given)
    arguments = given if repair is None else repair(given)
    is_valid = schema.is_valid(arguments)
    if not is_valid or _FRACTION_OF_NOTHING in text:
        before, arguments = arguments, repaired(arguments, schema.references)
        if arguments is not before:
            history = _written(arguments)
            is_valid = schema.is_valid(arguments)
    if not is_valid:
        if text.strip() and not is_json(text):  # its repair would have been a guess
            raise InvalidArguments("The arguments are not valid JSON.")
        fault = schema.fault(arguments, text)
        raise InvalidArguments(f"The arguments do not fit the tool's schema{f': {fault}' if fault else ''}.")
    return arguments, history


def history_of(text: str) -> str | None:
    """The arguments of a call of no known tool, as an object for the history of the conversation.

    Returns:
        The text itself if it is one, the repaired object if there is only one reading; None: it stands for none.
    """
    if is_object(text):
        return text
    with suppress(InvalidArguments):
        return _written(object_for(text))
    return None


def object_for(text: str) -> Json:
    """The object that a text is or stands for; an empty text and `null` are no arguments. Raises `InvalidArguments`."""
    try:
        value = read_json(text) if text.strip() else None
    except orjson.JSONDecodeError as exc:
        value = mended(text)
        if value is None:
            raise InvalidArguments(f"The arguments are not valid JSON: {exc.msg}.") from exc
    if isinstance(value, str):  # an object that was written as a string, as some models do
        with suppress(orjson.JSONDecodeError):
            value = read_json(value) if value.strip() else None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidArguments("The arguments must be one JSON object.")
    return value


def _written(arguments: Json) -> str:
    try:
        return orjson.dumps(arguments).decode()
    except orjson.JSONEncodeError as exc:
        raise InvalidArguments("The arguments are nested too deep.") from exc


def mended(text: str) -> Json | None:
    """The object that a text stands for, which is no JSON; None: it has no reading, or more than one.

    Only punctuation may be repaired: a repair that drops, adds or moves a word or a number has chosen between readings.
    (The library takes the last of two objects, for example, and the last of two values with one name.)
    """
    if len(text) > MOST_REPAIRED_CHARACTERS:
        return None
    code = _CODE.fullmatch(text.strip())
    text = (code[1] if code else text).strip()
    return json_object(text) or _repaired_text(text)


def _repaired_text(text: str) -> Json | None:
    if not _seems_whole(text) or _NO_NUMBER.search(text) or _depth(text) > _DEEPEST_REPAIRED:
        return None
    meant = json_repair.loads(text, skip_json_loads=True)
    if not isinstance(meant, dict):
        return None
    same_words = _letters("".join(_words_in(meant))) == _letters(_NOTHING.sub("", _ESCAPE.sub("", text)))
    if not same_words or _names_in(meant) > text.count(":"):
        return None
    with suppress(InvalidArguments):  # an integer beyond 64 bits
        _written(meant)
        return meant
    return None


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
