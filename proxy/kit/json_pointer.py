"""JSON Pointer (RFC 6901): the path of a value in a JSON document."""

import re
from typing import Any, Final

MISSING: Final = object()
"""Stands for a value that a document does not have."""

_POINTER = re.compile(r"(/([^~]|~[01])*)?")
_INDEX = re.compile(r"0|[1-9][0-9]{0,17}")  # Python does not parse numbers of more than 4300 digits


def parse(pointer: str) -> tuple[str, ...]:
    """The steps of a pointer; empty for the whole document. Raises `ValueError`: the text is not a pointer."""
    if not _POINTER.fullmatch(pointer):
        raise ValueError("a JSON pointer is empty or begins with '/', and has '~' only as ~0 and ~1")
    return tuple(step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:])


def resolve(document: Any, steps: tuple[str, ...]) -> Any:
    """The value at the end of the steps, or `MISSING`."""
    for step in steps:
        if isinstance(document, dict):
            document = document.get(step, MISSING)
        elif isinstance(document, list) and _INDEX.fullmatch(step) and int(step) < len(document):
            document = document[int(step)]
        else:
            return MISSING
    return document
