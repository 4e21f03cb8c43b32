"""A client's JSON Schema for answers, and the check whether an answer fits it.

The schema comes from a client, and an answer is not to blame for it: if a check would cost too much, it is left out.
"""

from dataclasses import dataclass, field
from typing import Any

import orjson

from proxy.kit.schema import BoundedSchema, TooMuchWork, written
from proxy.wire.chat import Json
from proxy.wire.errors import RequestError


@dataclass(frozen=True, slots=True)
class SchemaCheck:
    """Checks answers against a schema."""

    schema: Json
    _bounded: BoundedSchema | None = field(repr=False)  # None: it makes too much work for any answer to be checked

    @classmethod
    def of(cls, schema: Any, param: str) -> "SchemaCheck":
        """The check for a schema as the client sent it; `param` is its place in the request.

        Raises:
            RequestError: it is not a schema, is too large, or has a reference to a schema outside it.
        """
        if not isinstance(schema, dict):
            raise RequestError(f"'{param}' must be an object.", param=param)
        try:
            written(schema)
            return cls(schema, BoundedSchema(schema, is_lenient=True))
        except TooMuchWork:
            return cls(schema, None)
        except ValueError as exc:
            raise RequestError(f"'{param}' {exc}.", param=param) from exc

    def fault(self, text: str) -> str | None:
        """The first fault of an answer; None if the answer fits, or would take too long to check."""
        try:
            value = orjson.loads(text)
        except orjson.JSONDecodeError as exc:
            return f"it is not JSON: {exc.msg}"
        if self._bounded is None or self._bounded.is_too_much(text):
            return None
        try:
            if self._bounded.is_valid(value):
                return None
            return self._bounded.fault(value, text) or "it does not fit the schema"
        except ValueError:  # "Recursion limit reached"
            return "it is nested too deep"
