"""The fields of one turn that are neither text nor calls: kept for the message, and shown when they may be."""

from typing import Final

from msgspec import Struct

from proxy.turn.citations import CITATIONS
from proxy.turn.details import DETAILS, FoldedDetails, shifted
from proxy.turn.opaque_fields import merge_fields
from proxy.wire.chat import TEXT_FIELDS, Json

FOLDED_KEYS: Final = frozenset({*TEXT_FIELDS, "tool_calls"})
"""The fields of a delta that are its text and its calls."""

_LIVE_KEYS: Final = frozenset({*FOLDED_KEYS, DETAILS, CITATIONS, "audio"})  # shown as they come


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
    _is_whole: bool = False  # whether the message has been received with all of its fields

    def begin_whole(self, message: Json) -> None:
        """Keep the fields of a whole message; its deltas add none to them."""
        self.message, self._is_whole = {**message}, True

    def whole(self) -> Json:
        """The message so far, which may be changed."""
        return {**self.message, DETAILS: self._details.whole()} if self._details else {**self.message}

    def fold(self, delta: Json) -> None:
        """Fold the fields of a delta into the message: lists are joined, objects merged, other values replaced."""
        for key in () if self._is_whole else delta.keys() - FOLDED_KEYS:
            if (value := delta[key]) is None:
                continue
            if isinstance(value, dict):
                merge_fields(self.message, {key: value})
            elif key == DETAILS and isinstance(value, list):
                self._details = self._details or FoldedDetails()
                self._details.add(value)
            elif isinstance(value, list) and isinstance(known := self.message.get(key), list):
                known += value
            else:
                self.message[key] = [*value] if isinstance(value, list) else value

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
