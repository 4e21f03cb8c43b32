"""`reasoning_details` of a stream, put together as the upstream wants them back: as a whole answer would have them.

The thoughts of a model come in pieces, one entry per piece. Pieces of one entry have its `index`, its `type` and, if
there is one, its `id`; each piece adds to the text, and the `signature` comes with one of them.

OpenRouter and Vercel send a model's thoughts so, some of them encrypted. SDKs join entries of a stream that have the
same index, and every turn counts from 0. So each turn gets its own indices: joined entries are unreadable.
"""

from collections.abc import Sequence
from typing import Any, Final

from msgspec import Struct, field

from proxy.wire.chat import Json

DETAILS: Final = "reasoning_details"

_TEXTS = ("text", "summary", "data")  # the fields that arrive in pieces


class _Detail(Struct):
    fields: Json
    texts: dict[str, list[str]] = field(default_factory=dict)

    def add(self, piece: Json) -> None:
        for key, value in piece.items():
            if key in _TEXTS and isinstance(value, str):
                if [value] != self.texts.get(key) or key != "data":  # encrypted data that comes twice is no piece
                    self.texts.setdefault(key, []).append(value)
                self.fields.setdefault(key, "")  # keeps its place among the fields
            elif value is not None or key not in self.fields:
                self.fields[key] = value

    def whole(self) -> Json:
        return {**self.fields, **{key: "".join(pieces) for key, pieces in self.texts.items()}}


class FoldedDetails(Struct):
    """The entries of one turn, as far as they have arrived."""

    _entries: list[Any] = []
    _latest: dict[tuple[int, str | None], _Detail] = {}

    def add(self, pieces: Sequence[Any]) -> None:
        """Add the entries of a delta."""
        for piece in pieces:
            index = _index(piece)
            if index is None:
                self._entries.append(piece)
                continue
            key = (index, piece["type"] if isinstance(piece.get("type"), str) else None)
            entry = self._latest.get(key)
            if entry is None or _differ(entry.fields.get("id"), piece.get("id")):
                entry = self._latest[key] = _Detail({})
                self._entries.append(entry)
            entry.add(piece)

    def whole(self) -> list[Any]:
        """The entries, each in one piece."""
        return [entry.whole() if isinstance(entry, _Detail) else entry for entry in self._entries]


def _differ(known: object, given: object) -> bool:
    return known is not None and given is not None and known != given


def shifted(details: Any, by: int) -> Any:
    """The `reasoning_details` of one turn with `by` added to each index."""
    if not by or not isinstance(details, list):
        return details
    return [detail if _index(detail) is None else {**detail, "index": detail["index"] + by} for detail in details]


def count_indices(message: Json) -> int:
    """How many indices the `reasoning_details` of a message use."""
    entries = details if isinstance(details := message.get(DETAILS), list) else ()
    return max([index for detail in entries if (index := _index(detail)) is not None], default=-1) + 1


def _index(detail: Any) -> int | None:
    index = detail.get("index") if isinstance(detail, dict) else None
    return index if isinstance(index, int) else None
