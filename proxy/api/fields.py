"""The fields of a request: read into the Struct of its API, or refused by name with what the field must be.

A Struct has the fields in the order in which their faults are reported. A field that a client omits is None, and may
also be null. A table of the API has the demand on each field: `{"stream": "must be true or false"}`.
"""

import math
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NoReturn, TypeAlias, TypeGuard, TypeVar

import msgspec
from msgspec import Meta, Struct

from proxy.wire.chat import Json
from proxy.wire.errors import RequestError

MOST = 2**31
"""The largest integer that a field may hold."""

Count: TypeAlias = Annotated[int, Meta(ge=0, le=MOST)]
PositiveCount: TypeAlias = Annotated[int, Meta(ge=1, le=MOST)]
Name: TypeAlias = Annotated[str, Meta(min_length=1)]

# The place at the end of a message of msgspec, without positions in lists: ... `type` - at `$.thinking`, or
# ... - at `$.stop_sequences[1]`
_PLACE = re.compile(r"(?:field `(?P<missing>\w+)`)?(?: - at `\$\.(?P<holder>[\w.]+)(?:\[.*)?`)?$")

Fault: TypeAlias = Callable[[str, str], RequestError]
"""The error of a dialect for a field, and for the demand that its value does not meet."""
_Fields = TypeVar("_Fields", bound=Struct)


def quoted(param: str, demand: str) -> RequestError:
    """The error for a field of a chat or Responses request, or of a search."""
    return RequestError(f"'{param}' {demand}.", param=param)


def prefixed(param: str, demand: str) -> RequestError:
    """The error for a field of a Messages request."""
    return RequestError(f"{param}: {demand}", param=param)


def refuse(param: str, demand: str) -> NoReturn:
    """Raise the error that `quoted` makes."""
    raise quoted(param, demand)


def expect(condition: object, param: str, demand: str) -> None:
    """Raise the error that `quoted` makes unless the condition holds."""
    if not condition:
        raise quoted(param, demand)


def read_fields(fields: Json, kind: type[_Fields], demands: Mapping[str, str], fault: Fault = quoted) -> _Fields:
    """The fields of a request that a Struct names; in `fields`, a number such as 44.0 becomes an integer.

    Args:
        fields: the request.
        kind: the Struct.
        demands: the place of a field, such as `text.format` -> what its value must be.
        fault: how the dialect says it.

    Raises:
        RequestError: a field is not well formed; its place is `param`.
    """
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError:
        return _read_in_order(fields, kind, demands, fault)


def _read_in_order(fields: Json, kind: type[_Fields], demands: Mapping[str, str], fault: Fault) -> _Fields:
    """The fields, checked in the order of the Struct instead of the order of the client's JSON."""
    ordered = {name: fields.get(name) for name in kind.__struct_fields__}
    try:
        return msgspec.convert(ordered, kind)
    except msgspec.ValidationError as exc:
        found = _PLACE.search(str(exc))
    place = ".".join(filter(None, (found["holder"], found["missing"]))) if found else ""
    if _make_whole(fields, place):
        return _read_in_order(fields, kind, demands, fault)
    named = place
    while named and named not in demands:  # a place within a field, whose demand says all
        named = named.rpartition(".")[0]
    raise fault(named or place, demands.get(named, "is not well formed"))


def _make_whole(holder: Any, place: str) -> bool:
    """Make an integer of the refused value at a place, where some clients write 44.0. Returns whether it is one now."""
    name, _, within = place.partition(".")
    value = holder.get(name) if isinstance(holder, dict) else None
    if within:
        return _make_whole(value, within)
    if not isinstance(value, float) or not value.is_integer():
        return False
    holder[name] = int(value)
    return True


def whole(value: Any) -> Any:
    """The integer that a number such as 44.0 is, as in JSON Schema; any other value unchanged."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def is_integer(value: Any, least: float = -math.inf, most: float = math.inf) -> TypeGuard[int]:
    """Whether a value is an integer within these bounds. True and False are not, though Python has them as integers."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
