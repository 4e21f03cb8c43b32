"""The content blocks of an answer, built step by step; every step gives the events that describe it.

    content_block_start   content_block_delta*   content_block_stop

Blocks follow each other without overlapping, with indices from 0. Folding the events gives `content`, so a whole answer
and a stream are the same thing. Results of server tools stand behind all calls of their turn, in call order: when the
client sends the blocks back, that order tells the turns apart.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import orjson
from msgspec import Struct

from proxy.loop import rawjson
from proxy.loop.chat import Json

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

    Attributes:
        content: the blocks that are complete, and the beginning of the one that is open.
        open_type: the type of the block that may still grow; empty: there is none.
    """

    def __init__(self, *, sign: Callable[[str], str], cite: Callable[[str], Sequence[Json]]) -> None:
        self.content: list[Json] = []
        self._sign = sign
        self._cite = cite
        self.open_type = ""
        self._pieces: list[str] = []  # of its text, its thoughts or its input
        self._shows_thoughts = True
        self._calls: list[ShownCall] = []  # of this turn
        self._waiting: list[ShownCall] = []  # until the client's call before them is complete

    @property
    def open_input(self) -> str:
        """The input of the call of the client's that is being written."""
        return "".join(self._pieces)

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
        return self._start({"type": "tool_use", "id": call_id, "name": name, "input": {}})

    def add_input(self, text: str) -> Events:
        """Add to the input of the client's call that is open."""
        self._pieces.append(text)
        return [self._delta({"type": "input_json_delta", "partial_json": text})] if text else []

    def add_server_call(self, call: ShownCall) -> Events:
        """Add a complete call of a server tool; it waits while a call of the client's is being written."""
        self._calls.append(call)
        written = self.open_input if self.open_type == "tool_use" else "{}"
        if not (written and is_complete(written)):
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
        block, said = self.content[-1], "".join(self._pieces)
        events: Events = []
        match self.open_type:
            case "text":
                block["text"] = said
                if citations := self._cite(said):  # null is not a list: the AI SDK refuses it
                    block["citations"] = list(citations)
                    events += [self._delta({"type": "citations_delta", "citation": one}) for one in citations]
            case "thinking":
                block["thinking"] = said if self._shows_thoughts else ""
                block["signature"] = self._sign("" if self._shows_thoughts else said)
                events.append(self._delta({"type": "signature_delta", "signature": block["signature"]}))
            case "tool_use":
                block["input"] = parsed_input(said)
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
            written = call.arguments if "INVALID_JSON" not in given else orjson.dumps(given).decode()
            events.append(self._delta({"type": "input_json_delta", "partial_json": written}))
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

    def _delta(self, delta: Json) -> Json:
        return {"type": "content_block_delta", "index": len(self.content) - 1, "delta": delta}


def parsed_input(text: str) -> Json:
    """The input of a call as an object; a text that is none is kept under `INVALID_JSON`."""
    try:
        parsed = rawjson.loads(text.encode("utf-8", "surrogatepass")) if text.strip() else {}
    except orjson.JSONDecodeError:
        return {"INVALID_JSON": text}
    return parsed if isinstance(parsed, dict) else {"INVALID_JSON": text}


def is_complete(text: str) -> bool:
    """Whether the input of a call is an object, or nothing, to which nothing can be added."""
    return "INVALID_JSON" not in parsed_input(text)
