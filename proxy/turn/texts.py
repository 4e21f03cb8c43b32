"""The texts of one turn, put together for its message, without the calls that leaked into them.

A text passes `ThoughtsInText`, until the answer has begun, and the `LeakFilter` of its field. Each of the two owns the
text that it holds back, and nothing else does; `FieldText` keeps the text that has passed both, piece by piece. At a
cut in the stream nothing happens here: how a text is cut decides only how long the two hold its end. `close` takes the
held text out: when another field or the calls begin, and when the turn ends.
"""

from collections.abc import Collection, Mapping
from typing import Any, Final

from msgspec import Struct

from proxy.turn.details import DETAILS
from proxy.turn.leaks import Leak
from proxy.turn.leaks.filter import LeakFilter, may_leak
from proxy.turn.request import TurnView
from proxy.turn.thinking import ThoughtsInText
from proxy.wire.chat import TEXT_FIELDS, Json, in_plain_text, parts_beside_text, text_of
from proxy.wire.errors import UpstreamError

# Calls leak into the model's text and its thoughts, which have one of two names.
_THOUGHTS: Final = ("reasoning_content", "reasoning")
_LEAKY_FIELDS: Final = ("content", *_THOUGHTS)

MOST_TEXT = 8 * 1024 * 1024
"""The most characters of one field of a message. A million tokens have half as many; pictures may be part of a text, in
base64. What has to be done with a text at the end of its turn would take too long for more."""


class FieldText(Struct):
    """The text of one field of the message: the pieces so far, and the filter that they have passed.

    Attributes:
        pieces: the text without leaked calls.
        leak_filter: finds the leaked calls; None: none can leak into this field.
        length: how many characters the upstream has written, at most `MOST_TEXT`.
    """

    pieces: list[str] = []
    leak_filter: LeakFilter | None = None
    length: int = 0

    def feed(self, text: str) -> str:
        """Take the next piece, and return what may be shown of it. Raises `UpstreamError` if there is too much text."""
        self.length += len(text)
        if self.length > MOST_TEXT:
            raise UpstreamError(f"The upstream wrote more than {MOST_TEXT} characters in one turn.")
        if self.leak_filter is not None:
            text = self.leak_filter.feed(text)
        self.pieces.append(text)
        return text


class TurnTexts(Struct):
    """The texts of a turn, by field.

    Attributes:
        view: has the names of the tools whose calls may leak.
        renamed: replaced tool names in the upstream's request -> the names that the run knows.
        fields: the text fields that have arrived, by name.
        thinking: takes thoughts out of the content; None: there are none in it, or no more.
        is_whole: whether the texts are those of a whole message; those that can hold no call need no filter.
        garbled: whether raw model format that is not a call of any tool was taken out of a text; set by `close`.
    """

    view: TurnView
    renamed: Mapping[str, str] = {}
    thinking: ThoughtsInText | None = None
    fields: dict[str, FieldText] = {}
    is_whole: bool = False
    garbled: bool = False
    _parts: list[Any] = []  # parts of the content that are not text, mostly thoughts
    _detail: Json = {}  # the latest entry of `reasoning_details` that repeats a thought

    def are_plain(self, message: Json) -> bool:
        """Whether the texts of a whole message stay as they are: they hold no calls, no thoughts and no parts."""
        if self.thinking is not None:
            return False
        for name in TEXT_FIELDS:
            if not (text := message.get(name)):
                continue
            if not isinstance(text, str) or len(text) > MOST_TEXT or (name in _LEAKY_FIELDS and may_leak(text)):
                return False
        return True

    def fold(self, delta: Json) -> list[str]:
        """Take in the texts of a delta, remove leaked calls from them, and return the names of their fields."""
        if isinstance(content := delta.get("content"), list):  # as Mistral streams it
            self._parts += parts_beside_text(content)
            delta.update(in_plain_text(delta))
        if self.thinking is not None:
            has_thoughts = any(name in self.fields or delta.get(name) for name in _THOUGHTS)
            self.thinking.split(delta, has_thoughts=has_thoughts)
            if self.thinking.is_done:
                self.thinking = None
        names: list[str] = []
        for name in TEXT_FIELDS:
            if not isinstance(text := delta.get(name), str) or not text:
                continue
            names.append(name)
            if (known := self.fields.get(name)) is None:
                known = self.fields[name] = FieldText()
                if self.view.tools and name in _LEAKY_FIELDS and (may_leak(text) or not self.is_whole):
                    known.leak_filter = LeakFilter(self._callable(), json_mode=self.view.json_mode)
            delta[name] = shown = known.feed(text)
            if isinstance(details := delta.get(DETAILS), list):
                delta[DETAILS] = self._without_leaks(details, text, shown)
        return names

    def _callable(self) -> Mapping[str, Json]:
        """The tools that a leak may name, also by a name of the upstream's request."""
        tools = self.view.tools
        return {**tools, **{alias: tools[own] for alias, own in self.renamed.items() if own in tools}}

    def close(self, delta: Json, *, keep_open: Collection[str] = (), is_cut: bool = False) -> None:
        """End the texts of all fields but those to `keep_open`, and add the text that was held back to the delta.

        `is_cut` tells whether a limit has cut off the turn, so that its text may end with the beginning of a call.
        """
        # A refusal follows the whole text; any text that follows has no thoughts.
        if self.thinking is not None and (not keep_open or "refusal" in keep_open):
            held, self.thinking = self.thinking.close(), None
            self.fold(held)
            for name, text in held.items():
                delta[name] = (delta.get(name) or "") + text
        for name, known in self.fields.items():
            if known.leak_filter is None or name in keep_open:
                continue
            if rest := known.leak_filter.close(is_cut=is_cut):
                known.pieces.append(rest)
                delta[name] = (delta.get(name) or "") + rest
                if name != "content" and self._detail:
                    delta[DETAILS] = [{**self._detail, "text": rest}, *(delta.get(DETAILS) or ())]
            self.garbled = self.garbled or known.leak_filter.garbled

    def leaks(self, *, has_calls: bool) -> list[Leak]:
        """The leaked calls that count; those in thoughts do so only if the turn has no text and no other call."""
        if not self.fields:
            return []
        content = self.fields.get("content")
        found = content.leak_filter.leaks if content and content.leak_filter else []
        if not (found or has_calls or (content and "".join(content.pieces).strip())):
            found = [leak for known in self.fields.values() if known.leak_filter for leak in known.leak_filter.leaks]
        return [Leak(self.renamed.get(leak.name, leak.name), leak.arguments) for leak in found]

    def complete(self, message: Json) -> None:
        """Put the texts into the message; content in parts stays as received if nothing leaked into it."""
        for name, known in self.fields.items():
            text = "".join(known.pieces)
            if name == "content" and isinstance(message.get(name), list):
                if text != text_of(message):
                    message[name] = self._in_parts(text)
            elif (text or name in message) and not (self._parts and name == "reasoning_content"):  # the parts have it
                if name in message and isinstance(details := message.get(DETAILS), list):  # of a whole message
                    message[DETAILS] = self._without_leaks(details, message[name], text)
                message[name] = text
        if self._parts and not isinstance(message.get("content"), list):
            message["content"] = self._in_parts(message.get("content") or "")

    def _in_parts(self, text: str) -> list[Json]:
        parts = parts_beside_text(self._parts)
        return [*parts, {"type": "text", "text": text}] if text else parts

    def _without_leaks(self, details: list[Any], thought: str, shown: str) -> list[Any]:
        """The entries of `reasoning_details` with `shown` in place of the `thought` that they repeat."""
        entries: list[Any] = []
        for detail in details:
            if not isinstance(detail, dict) or detail.get("text") != thought:
                entries.append(detail)
                continue
            self._detail = {**detail, "text": shown}
            entries += [self._detail] if shown else []
        return entries
