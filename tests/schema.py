"""The committed schema of the configuration, and whether it agrees with the program."""

import re
from pathlib import Path

import jsonschema_rs
import orjson
import yaml

from proxy.config.messages import PATTERNS

ROOT = Path(__file__).parent.parent
SCHEMA = orjson.loads((ROOT / "config.schema.json").read_bytes())
VALIDATOR = jsonschema_rs.Draft202012Validator(SCHEMA)
# Faults that a schema can find: unknown keys, types, ranges and allowed values.
FAULT = re.compile(
    r": (unknown key|unknown type|must be (a list|a mapping|text|true or false|a whole number|a number)[, ]"
    r"|must be (at least|at most|more than|less than|one of) |must not be empty|is missing; known are|there is no provider"
    rf"|has characters that are not allowed|{'|'.join(map(re.escape, PATTERNS.values()))})"
    r"|(?<!api_key): is missing$"  # whether a search needs a key is its provider's matter
)


class _Loader(yaml.SafeLoader):
    """Reads as the program does: keys are text."""


def _mapping(loader, node):
    loader.flatten_mapping(node)
    return {str(key.value): loader.construct_object(value, deep=True) for key, value in node.value}


_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)


def is_valid(text):
    """Whether the schema accepts a configuration; it sees no text that is not YAML, or has half of a character."""
    try:
        return VALIDATOR.is_valid(_read(text))
    except (yaml.YAMLError, ValueError):
        return False


def _read(text):
    return yaml.load(text, _Loader)  # noqa: S506 - it is a safe loader


def agree(text, faults):
    """Check that the schema accepts a valid configuration, and no faulty one whose fault a schema can find.

    A schema sees neither the value of a variable nor whether a file is empty or null.
    """
    if not faults:
        assert is_valid(text), next(VALIDATOR.iter_errors(_read(text)))
    elif "${" not in text and any(FAULT.search(fault) for fault in faults):
        assert not is_valid(text) or _read(text) is None, faults
