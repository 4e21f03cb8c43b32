"""JSON Pointer (RFC 6901): one value of a JSON document, named by its path."""

import re
from typing import Any, Final

MISSING: Final = object()
"""In place of a value that a document does not have."""

_POINTER = re.compile(r"(/([^~]|~[01])*)?")
_INDEX = re.compile(r"0|[1-9][0-9]{0,17}")  # Python reads no number of more than 4300 digits


def parse(pointer: str) -> tuple[str, ...]:
    """The steps of a pointer; none of them for the whole document.

    Raises:
        ValueError: it is no pointer.
    """
    if not _POINTER.fullmatch(pointer):
        raise ValueError("a JSON pointer is empty or begins with '/', and has '~' only as ~0 and ~1")
    return tuple(step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:])


def resolve(document: Any, steps: tuple[str, ...]) -> Any:
    """The value that the steps lead to, or `MISSING`."""
    for step in steps:
        if isinstance(document, dict):
            document = document.get(step, MISSING)
        elif isinstance(document, list) and _INDEX.fullmatch(step) and int(step) < len(document):
            document = document[int(step)]
        else:
            return MISSING
    return document
