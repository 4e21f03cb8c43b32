"""The content of a message: chunks and answered calls of a run -> content blocks, and the events that build them."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct

from proxy.api.fold import Fold
from proxy.api.messages import pages
from proxy.api.messages.blocks import Blocks
from proxy.api.messages.call_ids import shown_call_id, tool_use_id
from proxy.api.messages.inputs import parsed_input
from proxy.api.messages.request import MessagesRequest
from proxy.api.messages.tools import CODE, FETCH, MessageTools
from proxy.api.reply import Events
from proxy.api.request import ResolvedRequest
from proxy.api.sealed import Sealer
from proxy.api.stops import StopFilter
from proxy.loop.actions import AnsweredCall, Respond
from proxy.loop.offer import SEARCH
from proxy.loop.run_events import CallBegan, CallEnded, CallsAnswered, RunEvent, TurnBegan
from proxy.turn.call_ids import server_call_id
from proxy.turn.citations import Citation
from proxy.turn.opaque_fields import OpaqueFields, carried_by
from proxy.wire import rawjson
from proxy.wire.chat import WINDOW_EXCEEDED, Json, ToolCall, ToolSpec, Turn, name_of

_TEXT = (
    b"event: content_block_delta\n"
    b'data: {"type":"content_block_delta","index":%d,"delta":{"type":"text_delta","text":%b}}\n\n'
)
_STOP_REASONS = {"length": "max_tokens", "content_filter": "refusal"}


class MessageOptions(Struct, frozen=True):
    """The parts of a request that shape its message.

    Attributes:
        fields: the client's fields.
        tools: which server tools the client is shown, and whether it takes several calls in one turn.
        found: the pages that earlier searches of the conversation have found.
        sealer: seals what the client is to send back.
        now: the time, in seconds since 1970, for pages that are fetched.
    """

    fields: MessagesRequest
    tools: MessageTools
    found: Sequence[pages.FoundPage]
    sealer: Sealer
    now: Callable[[], float]


class MessageBuilder(Fold):
    """Builds the content blocks of a message.

    Attributes:
        uses: the numbers of successful calls of hosted tools; None: the client has declared none of them.
    """

    def __init__(self, run_id: str, request: ResolvedRequest, options: MessageOptions) -> None:
        stops: Sequence[str] = request.chat.get("stop", ())
        self._stop = StopFilter(stops) if stops else None
        self._stops, thinking = stops, options.fields.thinking
        self._run_id = run_id
        self._options = options
        self._toolset = request.own.toolset
        self._shows_others = request.tool_events != "none"  # calls of server tools that the client has not declared
        self.blocks = Blocks(
            options.sealer,
            mended=self._toolset.mended,
            shows_thoughts=thinking is None or thinking.display != "omitted",
            pages={page.url: page for page in options.found if page.url},
        )
        self._turn = self._number = 0  # in this message, and in its run
        self._has_calls = False  # in this turn
        self._numbered = 0  # server calls
        self._calls: list[tuple[ToolCall, Json]] = []  # the server calls of this turn, and their blocks
        # The calls that are shown, by the upstream's id and the tool: the ids that they will have in a history.
        self._ids_in_history: dict[tuple[str, str], deque[str]] = {}
        self.uses = {f"{SEARCH}_requests": 0, f"{FETCH}_requests": 0} if options.tools.hosted else None

    def text_event(self, text: str) -> bytes | None:
        """Add to the open block of text, and give the encoded event; None: no block is open, or the text may be cut."""
        if self.blocks.open_type != "text" or self._stop is not None:
            return None
        self.blocks.pieces.append(text)
        return _TEXT % (len(self.blocks.content) - 1, rawjson.dumps_answer(text))

    def take_event(self, event: RunEvent) -> Events:
        """Add an event of the run; another upstream call has blocks of its own."""
        match event:
            case TurnBegan(number):
                events = self.end_turn(())
                self._turn, self._number = self._turn + 1, number
                self._has_text = self._has_calls = False
                return events
            case CallBegan(_, call):
                return self._begin_server_call(call)
            case CallEnded():
                return []
            case CallsAnswered(answered):
                return self.end_turn(answered)

    def write_thoughts(self, text: str) -> Events:
        """Add thoughts, for which this API has one place: before the text and the calls of their turn."""
        if not self._options.fields.thinks or self._has_text or self._has_calls:
            return []
        return self.blocks.add_thinking(text, self._number)

    def write_text(self, text: str, citations: Sequence[Citation], logprobs: Any) -> Events:
        """Add text to the open block, or to a new one; this API has no log probabilities."""
        del logprobs
        self.blocks.marks += citations
        return self.blocks.add(text) if text else []

    def write_refusal(self, text: str) -> Events:
        """Add the text of a refusal, which is text here."""
        return self.add_text(text)

    def write_client_call(self, fragment: Json) -> Events:
        """Add a fragment of a call of the client's."""
        index, function = fragment["index"], fragment.get("function") or {}
        self._has_calls = True
        if self.has_enough or (index and not self._options.tools.parallel):
            return []
        self._calls_client = True
        events: Events = []
        if fragment.get("id"):
            call_id = tool_use_id(fragment["id"], self._turn)
            events = self.blocks.begin_tool_use(index, call_id, function.get("name") or "")
        return events + self.blocks.add_input(index, function.get("arguments") or "")

    def _begin_server_call(self, call: ToolCall) -> Events:
        """Add the block of a call of a hosted tool, or of another call for a client that asks for all."""
        shown = self._options.tools.shown.get(call.name)
        if shown is None and not self._shows_others:
            return []
        self._has_calls = True
        self._numbered += 1
        id_in_history = server_call_id(self._run_id, self._numbered)
        self._ids_in_history.setdefault((call.id, call.name), deque()).append(id_in_history)
        given = parsed_input(call.arguments)
        if "INVALID_JSON" in given:
            given = self._toolset.arguments_of(call) or given
        kind = "server_tool_use" if shown is not None else "mcp_tool_use"
        block: Json = {"type": kind, "id": shown_call_id(kind, self._run_id, self._numbered, self._turn)}
        block |= {"name": call.name, "server_name": pages.SERVER_NAME} if shown is None else {"name": shown}
        block["input"] = given
        self._calls.append((call, block))
        return self.end_text() + self.blocks.add(block)

    def end_turn(self, answered: Sequence[AnsweredCall]) -> Events:
        """Close all blocks, and add the results of the turn's server calls; a call without an answer has failed."""
        events = self.end_text() + self.blocks.close()
        answers = {one.resolved: one for one in reversed(answered)}
        for call, use in self._calls:
            events += self.blocks.add(self._result(use, answers.pop(call, None)))
        self._calls = []
        return events

    def carried_by(self, turn: Turn, server_tools: Mapping[str, ToolSpec]) -> OpaqueFields:
        """The fields of a turn that the client cannot bring back; asked once for each turn of a run, in order.

        `server_tools` are the server's tools by every name under which the model may call them.
        """
        ids = list[str | None]()
        for entry, client_id in turn.entries:
            name = name_of(entry) or ""
            tool = server_tools[name].name if name in server_tools else name
            shown = self._ids_in_history.get((entry.get("id") or "", tool))
            ids.append(client_id or (shown.popleft() if shown else None))
        return carried_by(turn.message, ids)

    def ending(self, answer: Respond) -> Json:
        """The `stop_reason` and the fields that belong to it."""
        cut = self._stop.found if self._stop is not None else None
        stop = cut or (_stop_of_upstream(answer, self._stops) if self._stops else None)
        reason = _STOP_REASONS.get(answer.finish_reason, "end_turn")
        if answer.turn.fills_context:
            reason = WINDOW_EXCEEDED
        if cut is not None:  # the client does not see the end of the upstream's answer
            reason = "end_turn"
        if reason == "end_turn" and self._calls_client:
            reason = "tool_use"
        elif reason == "end_turn" and stop is not None:
            reason = "stop_sequence"
        details = {"type": "refusal", "category": None, "explanation": None} if reason == "refusal" else None
        sequence = stop if reason == "stop_sequence" else None
        return {"stop_reason": reason, "stop_sequence": sequence, "stop_details": details}

    def _result(self, use: Json, answered: AnsweredCall | None) -> Json:
        """The block with the result of a call."""
        call_id, kind, is_other = use["id"], use["name"], use["type"] == "mcp_tool_use"
        if answered is None:
            return pages.other_block(call_id, "", is_error=True) if is_other else pages.error_block(kind, call_id, "")
        result = answered.result
        if is_other:
            return pages.other_block(call_id, result.for_app, is_error=result.failed)
        if result.failed or (kind == CODE and result.code is None):
            return pages.error_block(kind, call_id, result.outcome)
        if kind == CODE and result.code is not None:
            return pages.code_block(call_id, result.code)
        if self.uses is not None:
            self.uses[f"{kind}_requests"] += answered.counts
        if kind == FETCH:
            return pages.fetch_block(call_id, answered, datetime.fromtimestamp(self._options.now(), UTC).isoformat())
        found = pages.pages_of(answered)
        self.blocks.pages |= {page.url: page for page in found}
        return pages.search_block(call_id, found, answered.content, self._options.sealer.seal_text)


def _stop_of_upstream(answer: Respond, stops: Sequence[str]) -> str | None:
    """The stop sequence that the upstream itself reports, in vLLM's field or in SGLang's."""
    given = (answer.turn.choice.get(key) for key in ("stop_reason", "matched_stop"))
    return next((stop for stop in given if isinstance(stop, str) and stop in stops), None)
