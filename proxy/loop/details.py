"""`reasoning_details`, in which OpenRouter and Vercel's gateway say what a model thought, sealed parts among it.

Entries of a stream that have one index are pieces of one, for the SDKs that put them together; and every turn counts
from 0. In a stream of several turns each one therefore gets indices of its own: two sealed parts in one are unreadable.
"""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from proxy.loop.chat import Json

DETAILS = "reasoning_details"


def shifted(details: Any, by: int) -> Any:
    """The entries of one turn with their indices raised."""
    if not by or not isinstance(details, list):
        return details
    return [detail if _index(detail) is None else {**detail, "index": detail["index"] + by} for detail in details]


class ThoughtsInDetails(Struct):
    """Keeps entries that repeat the thoughts beside them in step with what is shown of those: leaks are taken out."""

    _entry: Json = {}  # the latest that did

    def showing(self, details: Any, said: str, shown: str) -> Any:
        """The entries beside thoughts of which this is shown; an entry of nothing is left out."""
        if not said or not isinstance(details, list):
            return details
        kept: list[Any] = []
        for detail in details:
            if not isinstance(detail, dict) or detail.get("text") != said:
                kept.append(detail)
            else:
                self._entry = detail
                if shown:
                    kept.append({**detail, "text": shown})
        return kept

    def kept_back(self, text: str) -> Sequence[Json]:
        """The entries for thoughts that were kept back and are shown now."""
        return [{**self._entry, "text": text}] if self._entry else []


def count_indices(message: Json) -> int:
    """How many indices the entries of a message take."""
    details = message.get(DETAILS)
    if not isinstance(details, list):
        return 0
    return max([index for detail in details if (index := _index(detail)) is not None], default=-1) + 1


def _index(detail: Any) -> int | None:
    index = detail.get("index") if isinstance(detail, dict) else None
    return index if isinstance(index, int) else None
