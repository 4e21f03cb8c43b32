"""The content blocks of a message, built step by step; every step gives the events that describe it.

    content_block_start   content_block_delta*   content_block_stop

Blocks follow each other without overlapping, with indices from 0. Folding the events gives `content`, so a whole
message is built by the code that builds a stream. The results of server tools come after all calls of their turn, in
call order: when the client sends the blocks back, this order tells the turns apart.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

from msgspec import Struct, field

from proxy.api.messages.inputs import StreamedInput
from proxy.api.messages.pages import FoundPage
from proxy.api.messages.signatures import sign
from proxy.api.reply import Events
from proxy.api.sealed import Sealer
from proxy.turn.call_arguments import ObjectScanner, ScanBudget
from proxy.turn.citations import Citation, annotations
from proxy.turn.opaque_fields import OpaqueFields
from proxy.wire import rawjson
from proxy.wire.chat import Json


class Blocks(Struct):
    """The blocks of one message.

    Blocks do not overlap, so all that comes while the input of a client's call is incomplete waits for its end.

    Attributes:
        sealer: seals what the client is to send back.
        mended: repairs the broken input of a client's call, or returns None if it cannot; None: nothing is repaired.
        shows_thoughts: whether thoughts are in their block, and not in its signature only.
        pages: the pages that a text may cite, by their addresses.
        content: the complete blocks, and the beginning of the open one.
        open_type: the type of the open block, which may still grow; empty if no block is open.
        pieces: those of its text or thoughts.
        marks: gpt-oss's citation marks in the open text, with their offsets.
    """

    sealer: Sealer
    mended: Callable[[str], Json | None] | None = None
    shows_thoughts: bool = True
    pages: dict[str, FoundPage] = field(default_factory=dict)
    content: list[Json] = field(default_factory=list)
    open_type: str = ""
    pieces: list[str] = field(default_factory=list)
    marks: list[Citation] = field(default_factory=list)
    _turn: int = 0  # the number of the turn that has the latest thoughts
    _signed: dict[int, tuple[Json, str]] = field(default_factory=dict)  # their blocks, and what the signatures hold
    _budget: ScanBudget = field(default_factory=ScanBudget)
    _calls: dict[int, StreamedInput] = field(default_factory=dict)  # the client's latest, by their index in the turn
    _input: StreamedInput | None = None  # of the call that is open
    _waiting: deque[str | Json | StreamedInput] = field(default_factory=deque)

    def add(self, part: str | Json | StreamedInput) -> Events:
        """Add text, a complete block or a client's call; it waits while the input of a client's call is incomplete."""
        if self._input is not None and not self._input.has_ended:
            self._waiting.append(part)
            return []
        match part:
            case str():
                events = [] if self.open_type == "text" else self._start({"type": "text", "text": ""})
                self.pieces.append(part)
                events.append(self._delta("text_delta", "text", part))
                return events
            case StreamedInput():
                events = self._start(part.block)
                self._input = part
                return events + self._write_input("".join(part.early))
            case _:
                return self._write_block(part)

    def add_thinking(self, text: str, turn: int) -> Events:
        """Add thoughts to the open block of thoughts, or to a new one; `turn` is the number of their turn."""
        self._turn = turn
        events: Events = []
        if self.open_type != "thinking":
            events = self._start({"type": "thinking", "thinking": "", "signature": ""})
        self.pieces.append(text)
        if self.shows_thoughts:
            events.append(self._delta("thinking_delta", "thinking", text))
        return events

    def begin_tool_use(self, index: int, call_id: str, name: str) -> Events:
        """Begin a call of one of the client's tools; `index` tells apart those of one turn."""
        block: Json = {"type": "tool_use", "id": call_id, "name": name, "input": {}}
        call = self._calls[index] = StreamedInput(block, ObjectScanner(self._budget))
        return self.add(call)

    def add_input(self, index: int, text: str) -> Events:
        """Add to the input of a client's call; input that does not begin as an object is repaired when complete."""
        call = self._calls.get(index)
        if call is None:
            return []
        if call is not self._input:
            call.early.append(text)  # of no use if the block is closed: then it was complete
            return []
        events = self._write_input(text)
        while self._waiting and (self._input is None or self._input.has_ended):
            events += self.add(self._waiting.popleft())
        return events

    def sign_again(self, turn: int, carried: OpaqueFields) -> None:
        """Add fields to the signature of the thoughts of a turn, if it has any; for a message that nobody has seen."""
        if turn in self._signed:
            block, thoughts = self._signed[turn]
            block["signature"] = sign(self.sealer, thoughts, carried)

    def close(self) -> Events:
        """Close the open block, and write what has waited for its end."""
        events: Events = []
        while self._waiting:
            if self._input is not None:
                events += self._close()
            events += self.add(self._waiting.popleft())
        return events + self._close()

    def _write_input(self, text: str) -> Events:
        shown = self._input.feed(text) if self._input is not None else ""
        return [self._delta("input_json_delta", "partial_json", shown)] if shown else []

    def _write_block(self, block: Json) -> Events:
        """Add a complete block."""
        given: Json | None = block.get("input") if block["type"] == "server_tool_use" else None
        if not given:  # SDKs fail on an empty delta. In `mcp_tool_use`, Claude Code 2.1 fails on any, and SDKs drop it.
            return self._start(block) + self._close()
        events = self._start({**block, "input": {}})
        self.content[-1] = block
        events.append(self._delta("input_json_delta", "partial_json", rawjson.dumps_answer(given).decode()))
        return events + self._close()

    def _start(self, block: Json) -> Events:
        events = self._close()
        self.content.append(block)
        self.open_type = block["type"]
        events.append({"type": "content_block_start", "index": len(self.content) - 1, "content_block": {**block}})
        return events

    def _delta(self, kind: str, key: str, value: Any) -> Json:
        return {"type": "content_block_delta", "index": len(self.content) - 1, "delta": {"type": kind, key: value}}

    def _close(self) -> Events:
        """Close the open block."""
        if not self.open_type:
            return []
        block, whole = self.content[-1], "".join(self.pieces)
        events: Events = []
        match self.open_type:
            case "text":
                block["text"] = whole
                if citations := self._citations_in(whole):  # else no field: the AI SDK refuses null
                    block["citations"] = citations
                    events += [self._delta("citations_delta", "citation", one) for one in citations]
            case "thinking":
                block["thinking"] = whole if self.shows_thoughts else ""
                signed = "" if self.shows_thoughts else whole
                block["signature"] = sign(self.sealer, signed)
                self._signed[self._turn] = block, signed
                events.append(self._delta("signature_delta", "signature", block["signature"]))
            case "tool_use" if self._input is not None:
                if rest := self._input.close(self.mended):
                    events.append(self._delta("input_json_delta", "partial_json", rest))
                self._input = None
        self.open_type = ""
        self.pieces.clear()
        events.append({"type": "content_block_stop", "index": len(self.content) - 1})
        return events

    def _citations_in(self, text: str) -> list[Json]:
        """The citations of a complete text, one for each page that it names."""
        marks, self.marks = self.marks, []
        if not self.pages:
            return []
        titles = {url: page.title for url, page in self.pages.items()}
        # The text may have been cut since.
        known = [(at, url) for at, url in marks if url in self.pages and at <= len(text)]
        urls = dict.fromkeys(one["url_citation"]["url"] for one in annotations(text, titles, known))
        return [self.pages[url].citation(self.sealer.seal_text) for url in urls]
