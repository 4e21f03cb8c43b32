"""The inputs of calls: objects, whatever a model writes, and streamed as far as that can be told."""

from collections.abc import Callable
from contextlib import suppress

import orjson
from msgspec import Struct, field

from proxy.api.messages.commas import CommaFilter
from proxy.turn.call_arguments import ObjectScanner
from proxy.wire import rawjson
from proxy.wire.chat import JSON_BLANKS, Json
from proxy.wire.json_text import exact_json

_LONGEST_OPENING = 64  # characters: a brace and blanks behind it; an input that begins with more is taken for an object
_ENDS = ("", "}", "]}", "}}", "}]}")  # what models leave out at the end of an input


class StreamedInput(Struct):
    """The input of a client's call, which comes in pieces.

    Attributes:
        block: the block of the call.
        scanner: finds the end of the input if it is an object.
        early: the pieces that have come before the block was begun.
        has_ended: whether the input is an object whose last bracket has come.
    """

    block: Json
    scanner: ObjectScanner
    early: list[str] = field(default_factory=list)
    has_ended: bool = False
    _pieces: list[str] = field(default_factory=list)
    _opening: str = ""  # until it can be told whether the input begins as an object
    _is_object: bool | None = None  # None: that cannot be told yet
    _commas: CommaFilter = field(default_factory=CommaFilter)

    def feed(self, text: str) -> str:
        """The part of the input that may be shown now; one that does not begin as an object is shown at its end."""
        self.has_ended = self.scanner.feed(text) is not None or self.has_ended
        if self._is_object is None:
            text = self._opening = (self._opening + text).lstrip(JSON_BLANKS)
            begun = text[:1] + text[1:].lstrip(JSON_BLANKS)[:1]
            if begun in ("", "{") and len(text) <= _LONGEST_OPENING:
                return ""
            self._is_object, self._opening = begun in ('{"', "{}", "{"), ""
        if self._is_object:
            text = self._commas.feed(text)
        self._pieces.append(text)
        return text if self._is_object else ""

    def close(self, mended: Callable[[str], Json | None] | None) -> str:
        """Put the whole input into the block; the rest of it that may be shown now. `mended`: see `parsed_input`."""
        rest = self._commas.close() if self._is_object else self._opening
        whole = "".join(self._pieces) + rest
        given = self.block["input"] = parsed_input(whole, mended)
        if not self._is_object:
            return _shown_input(whole, given)
        return rest if self.has_ended else rest + _missing_end(whole, given)


def parsed_input(text: str, mended: Callable[[str], Json | None] | None = None) -> Json:
    """The input of a call; a text that is not an object and cannot be repaired becomes `{"INVALID_JSON": text}`."""
    try:
        given = _object_in(text)
    except orjson.JSONDecodeError:
        given = mended(text) if mended is not None else None
    return {"INVALID_JSON": text} if given is None else given


def _shown_input(text: str, given: Json) -> str:
    """The JSON that a stream shows for a complete input that does not begin as an object; broken JSON unchanged."""
    if "INVALID_JSON" in given:
        try:
            _object_in(text)
        except orjson.JSONDecodeError:
            return text
    return rawjson.dumps_answer(given).decode() if given else ""


def _missing_end(text: str, given: Json) -> str:
    """The brackets that an input lacks at its end to be the repaired one; empty: it lacks none, or something else."""
    for end in _ENDS:
        with suppress(orjson.JSONDecodeError):
            if _object_in(text + end) == given:
                return end
    return ""


def _object_in(text: str) -> Json | None:
    """The object in a JSON text, as such or in a string; empty for an empty text or `null`, None for other values.

    Raises:
        orjson.JSONDecodeError: the text is not JSON.
    """
    value = exact_json(text) if text.strip() else None
    if isinstance(value, str):  # some models write their arguments like this
        with suppress(orjson.JSONDecodeError):
            value = exact_json(value) if value.strip() else None
    if value is None:
        return {}
    return value if isinstance(value, dict) else None
