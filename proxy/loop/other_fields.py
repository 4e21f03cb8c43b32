"""The parts of a turn's chunks beside text and calls: unknown fields, and log probabilities."""

from typing import Any, Final

from msgspec import Struct

from proxy.loop.carried import merge_fields
from proxy.loop.chat import TEXT_FIELDS, Json
from proxy.loop.citations import CITATIONS
from proxy.loop.details import FoldedDetails
from proxy.loop.texts import DETAILS, shifted

FOLDED_KEYS: Final = frozenset({*TEXT_FIELDS, "tool_calls"})
"""The keys of a delta that hold text and calls."""
_LIVE_KEYS = frozenset({*FOLDED_KEYS, DETAILS, CITATIONS, "audio"})  # shown as they come


class OtherFields(Struct):
    """The other fields of one turn's deltas.

    Attributes:
        first_detail: the number that is added to the indices of `reasoning_details` for the client.
        message: the assistant message so far, without its texts and calls; a streamed one begins with only the role.
        aside: the deltas that are shown if this is the last turn.
    """

    first_detail: int
    message: Json
    aside: list[Json] = []
    _details: FoldedDetails | None = None

    def whole(self) -> Json:
        """The message so far, which may be changed."""
        return {**self.message, DETAILS: self._details.whole()} if self._details else {**self.message}

    def fold(self, delta: Json) -> None:
        """Fold the fields of a delta into the message: lists are joined, objects merged, other values replaced."""
        for key in delta.keys() - FOLDED_KEYS:
            if (value := delta[key]) is None:
                continue
            known = self.message.get(key)
            if isinstance(value, dict):
                merge_fields(self.message, {key: value})
            elif key == DETAILS and isinstance(value, list):
                self._details = self._details or FoldedDetails()
                self._details.add(value)
            elif isinstance(value, list) and isinstance(known, list):
                known += value
            elif isinstance(value, list):
                self.message[key] = [*value]
            else:
                self.message[key] = value

    def show(self, delta: Json, *, is_followed: bool) -> None:
        """Leave in a delta the fields that may be shown at once, and set the others aside for the end of the run.

        A text is shown at once unless another turn is sure to follow. SDKs would take the objects and lists of several
        turns for pieces of one value, and fail to join them.
        """
        if details := delta.get(DETAILS):
            delta[DETAILS] = shifted(details, self.first_detail)
        later = [key for key in delta if key not in _LIVE_KEYS and (is_followed or not isinstance(delta[key], str))]
        if aside := {key: value for key in later if (value := delta.pop(key)) is not None}:
            self.aside.append(aside)


class HeldLogprobs(Struct):
    """The log probabilities of text that was held back; they are shown with the next text."""

    held: list[Any] = []

    def join(self, choice: Json, *, is_shown: bool) -> None:
        """Put the held entries in front of those of a shown choice; hold those of a choice that is not shown."""
        given = choice["logprobs"] if isinstance(choice.get("logprobs"), dict) else {}
        if isinstance(entries := given.get("content"), list):
            self.held += entries
        if is_shown and self.held:
            choice["logprobs"], self.held = {**given, "content": self.held}, []
