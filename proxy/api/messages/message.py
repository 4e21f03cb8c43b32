"""The content of a message: chunks and answered calls of a run -> content blocks, and the events that build them."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct

from proxy.api.fold import Fold
from proxy.api.messages.blocks import Blocks, ShownCall, Sign, parsed_input
from proxy.api.messages.call_ids import shown_call_id, tool_use_id
from proxy.api.messages.cited import CitedPages
from proxy.api.messages.pages import (
    SERVER_NAME,
    FoundPage,
    code_block,
    error_block,
    error_code,
    fetch_block,
    other_block,
    pages_of,
    search_block,
)
from proxy.api.messages.tools import CODE, FETCH, MessageTools
from proxy.api.reply import Events
from proxy.loop.actions import AnsweredCall, Respond
from proxy.loop.offer import SEARCH
from proxy.loop.run_events import RunEvent, TurnBegan
from proxy.turn.call_ids import server_call_id
from proxy.turn.citations import Citation
from proxy.turn.opaque_fields import OpaqueFields, carried_by
from proxy.wire import rawjson
from proxy.wire.chat import BROKEN_OFF, WINDOW_EXCEEDED, Json, ToolCall, ToolSpec, Turn, name_of

_TEXT = (
    b"event: content_block_delta\n"
    b'data: {"type":"content_block_delta","index":%d,"delta":{"type":"text_delta","text":%b}}\n\n'
)
_STOP_REASONS = {"length": "max_tokens", "content_filter": "refusal"}


class MessageOptions(Struct, frozen=True):
    """The options of a client's message.

    Attributes:
        seal: seals text for the client.
        sign: makes the signature of a turn's thoughts; see `Signatures.sign`.
        now: the time, in seconds since 1970, for pages that are fetched.
        tools: which server tools the client is shown, and whether it takes several calls in one turn.
        server_calls: whether the calls of other server tools are shown as well.
        thoughts: whether the model's thoughts are shown.
        omits_thoughts: whether thoughts are shown as a signature only.
        arguments_of: repairs the arguments of a call, as `Toolset.arguments_of` does.
        mended: repairs the arguments of the client's calls, as `Toolset.mended` does; None: they stay as written.
        stops: the sequences at which the text ends.
        pages: the pages that earlier searches of the conversation have found.
    """

    seal: Callable[[str], str]
    sign: Sign
    now: Callable[[], float]
    tools: MessageTools = MessageTools()
    server_calls: bool = False
    thoughts: bool = False
    omits_thoughts: bool = False
    arguments_of: Callable[[ToolCall], Json | None] = lambda _: None
    mended: Callable[[str], Json | None] | None = None
    stops: tuple[str, ...] = ()
    pages: Sequence[FoundPage] = ()


class MessageBuilder(Fold[ShownCall]):
    """Builds the content blocks of a message.

    Args:
        run_id: the id of the run, from which the ids of the blocks are made.
        options: the options of the client.
    """

    def __init__(self, run_id: str, options: MessageOptions) -> None:
        super().__init__(options.stops)
        self._run_id = run_id
        self._options = options
        self._cited = CitedPages(options.seal, {page.url: page for page in options.pages if page.url})
        self.blocks = Blocks(sign=options.sign, cite=self._cited.citations, mended=options.mended)
        self._turn = self._number = 0  # in this message, and in its run
        self._numbered = 0  # server calls
        self._calls_client = False  # in this turn
        self._thoughts_of: dict[int, int] = {}  # the number of a turn -> the index of its block
        # The calls that are shown, by the upstream's id and the tool: the ids that they will have in a history.
        self._ids_in_history: dict[tuple[str, str], deque[str]] = {}
        self._uses = {SEARCH: 0, FETCH: 0}

    @property
    def has_enough(self) -> bool:  # type: ignore[override]  # it is only read
        """Whether the text has reached a stop sequence, so that the rest of the answer is not needed."""
        return self._stop is not None and self._stop.found is not None and not self._calls_client

    @property
    def _is_cut(self) -> bool:
        return self._stop is not None and self._stop.found is not None

    def text_event(self, text: str) -> bytes | None:
        """Add to the open block of text, and give the encoded event; None: no block is open, or the text may be cut."""
        if self.blocks.open_type != "text" or self._stop is not None:
            return None
        self.blocks.pieces.append(text)
        return _TEXT % (len(self.blocks.content) - 1, rawjson.dumps_answer(text))

    @property
    def is_writing_text(self) -> bool:
        """Whether a block of text is open."""
        return self.blocks.is_writing_text

    def take_event(self, event: RunEvent) -> Events:
        """Add an event of the run; another upstream call has blocks of its own."""
        events = super().take_event(event)
        if isinstance(event, TurnBegan):
            self._turn, self._number = self._turn + 1, event.number
            self._calls_client = False
            events += self.blocks.close_all()
        return events

    def write_thoughts(self, text: str, *, is_late: bool) -> Events:
        """Add thoughts, for which this API has one place: before the text and the calls of their turn."""
        if not self._options.thoughts or is_late or self._is_cut:
            return []
        events = self.blocks.add_thinking(text, shown=not self._options.omits_thoughts)
        self._thoughts_of[self._number] = len(self.blocks.content) - 1
        return events

    def write_text(self, text: str, citations: Sequence[Citation], logprobs: Any) -> Events:
        """Add text to the open block, or to a new one; this API has no log probabilities."""
        del logprobs
        self._cited.marks += citations
        return self.blocks.add_text(text) if text else []

    def write_refusal(self, text: str) -> Events:
        """Add the text of a refusal, which is text here."""
        return self._add_text(text, (), None)

    def close_text(self) -> Events:
        """Forget the citations of a text that was only blanks; the block is closed by the next one."""
        if not self.is_writing_text:
            self._cited.marks.clear()
        return []

    def write_client_call(self, fragment: Json) -> Events:
        """Add a fragment of a call of the client's."""
        index, function = fragment["index"], fragment.get("function") or {}
        if self._is_cut or (index and not self._options.tools.parallel):
            return []
        self._calls_client = True
        events: Events = []
        if fragment.get("id"):
            call_id = tool_use_id(fragment["id"], self._turn)
            events = self.blocks.begin_tool_use(index, call_id, function.get("name") or "")
        return events + self.blocks.add_input(index, function.get("arguments") or "")

    def server_call(self, call: ToolCall) -> ShownCall | None:
        """The blocks of a call of a hosted tool, or of another call for a client that asks for all."""
        shown = self._options.tools.shown.get(call.name)
        if shown is None and not self._options.server_calls:
            return None
        arguments = call.arguments
        if "INVALID_JSON" in parsed_input(arguments) and (repaired := self._options.arguments_of(call)):
            arguments = rawjson.dumps_answer(repaired).decode()
        self._numbered += 1
        id_in_history = server_call_id(self._run_id, self._numbered)
        self._ids_in_history.setdefault((call.id, call.name), deque()).append(id_in_history)
        own_id = shown_call_id(self._run_id, self._numbered, self._turn)
        if shown is not None:
            use = {"type": "server_tool_use", "id": own_id, "name": shown}
            return ShownCall(use, arguments, error_block(shown, own_id))
        own_id = own_id.replace("srvtoolu_", "mcptoolu_")
        use = {"type": "mcp_tool_use", "id": own_id, "name": call.name, "server_name": SERVER_NAME}
        return ShownCall(use, arguments, other_block(own_id, "", is_error=True))

    def write_server_call(self, item: ShownCall) -> Events:
        """Add the block of a complete call; that of its result stands behind all calls of the turn."""
        return self.blocks.add_server_call(item)

    def answer_calls(self, calls: Sequence[AnsweredCall]) -> Events:
        """Add the results of a turn's calls."""
        for one in calls:
            if (item := self._server_calls.get(one.resolved)) is not None:
                item.result = self._result(item, one)
        return self.blocks.end_turn()

    def carried_by(self, turn: Turn, server_tools: Mapping[str, ToolSpec]) -> OpaqueFields:
        """The fields of a turn that the client cannot bring back; asked once for each turn of the run, in order.

        Args:
            turn: a turn of the finished run.
            server_tools: the server's tools by every name under which the model may call them.
        """
        ids = list[str | None]()
        for entry, client_id in turn.entries:
            name = name_of(entry) or ""
            tool = server_tools[name].name if name in server_tools else name
            shown = self._ids_in_history.get((entry.get("id") or "", tool))
            ids.append(client_id or (shown.popleft() if shown else None))
        return carried_by(turn.message, ids)

    def sign_again(self, turn: int, carried: OpaqueFields) -> None:
        """Add fields to the signature of the thoughts of a turn, if it has any; for a message that nobody has seen."""
        if (index := self._thoughts_of.get(turn)) is not None:
            self.blocks.sign_again(index, carried)

    def finish(self, answer: Respond) -> Events:
        """Close all blocks at the end of the run."""
        if answer.finish_reason in BROKEN_OFF:  # the last input may only be incomplete
            self.blocks.mended = None
        return self._write_rest() + self.blocks.end_turn()

    def ending(self, answer: Respond) -> Json:
        """The `stop_reason` and the fields that belong to it."""
        cut = self._stop.found if self._stop is not None else None
        stop = cut or (_stop_of_upstream(answer, self._options.stops) if self._options.stops else None)
        reason = _STOP_REASONS.get(answer.finish_reason, "end_turn")
        if answer.turn.fills_context:
            reason = WINDOW_EXCEEDED
        if cut is not None:  # the client does not see the end of the upstream's answer
            reason = "end_turn"
        if any(block["type"] == "tool_use" for block in self.blocks.content) and reason == "end_turn":
            reason = "tool_use"
        elif stop is not None and reason == "end_turn":
            reason = "stop_sequence"
        details = {"type": "refusal", "category": None, "explanation": None} if reason == "refusal" else None
        sequence = stop if reason == "stop_sequence" else None
        return {"stop_reason": reason, "stop_sequence": sequence, "stop_details": details}

    def server_tool_use(self) -> Json | None:
        """The numbers of successful hosted calls; None if the client has not declared a hosted tool."""
        if not self._options.tools.hosted:
            return None
        return {f"{name}_requests": count for name, count in self._uses.items()}

    def _result(self, call: ShownCall, answered: AnsweredCall) -> Json:
        """The block with the result of a call."""
        call_id, kind, is_error = call.use["id"], call.use["name"], answered.result.failed
        if call.use["type"] == "mcp_tool_use":
            return other_block(call_id, answered.result.for_app, is_error=is_error)
        if kind == CODE:
            code = answered.result.code
            return error_block(kind, call_id) if is_error or code is None else code_block(call_id, code)
        if is_error:
            return error_block(kind, call_id, error_code(answered, is_page=kind == FETCH))
        self._uses[kind] += answered.counts
        if kind == FETCH:
            return fetch_block(call_id, answered, datetime.fromtimestamp(self._options.now(), UTC).isoformat())
        pages = pages_of(answered)
        self._cited.pages |= {page.url: page for page in pages}
        return search_block(call_id, pages, answered.content, self._options.seal)


def _stop_of_upstream(answer: Respond, stops: Sequence[str]) -> str | None:
    """The stop sequence that the upstream itself reports, in vLLM's field or in SGLang's."""
    given = (answer.turn.choice.get(key) for key in ("stop_reason", "matched_stop"))
    return next((stop for stop in given if isinstance(stop, str) and stop in stops), None)
