"""The `signature` of a `thinking` block: opaque to the client, which returns it with the block.

It holds the thoughts where the client is not shown them, and the fields of the turn that the upstream wants back
(`loop.carried`). Nobody refuses a signature: one that was not made here for this client says nothing.
"""

from typing import TypeGuard

from proxy.api.sealed import Sealer
from proxy.turn.opaque_fields import OpaqueFields

_NO_FIELDS = OpaqueFields()
# The beginning of a signature with fields. Others are not opened where the thoughts are shown, to save the time.
_WITH_FIELDS = "carried-"


def may_say(signature: object, *, has_thoughts: bool) -> TypeGuard[str]:
    """Whether a signature may hold what is needed; `has_thoughts`: whether the block itself shows the thoughts."""
    return isinstance(signature, str) and (not has_thoughts or signature.startswith(_WITH_FIELDS))


def sign(sealer: Sealer, thoughts: str, carried: OpaqueFields = _NO_FIELDS) -> str:
    """The signature that holds these thoughts and fields."""
    if not carried:
        return sealer.seal_text(thoughts)
    return _WITH_FIELDS + sealer.seal({"text": thoughts, "carried": carried.as_json()})


def read_signature(sealer: Sealer, signature: str) -> tuple[str, OpaqueFields]:
    """The thoughts and the fields in a signature; empty if it has none, or was not made here for this client."""
    held = sealer.open(signature.removeprefix(_WITH_FIELDS)) or {}
    thoughts = held.get("text")
    carried = OpaqueFields.from_json(held.get("carried")) or _NO_FIELDS
    return thoughts if isinstance(thoughts, str) else "", carried
