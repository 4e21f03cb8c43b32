"""The content blocks of a message, built step by step; every step gives the events that describe it.

    content_block_start   content_block_delta*   content_block_stop

Blocks follow each other without overlapping, with indices from 0. Folding the events gives `content`, so a whole
message is built by the code that builds a stream. The results of server tools come after all calls of their turn, in
call order: when the client sends the blocks back, this order tells the turns apart.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

import orjson
from msgspec import Struct

from proxy.api.messages.commas import CommaFilter
from proxy.api.reply import Events
from proxy.turn.call_arguments import ObjectScanner
from proxy.turn.opaque_fields import OpaqueFields
from proxy.wire import rawjson
from proxy.wire.chat import JSON_BLANKS, Json
from proxy.wire.json_text import exact_json

_LONGEST_OPENING = 64  # characters: a brace and blanks behind it; an input that begins with more is taken for an object

_ENDS = ("", "}", "]}", "}}", "}]}")  # what models leave out at the end of an input


class Sign(Protocol):
    """Makes the signature of a turn's thoughts, as `Signatures.sign` does."""

    def __call__(self, thoughts: str, carried: OpaqueFields = ...) -> str:
        """The signature that holds these thoughts and fields."""
        ...


class ShownCall(Struct):
    """A call of a server tool that the client is shown.

    Attributes:
        use: the block of the call, without its input.
        arguments: the input as JSON text.
        result: the block of the result.
    """

    use: Json
    arguments: str
    result: Json


class _ClientCall(Struct):
    """A call of the client's that waits for the end of another one, with its input so far."""

    index: int
    block: Json
    pieces: list[str] = []


class Blocks:
    """The blocks of one message.

    Blocks do not overlap, so all that comes while the input of a client's call is incomplete waits for its end.

    Args:
        sign: makes the signature of a turn's thoughts.
        cite: finds the citations in a text.
        mended: repairs the broken input of a client's call, or returns None if it cannot; None: nothing is repaired.

    Attributes:
        mended: the same.
        content: the complete blocks, and the beginning of the open one.
        open_type: the type of the open block, which may still grow; empty if no block is open.
        pieces: those of its text, thoughts or input.
    """

    def __init__(
        self,
        *,
        sign: Sign,
        cite: Callable[[str], Sequence[Json]],
        mended: Callable[[str], Json | None] | None = None,
    ) -> None:
        self.content: list[Json] = []
        self._sign = sign
        self._cite = cite
        self.mended = mended
        self.open_type = ""
        self.pieces: list[str] = []
        self._shows_thoughts = True
        self._commas = CommaFilter()  # of the open input
        self._is_object: bool | None = None  # whether the input begins as an object; None: that cannot be told yet
        self._opening = ""  # of the input, until that can be told
        self._scanner = ObjectScanner()
        self._has_ended = False  # whether the input is an object whose last bracket has come
        self._signed: dict[int, str] = {}  # the thoughts that the signature of a block holds, by its index
        self._calls: list[ShownCall] = []  # of this turn
        self._open_index = 0  # of the client's call that is open
        self._waiting: list[ShownCall | _ClientCall | list[str]] = []  # calls and texts behind an open client call

    @property
    def is_writing_text(self) -> bool:
        """Whether the latest block is a text that may grow, be it written or waiting."""
        return isinstance(self._waiting[-1], list) if self._waiting else self.open_type == "text"

    def add_text(self, text: str) -> Events:
        """Add text to the open text block, or to a new one."""
        events = self._settle()
        if self._has_open_call:
            if not self.is_writing_text:
                self._waiting.append([])
            self._waiting[-1].append(text)  # type: ignore[union-attr]  # it is a list
            return events
        return events + self._write_text(text)

    def add_thinking(self, text: str, *, shown: bool) -> Events:
        """Add thoughts to the open block of thoughts, or to a new one; hidden thoughts are in its signature only."""
        events = (
            [] if self.open_type == "thinking" else self._start({"type": "thinking", "thinking": "", "signature": ""})
        )
        self.pieces.append(text)
        self._shows_thoughts = shown
        if shown:
            events.append(self._delta({"type": "thinking_delta", "thinking": text}))
        return events

    def begin_tool_use(self, index: int, call_id: str, name: str) -> Events:
        """Begin a call of one of the client's tools; `index` tells apart those of one turn."""
        events = self._settle()
        call = _ClientCall(index, {"type": "tool_use", "id": call_id, "name": name, "input": {}})
        if self._has_open_call:
            self._waiting.append(call)
            return events
        return events + self._begin_call(call)

    def add_input(self, index: int, text: str) -> Events:
        """Add to the input of a client's call; input that does not begin as an object is repaired when complete."""
        if self.open_type == "tool_use" and index == self._open_index:
            return self._write_input(text)
        for call in self._waiting:  # one whose block is closed was complete
            if isinstance(call, _ClientCall) and call.index == index:
                call.pieces.append(text)
        return []

    def add_server_call(self, call: ShownCall) -> Events:
        """Add a complete call of a server tool; it waits while a call of the client's is open."""
        events = self._settle()
        self._calls.append(call)
        if self._has_open_call:
            self._waiting.append(call)
            return events
        return events + self._whole_call(call)

    def sign_again(self, index: int, carried: OpaqueFields) -> None:
        """Add the fields of a turn to the signature of its thoughts, the block at `index`, which nobody has seen."""
        self.content[index]["signature"] = self._sign(self._signed[index], carried)

    def end_turn(self) -> Events:
        """End a turn: add the results of its server calls."""
        events = self.close_all()
        calls, self._calls = self._calls, []
        for call in calls:
            events += self._start(call.result) + self._close()
        return events

    def close_all(self) -> Events:
        """Close the open block, and write what has waited for its end."""
        events = self._close()
        while self._waiting:
            events += self._write_next() + self._close()
        return events

    def _settle(self) -> Events:
        """Write what waits for the end of a call of the client's, once that has come."""
        events: Events = []
        while self._waiting and not self._has_open_call:
            events += self._write_next()
        return events

    @property
    def _has_open_call(self) -> bool:
        """Whether a call of the client's is open and more input may follow: its object has not ended."""
        return self.open_type == "tool_use" and not self._has_ended

    def _write_next(self) -> Events:
        match self._waiting.pop(0):
            case ShownCall() as call:
                return self._whole_call(call)
            case _ClientCall() as call:
                return self._begin_call(call)
            case pieces:
                return self._write_text("".join(pieces))

    def _write_text(self, text: str) -> Events:
        events = [] if self.open_type == "text" else self._start({"type": "text", "text": ""})
        self.pieces.append(text)
        events.append(self._delta({"type": "text_delta", "text": text}))
        return events

    def _begin_call(self, call: "_ClientCall") -> Events:
        events = self._start(call.block)
        self._open_index, self._is_object, self._has_ended = call.index, None, False
        self._opening = ""
        self._commas = CommaFilter()
        self._scanner = ObjectScanner(self._scanner.budget)
        return events + (self._write_input("".join(call.pieces)) if call.pieces else [])

    def _write_input(self, text: str) -> Events:
        self._has_ended = self._scanner.feed(text) is not None or self._has_ended
        if self._is_object is None:
            text = self._opening = (self._opening + text).lstrip(JSON_BLANKS)
            begun = text[:1] + text[1:].lstrip(JSON_BLANKS)[:1]
            if begun in ("", "{") and len(text) <= _LONGEST_OPENING:
                return []
            self._is_object, self._opening = begun in ('{"', "{}", "{"), ""
        if self._is_object:
            text = self._commas.feed(text)
        self.pieces.append(text)
        return [self._input_delta(text)] if self._is_object and text else []

    def _close(self) -> Events:
        """Close the open block."""
        if not self.open_type:
            return []
        block, whole = self.content[-1], "".join(self.pieces)
        events: Events = []
        match self.open_type:
            case "text":
                block["text"] = whole
                if citations := self._cite(whole):  # else no field: the AI SDK refuses null
                    block["citations"] = list(citations)
                    events += [self._delta({"type": "citations_delta", "citation": one}) for one in citations]
            case "thinking":
                block["thinking"] = whole if self._shows_thoughts else ""
                self._signed[len(self.content) - 1] = signed = "" if self._shows_thoughts else whole
                block["signature"] = self._sign(signed)
                events.append(self._delta({"type": "signature_delta", "signature": block["signature"]}))
            case "tool_use":
                rest = self._commas.close() if self._is_object else self._opening
                whole += rest
                block["input"] = parsed_input(whole, self.mended)
                if not self._is_object:
                    rest = _shown_input(whole, block["input"])
                elif not self._has_ended:
                    rest += _missing_end(whole, block["input"])
                if rest:
                    events.append(self._input_delta(rest))
        self.open_type = ""
        self.pieces.clear()
        events.append({"type": "content_block_stop", "index": len(self.content) - 1})
        return events

    def _whole_call(self, call: ShownCall) -> Events:
        given = parsed_input(call.arguments)
        if call.use["type"] == "mcp_tool_use":  # Claude Code 2.1 fails on an input delta here, and SDKs drop it
            return self._start({**call.use, "input": given}) + self._close()
        events = self._start({**call.use, "input": {}})
        if given:  # SDKs fail on a delta that is not an object
            is_object = call.arguments.lstrip().startswith("{") and "INVALID_JSON" not in given
            events.append(self._input_delta(call.arguments if is_object else rawjson.dumps_answer(given).decode()))
        self.content[-1]["input"] = given
        return events + self._close()

    def _start(self, block: Json) -> Events:
        events = self._close()
        self.content.append(block)
        self.open_type = block["type"]
        events.append({"type": "content_block_start", "index": len(self.content) - 1, "content_block": {**block}})
        return events

    def _input_delta(self, text: str) -> Json:
        return self._delta({"type": "input_json_delta", "partial_json": text})

    def _delta(self, delta: Json) -> Json:
        return {"type": "content_block_delta", "index": len(self.content) - 1, "delta": delta}


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
