"""The content blocks of an answer, built step by step; every step gives the events that describe it.

    content_block_start   content_block_delta*   content_block_stop

Blocks follow each other without overlapping, with indices from 0. Folding the events gives `content`, so a whole answer
and a stream are the same thing. Results of server tools stand behind all calls of their turn, in call order: when the
client sends the blocks back, that order tells the turns apart.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

import orjson
from msgspec import Struct

from proxy.loop import rawjson
from proxy.loop.chat import JSON_BLANKS, Json

Events: TypeAlias = list[Json]


class ShownCall(Struct):
    """A call of a server tool that the client is shown.

    Attributes:
        use: its block, without the input.
        arguments: the input as JSON text.
        result: the block with its result.
    """

    use: Json
    arguments: str
    result: Json


class Blocks:
    """The blocks of one answer.

    Args:
        sign: makes the signature of a turn's thoughts.
        cite: finds the citations of a text.
        mended: the object that the broken input of a client's call means, if there is one.

    Attributes:
        content: the blocks that are complete, and the beginning of the one that is open.
        open_type: the type of the block that may still grow; empty: there is none.
    """

    def __init__(
        self,
        *,
        sign: Callable[[str], str],
        cite: Callable[[str], Sequence[Json]],
        mended: Callable[[str], Json | None] = lambda _: None,
    ) -> None:
        self.content: list[Json] = []
        self._sign = sign
        self._cite = cite
        self._mended = mended
        self.open_type = ""
        self._pieces: list[str] = []  # of its text, its thoughts or its input
        self._shows_thoughts = True
        self._is_object: bool | None = None  # whether the input begins as one; None: it has not begun
        self._calls: list[ShownCall] = []  # of this turn
        self._waiting: list[ShownCall] = []  # until the client's call before them is complete

    @property
    def open_input(self) -> str:
        """The input of the call of the client's that is being written."""
        return "".join(self._pieces)

    @property
    def has_open_call(self) -> bool:
        """Whether more input may follow of a call of the client's; none yet is not the whole of it."""
        return self.open_type == "tool_use" and not ((written := self.open_input) and is_complete(written))

    def grow_text(self, text: str) -> int:
        """Add to the open text, whose event is made elsewhere; the index of its block."""
        self._pieces.append(text)
        return len(self.content) - 1

    def add_text(self, text: str) -> Events:
        """Add text to the open text block, or to a new one."""
        events = [] if self.open_type == "text" else self._start({"type": "text", "text": ""})
        self._pieces.append(text)
        events.append(self._delta({"type": "text_delta", "text": text}))
        return events

    def add_thinking(self, text: str, *, shown: bool) -> Events:
        """Add thoughts to the open block of thoughts, or to a new one; those not shown go into its signature alone."""
        events = (
            [] if self.open_type == "thinking" else self._start({"type": "thinking", "thinking": "", "signature": ""})
        )
        self._pieces.append(text)
        self._shows_thoughts = shown
        if shown:
            events.append(self._delta({"type": "thinking_delta", "thinking": text}))
        return events

    def begin_tool_use(self, call_id: str, name: str) -> Events:
        """Begin a call of a tool of the client's."""
        events = self._start({"type": "tool_use", "id": call_id, "name": name, "input": {}})
        self._is_object = None
        return events

    def add_input(self, text: str) -> Events:
        """Add to the input of the client's call that is open. One that begins as no object waits until it is whole."""
        self._pieces.append(text)
        if self._is_object is None and (begun := text.lstrip(JSON_BLANKS)):
            self._is_object = begun.startswith("{")
        return [self._input_delta(text)] if text and self._is_object else []

    def add_server_call(self, call: ShownCall) -> Events:
        """Add a complete call of a server tool; it waits while a call of the client's is being written."""
        self._calls.append(call)
        if self.has_open_call:
            self._waiting.append(call)
            return []
        return self._whole_call(call)

    def end_turn(self) -> Events:
        """End a turn: add the results of its server calls."""
        events = self.close()
        calls, self._calls = self._calls, []
        for call in calls:
            events += self._whole(call.result)
        return events

    def close(self) -> Events:
        """Close the open block, and add the calls that have waited for that."""
        if not self.open_type:
            return []
        block, whole = self.content[-1], "".join(self._pieces)
        events: Events = []
        match self.open_type:
            case "text":
                block["text"] = whole
                if citations := self._cite(whole):  # null is not a list: the AI SDK refuses it
                    block["citations"] = list(citations)
                    events += [self._delta({"type": "citations_delta", "citation": one}) for one in citations]
            case "thinking":
                block["thinking"] = whole if self._shows_thoughts else ""
                block["signature"] = self._sign("" if self._shows_thoughts else whole)
                events.append(self._delta({"type": "signature_delta", "signature": block["signature"]}))
            case "tool_use":
                block["input"] = parsed_input(whole, self._mended)
                if not self._is_object and (written := _shown_input(whole)):
                    events.append(self._input_delta(written))
        self.open_type = ""
        self._pieces.clear()
        events.append({"type": "content_block_stop", "index": len(self.content) - 1})
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            events += self._whole_call(call)
        return events

    def _whole_call(self, call: ShownCall) -> Events:
        given = parsed_input(call.arguments)
        if call.use["type"] == "mcp_tool_use":  # Claude Code 2.1 fails at a delta of its input, and SDKs drop it
            return self._whole({**call.use, "input": given})
        events = self._start({**call.use, "input": {}})
        if given:  # SDKs fail at what is no object
            is_object = call.arguments.lstrip().startswith("{") and "INVALID_JSON" not in given
            events.append(self._input_delta(call.arguments if is_object else rawjson.dumps_answer(given).decode()))
        self.content[-1]["input"] = given
        return events + self.close()

    def _whole(self, block: Json) -> Events:
        """Add a block that comes in one piece."""
        return self._start(block) + self.close()

    def _start(self, block: Json) -> Events:
        events = self.close()
        self.content.append(block)
        self.open_type = block["type"]
        events.append({"type": "content_block_start", "index": len(self.content) - 1, "content_block": {**block}})
        return events

    def _input_delta(self, text: str) -> Json:
        return self._delta({"type": "input_json_delta", "partial_json": text})

    def _delta(self, delta: Json) -> Json:
        return {"type": "content_block_delta", "index": len(self.content) - 1, "delta": delta}


def parsed_input(text: str, mended: Callable[[str], Json | None] = lambda _: None) -> Json:
    """The input of a call as an object; a text that is none, and that `mended` cannot make one, as `INVALID_JSON`."""
    try:
        given = _object_in(text)
    except orjson.JSONDecodeError:
        given = mended(text)
    return {"INVALID_JSON": text} if given is None else given


def is_complete(text: str) -> bool:
    """Whether the input of a call is an object, or nothing, to which nothing can be added."""
    return "INVALID_JSON" not in parsed_input(text)


def _shown_input(text: str) -> str:
    """The JSON that a stream shows for a complete input that does not begin as an object; broken JSON as it stands."""
    try:
        given = _object_in(text)
    except orjson.JSONDecodeError:
        return text
    shown = {"INVALID_JSON": text} if given is None else given
    return rawjson.dumps_answer(shown).decode() if shown else ""


def _object_in(text: str) -> Json | None:
    """The object that a JSON text is, or has in a string; nothing and `null` are an empty one. None: another value.

    Raises:
        orjson.JSONDecodeError: it is no JSON.
    """
    value = _value_of(text)
    if isinstance(value, str):  # as some models write their arguments
        with suppress(orjson.JSONDecodeError):
            value = _value_of(value)
    if value is None:
        return {}
    return value if isinstance(value, dict) else None


def _value_of(text: str) -> Any:
    return rawjson.loads(text.encode("utf-8", "surrogatepass")) if text.strip() else None
