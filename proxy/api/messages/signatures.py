"""The `signature` of a `thinking` block: opaque to the client, which returns it with the block.

It holds the thoughts where the client is not shown them, and the fields of the turn that the upstream wants back
(`loop.carried`). Nobody refuses a signature: one that was not made here for this client says nothing.
"""

from typing import Any

from msgspec import Struct

from proxy.api.sealed import Sealer
from proxy.turn.carried import Carried

_NOTHING = Carried()
# The beginning of a signature with fields. Others are not opened where the thoughts are shown, to save the time.
_WITH_FIELDS = "carried-"


class Signed(Struct, frozen=True):
    """The contents of a signature.

    Attributes:
        thoughts: the thoughts; empty if the block itself shows them, or the signature is not ours.
        carried: the fields that the turn carries.
    """

    thoughts: str = ""
    carried: Carried = _NOTHING


class Signatures:
    """Makes and reads the signatures of one caller."""

    def __init__(self, sealer: Sealer) -> None:
        self._sealer = sealer

    def sign(self, thoughts: str, carried: Carried = _NOTHING) -> str:
        """The signature that holds these thoughts and fields."""
        if not carried:
            return self._sealer.seal_text(thoughts)
        return _WITH_FIELDS + self._sealer.seal({"text": thoughts, "carried": carried.as_json()})

    def read(self, signature: Any, *, has_thoughts: bool) -> Signed | None:
        """The contents of the signature of a block; None: it was not opened, as it can hold nothing that is needed.

        `has_thoughts`: whether the block itself shows the thoughts.
        """
        if not isinstance(signature, str) or (has_thoughts and not signature.startswith(_WITH_FIELDS)):
            return None
        held = self._sealer.open(signature.removeprefix(_WITH_FIELDS)) or {}
        thoughts = held.get("text")
        return Signed(thoughts if isinstance(thoughts, str) else "", Carried.from_json(held.get("carried")) or _NOTHING)
