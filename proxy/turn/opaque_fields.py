"""The fields of a turn that its upstream wants back and that a client may not bring back.

Gemini refuses the next request if a call comes back without its `extra_content`, which holds a `thought_signature`;
models behind OpenRouter and Vercel want the `reasoning_details` of the turn in which they called tools. Messages and
Responses have no place for such fields, and clients of Chat Completions may drop them. So every field that the loop
does not know itself is kept beside the turn, and is put back where the history has the turn's calls.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType

import msgspec
from msgspec import Struct

from proxy.wire.chat import TEXT_FIELDS, Json

# `annotations` and `audio` are for the reader of an answer.
_OF_MESSAGES = frozenset({*TEXT_FIELDS, "role", "tool_calls", "function_call", "annotations", "audio"})
_OF_CALLS = frozenset({"id", "index", "type", "function", "custom"})
_OF_FUNCTIONS = frozenset({"name", "arguments", "input"})
_EMPTY: tuple[object, ...] = (None, "", [], {})
_DEEPEST_MERGE = 4  # levels of objects; the deepest field that is known, a `thought_signature`, is at the second


class OpaqueFields(Struct, frozen=True):
    """The fields of one turn that have to go back with it; false if there are none.

    Attributes:
        message: fields of the assistant message.
        calls: the id of each of its calls in the history -> further fields of the call; empty for a call without any.
    """

    message: Mapping[str, object] = MappingProxyType({})
    calls: Mapping[str, Mapping[str, object]] = MappingProxyType({})

    def __bool__(self) -> bool:
        """Whether there is any such field."""
        return bool(self.message) or any(self.calls.values())

    def put_into(self, message: Json) -> Json:
        """The message of this turn with its fields; what the client itself has sent stays."""
        restored = {**self.message, **message}
        if calls := message.get("tool_calls"):
            restored["tool_calls"] = [_with_fields(call, self.calls.get(call.get("id") or "")) for call in calls]
        return restored

    def as_json(self) -> Json:
        """The JSON for a store or a sealed text."""
        return {"message": dict(self.message), "calls": {call_id: dict(held) for call_id, held in self.calls.items()}}

    @classmethod
    def from_json(cls, held: object) -> "OpaqueFields | None":
        """The fields from such JSON, without those that the history has itself; None if it is of another form."""
        try:
            read = msgspec.convert(held, cls)
        except msgspec.ValidationError:
            return None
        return cls(_further(read.message, _OF_MESSAGES), {at: _fields_of(call) for at, call in read.calls.items()})


def carried_by(message: Json, ids: Iterable[str | None]) -> OpaqueFields:
    """The fields that have to go back with an assistant message.

    Args:
        message: as received.
        ids: for each of its `tool_calls` the id that the call will have in the history; None: it will not be there.
    """
    calls = zip(message.get("tool_calls") or (), ids, strict=False)
    of_calls = {call_id: _fields_of(call) for call, call_id in calls if call_id is not None}
    return OpaqueFields(_further(message, _OF_MESSAGES), of_calls)


def has_opaque_fields(message: Json) -> bool:
    """Whether fields of an assistant message have to go back with it."""
    calls: Sequence[Json] = message.get("tool_calls") or ()
    return bool(_further(message, _OF_MESSAGES)) or any(map(_fields_of, calls))


def merge_fields(known: Json, given: Json, *, depth: int = 0) -> None:
    """Merge the fields of another piece into those of the earlier ones, in place.

    Objects are merged key by key, and null replaces nothing. `known` has objects of its own, `given` is not changed.
    """
    for key, value in given.items():
        if isinstance(value, dict) and depth < _DEEPEST_MERGE:
            if not isinstance(known.get(key), dict):
                known[key] = {}
            merge_fields(known[key], value, depth=depth + 1)
        elif value is not None or key not in known:
            known[key] = value


def _further(fields: Mapping[str, object], known: Collection[str]) -> dict[str, object]:
    """The fields that are neither known nor empty."""
    return {key: value for key, value in fields.items() if key not in known and value not in _EMPTY}


def _fields_of(call: Mapping[str, object]) -> Json:
    """The fields of a call besides those that every call has."""
    fields = _further(call, _OF_CALLS)
    if isinstance(function := call.get("function"), dict) and (inner := _further(function, _OF_FUNCTIONS)):
        fields["function"] = inner
    return fields


def _with_fields(call: Json, fields: Mapping[str, object] | None) -> Json:
    if not fields:
        return call
    restored = {**fields, **call}
    if isinstance(inner := fields.get("function"), dict) and isinstance(function := call.get("function"), dict):
        restored["function"] = {**inner, **function}
    return restored
