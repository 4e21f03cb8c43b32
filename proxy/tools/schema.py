"""The schemas of tools, as far as they can be used: for the arguments of calls, and in the place of hosted tools."""

from functools import lru_cache

import orjson

from proxy.kit.schema import BoundedSchema, written
from proxy.wire.chat import Json


@lru_cache(maxsize=1024)  # each configuration, and each list of a server's tools, has mostly the same tools as before
def _compiled(text: bytes) -> BoundedSchema | str:
    """A schema, compiled, or its fault."""
    try:
        return BoundedSchema(orjson.loads(text))
    except ValueError as exc:
        return str(exc)


def schema_of(parameters: Json) -> BoundedSchema:
    """The schema of a tool's arguments, which is compiled only once.

    Raises:
        ValueError: the schema cannot be used; the message is the end of a sentence about it.
    """
    schema = _compiled(written(parameters))
    if isinstance(schema, str):
        raise ValueError(schema)  # noqa: TRY004 - it is the fault of a schema
    return schema


def schema_fault(parameters: Json) -> str | None:
    """The fault of a schema for a tool's arguments, in one line; None: it has none."""
    if parameters.get("type", "object") != "object":
        return "must be a JSON Schema of type object"
    try:
        schema_of(parameters)
    except ValueError as exc:
        return str(exc)
    return None


def serving_fault(parameters: Json) -> str | None:
    """Why a tool with this schema cannot run code in the place of a hosted tool; None: it can."""
    properties = parameters.get("properties")
    code = properties.get("code") if isinstance(properties, dict) else None
    if isinstance(code, dict) and code.get("type") == "string":
        return None
    return "code_interpreter needs a tool whose arguments have a text 'code'"
