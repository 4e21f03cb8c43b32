"""The texts of one turn: taken in without the calls that leaked into them, and made ready for the client's stream.

One blank line stands between two turns of a stream, which cannot take back what was shown. So of the newlines at the
end of a text only two are shown at once; the others wait for more text of that turn, or are dropped before another one.

`reasoning_details` hold a model's thoughts at OpenRouter and Vercel, some encrypted. SDKs join entries of a stream that
have the same index, and every turn counts from 0. So each turn gets indices of its own: joined ones are unreadable.
"""

import re
from collections.abc import Collection
from typing import Any

from msgspec import Struct, field

from proxy.loop.actions import CallUpstream
from proxy.loop.chat import TEXT_FIELDS, Json, in_plain_text, parts_beside_text, text_of
from proxy.loop.citations import CITATIONS, OPENING, MarkFilter
from proxy.loop.leaks import Leak
from proxy.loop.leaks.filter import LeakFilter, may_leak

DETAILS = "reasoning_details"

# Calls leak into the model's text and its thoughts, which come under one of two names.
_LEAKY_FIELDS = ("content", "reasoning_content", "reasoning")
_NEWLINES = 2
_BLANK_LINES = re.compile(r"(?:[^\S\n]*\n)+")


class FieldText(Struct):
    """The text of one field of the message: its pieces so far, and the filter that they have passed."""

    pieces: list[str] = []
    leak_filter: LeakFilter | None = None


class TurnTexts(Struct):
    """The texts of a turn, by their fields.

    Attributes:
        upstream_call: the call that the turn answers; names the tools whose calls may leak.
        fields: the fields that have come, by name.
        garbled: whether raw model format that is no call of any tool was taken out of a text; settled by `close`.
    """

    upstream_call: CallUpstream
    fields: dict[str, FieldText] = {}
    garbled: bool = False
    _parts: list[Any] = []  # parts of the content that are no text: thoughts, mostly
    _detail: Json = {}  # the latest entry of `reasoning_details` that repeats a thought

    def fold(self, delta: Json) -> list[str]:
        """Take in the texts of a delta, cut each to what is no leak, and return the names of their fields."""
        if isinstance(content := delta.get("content"), list):  # as Mistral streams it
            self._parts += parts_beside_text(content)
            delta.update(in_plain_text(delta))
        names: list[str] = []
        for name in TEXT_FIELDS:
            if not isinstance(text := delta.get(name), str) or not text:
                continue
            names.append(name)
            known = self.fields.get(name)
            if known is None:
                known = self.fields[name] = FieldText()
                if (tools := self.upstream_call.tools) and name in _LEAKY_FIELDS:
                    if renamed := self.upstream_call.renamed:  # a leak may have a name of the upstream's request, too
                        tools = {**tools, **{alias: tools[own] for alias, own in renamed.items() if own in tools}}
                    known.leak_filter = LeakFilter(tools, asked_json=self.upstream_call.asked_json)
            delta[name] = shown = text if known.leak_filter is None else known.leak_filter.feed(text)
            known.pieces.append(shown)
            if isinstance(details := delta.get(DETAILS), list):
                delta[DETAILS] = self._without_leaks(details, text, shown)
        return names

    def fold_whole(self, message: Json) -> None:
        """Take the texts of a whole message in, if a call may have leaked into one of them."""
        for name in filter(message.get, _LEAKY_FIELDS if self.upstream_call.tools else ()):
            text = text_of(message) if isinstance(message[name], list) else message[name]
            if isinstance(text, str) and may_leak(text):
                shown = {**message}
                self.fold(shown)
                self.close({})
                if DETAILS in shown:
                    message[DETAILS] = shown[DETAILS]
                return

    def close(self, delta: Json, *, keep_open: Collection[str] = ()) -> None:
        """End the texts of all fields but those to `keep_open`; their buffered text is added to the delta."""
        for name, known in self.fields.items():
            if known.leak_filter is None or name in keep_open:
                continue
            if rest := known.leak_filter.close():
                known.pieces.append(rest)
                delta[name] = (delta.get(name) or "") + rest
                if name != "content" and self._detail:
                    delta[DETAILS] = [{**self._detail, "text": rest}, *(delta.get(DETAILS) or ())]
            self.garbled = self.garbled or known.leak_filter.garbled

    def leaks(self, *, has_calls: bool) -> list[Leak]:
        """The leaked calls that count: one in the model's thoughts only if the turn has no text and no other call."""
        if not self.fields:
            return []
        content = self.fields.get("content")
        leaks = content.leak_filter.leaks if content and content.leak_filter else []
        if leaks or has_calls or (content and "".join(content.pieces).strip()):
            return leaks
        return [leak for known in self.fields.values() if known.leak_filter for leak in known.leak_filter.leaks]

    def complete(self, message: Json) -> None:
        """Put the texts into the message; content in parts stays as received where nothing leaked into it."""
        for name, known in self.fields.items():
            text = "".join(known.pieces)
            if name == "content" and isinstance(message.get(name), list):
                if text != text_of(message):
                    message[name] = self._in_parts(text)
            elif (text or name in message) and not (self._parts and name == "reasoning_content"):  # it is in the parts
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


class TrailingNewlines(Struct):
    """The end of a turn's text so far. The text shown does not depend on how the text is cut.

    Attributes:
        newlines: shown since the last word; 0 means that nothing is buffered either.
    """

    newlines: int = 0
    _buffer: list[str] = []

    def feed(self, text: str) -> str:
        """The part of the text, and of the buffer before it, that may be shown now."""
        if not self.newlines and not text[-1:].isspace():  # most pieces end within a word
            return text
        shown, blanks = "", text
        if words := text.rstrip():
            shown, blanks = (self.close() if self._buffer else "") + words, text[len(words) :]
            self.newlines = 0
        room = _NEWLINES - self.newlines
        lines = blanks.split("\n", room)
        rest = lines[-1] if len(lines) > room else ""
        self.newlines += len(lines) - 1
        if rest:
            self._buffer.append(rest)
        return shown + blanks[: len(blanks) - len(rest)]

    def close(self) -> str:
        """The newlines that are buffered; the buffer is empty afterwards."""
        rest = "".join(self._buffer)
        self._buffer.clear()
        return rest


class ShownText(Struct):
    """The text of a turn as its stream shows it: set apart from the turn before, and without gpt-oss's marks.

    Attributes:
        separator: what sets it apart from text that the client has already; None: there is none.
        marks: the filter that takes gpt-oss's marks out of it.
        length: of the text that `show` was given, in characters other than blanks around its pieces.
        needs_look: whether a plain piece must go through `show` as well: before the first word, after a line end,
            inside a mark.
    """

    separator: str | None
    marks: MarkFilter
    length: int = 0
    needs_look: bool = True
    _ending: TrailingNewlines = field(default_factory=TrailingNewlines)
    _begun: bool = False
    _blank: str = ""  # text before the first word

    def show(self, delta: Json) -> None:
        """Leave of the text in the delta, if any, what may be shown; blank text is buffered until a word follows."""
        if not isinstance(text := delta.get("content"), str) or not text:
            return
        self.length += len(text.strip())
        if not self._begun:
            text = self._blank + text
            if text.isspace():
                self._blank = text
                del delta["content"]
                return
            self._begun = True
            if self.separator is not None:
                text = self.separator + without_blank_lines_before(text)
        delta["content"] = text = self._ending.feed(text)
        if OPENING in text or self.marks.buffer:
            delta["content"], citations = self.marks.feed(text)
            if citations:
                delta[CITATIONS] = citations
        self.needs_look = bool(self._ending.newlines or self.marks.buffer)

    def close(self, delta: Json, *, is_followed: bool) -> None:
        """Put the rest of the text into the delta; it ends with at most one blank line where another turn follows."""
        rest, self.marks.buffer = self.marks.buffer, ""
        if self._ending.newlines and not is_followed:
            rest += self._ending.close()
        if rest:
            delta["content"] = (delta.get("content") or "") + rest


def separator_after(text: str) -> str | None:
    """The newlines that make one blank line between a turn's text and the next turn's; None after a blank text."""
    words = text.rstrip()
    return "\n" * max(0, _NEWLINES - text.count("\n", len(words))) if words else None


def without_blank_lines_before(text: str) -> str:
    """The text without blank lines at its beginning; the indentation of its first line stays."""
    return text[match.end() :] if (match := _BLANK_LINES.match(text)) else text


def without_blank_lines_after(text: str) -> str:
    """The text with at most one blank line at its end: all that a stream shows of it before another turn."""
    return TrailingNewlines().feed(text)


def shifted(details: Any, by: int) -> Any:
    """The entries of one turn with their indices raised."""
    if not by or not isinstance(details, list):
        return details
    return [detail if _index(detail) is None else {**detail, "index": detail["index"] + by} for detail in details]


def count_indices(message: Json) -> int:
    """How many indices the entries of a message take."""
    entries = details if isinstance(details := message.get(DETAILS), list) else ()
    return max([index for detail in entries if (index := _index(detail)) is not None], default=-1) + 1


def _index(detail: Any) -> int | None:
    index = detail.get("index") if isinstance(detail, dict) else None
    return index if isinstance(index, int) else None
