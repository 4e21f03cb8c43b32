"""The content of a message: chunks and answered calls of a run -> content blocks, and the events that build them."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from proxy.api.messages.blocks import Blocks, Events, ShownCall, Sign, is_complete
from proxy.api.messages.cited import CitedPages
from proxy.api.messages.conversation import shown_call_id, tool_use_id
from proxy.api.messages.pages import (
    SERVER_NAME,
    FoundPage,
    error_block,
    error_code,
    fetch_block,
    other_block,
    pages_of,
    search_block,
)
from proxy.api.messages.stops import StopFilter
from proxy.api.messages.tools import FETCH, MessageTools
from proxy.loop import rawjson
from proxy.loop.actions import AnsweredCall, Respond, Stop
from proxy.loop.carried import Carried, carried_by
from proxy.loop.chat import BROKEN_OFF, WINDOW_EXCEEDED, Json, ToolCall, ToolSpec, Turn, name_of
from proxy.loop.citations import CITATIONS, Citation, moved_back
from proxy.loop.continuation import server_call_id
from proxy.loop.offer import SEARCH
from proxy.loop.shown import CallBegan, CallEnded, CallsAnswered, RunEvent, TurnBegan
from proxy.loop.texts import without_blank_lines_before

_STOP_REASONS = {"length": "max_tokens", "content_filter": "refusal"}


class MessageOptions(Struct, frozen=True):
    """The options of a client's message.

    Attributes:
        seal: seals text for the client.
        sign: makes the signature of a turn's thoughts; see `Signatures.sign`.
        now: gives the time, for pages that are fetched.
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
    now: Callable[[], str]
    tools: MessageTools = MessageTools()
    server_calls: bool = False
    thoughts: bool = False
    omits_thoughts: bool = False
    arguments_of: Callable[[ToolCall], Json | None] = lambda _: None
    mended: Callable[[str], Json | None] | None = None
    stops: tuple[str, ...] = ()
    pages: Sequence[FoundPage] = ()

    @property
    def shows_calls(self) -> bool:
        """Whether the client is shown calls of server tools."""
        return self.server_calls or bool(self.tools.shown)


class MessageBuilder:
    """Builds the content blocks of a message; each method gives the events for what it adds.

        ( hear | take )*   finish

    Args:
        run_id: the id of the run, from which the ids of the blocks are made.
        options: the options of the client.
        hold_text: whether text is held back until the end, because it may have to be dropped.
    """

    def __init__(self, run_id: str, options: MessageOptions, *, hold_text: bool = False) -> None:
        self._run_id = run_id
        self._options = options
        self._hold_text = hold_text
        self._held: list[Json] = []  # deltas with text
        self._cited = CitedPages(options.seal, options.pages)
        self.blocks = Blocks(sign=options.sign, cite=self._cited.citations, mended=options.mended)
        self._stop = StopFilter(options.stops) if options.stops else None
        self._text_length = 0  # of the text since the last block, text that is held back included
        self._buffer = ""  # blanks that become a block only if text follows, or text behind a call that is not complete
        self._turn = self._number = 0  # in this message, and in its run
        self._has_text = self._has_thoughts = False  # of this turn
        # Those of the turn that have no result yet, by the upstream's call id, the tool and the arguments.
        self._begun: dict[tuple[str, str, str], ShownCall] = {}
        self._numbered = 0
        self._thoughts_of: dict[int, int] = {}  # the number of a turn -> the index of its block
        # The calls that are shown, by the upstream's id and the tool: the ids that they will have in a history.
        self._ids_in_history: dict[tuple[str, str], deque[str]] = {}
        self._client_calls: dict[int, tuple[str, str]] = {}  # of this turn: index -> id and name
        self._waiting: dict[int, list[str]] = {}  # arguments of client calls that wait for the end of another
        self._current: int | None = None  # the client's call that is being written
        self._uses = {SEARCH: 0, FETCH: 0}

    @property
    def has_enough(self) -> bool:
        """Whether the text has reached a stop sequence, so that the rest of the answer is not needed."""
        return self._stop is not None and self._stop.found is not None and not self._client_calls

    @property
    def wants_answers(self) -> bool:
        """Whether the client is shown calls of server tools."""
        return self._options.shows_calls

    def grow_text(self, text: str) -> int | None:
        """Add to the open text if one delta describes the change; the index of its block, or None if not."""
        if self.blocks.open_type != "text" or self._stop is not None:
            return None
        self._text_length += len(text)
        return self.blocks.grow_text(text)

    def hear(self, event: RunEvent) -> Events:
        """Add an event of the run."""
        match event:
            case TurnBegan(number):
                self._number = number
                return self._begin_turn()
            case CallBegan(call=call):
                return self._begin_call(call.id, call.name, call.arguments)
            case CallEnded():  # its result stands behind all calls of the turn
                return []
            case CallsAnswered(calls):
                return self._answered(calls)

    def _begin_turn(self) -> Events:
        """Begin the content of another upstream call, whose text is a block of its own."""
        self._held.clear()  # the text of the turn before is not the answer
        events = self._flush() + self.blocks.close()
        self._turn += 1
        self._has_text = self._has_thoughts = False
        self._client_calls, self._current = {}, None
        return events

    def take(self, chunk: Json) -> Events:
        """Add a chunk of the only choice."""
        delta: Json = chunk["choices"][0]["delta"] if chunk["choices"] else {}
        if self._hold_text and (delta.get("content") or CITATIONS in delta):
            self._held.append({key: delta.pop(key) for key in ("content", CITATIONS) if key in delta})
        return self._show(delta)

    def _show(self, delta: Json) -> Events:
        if self._stop is not None and self._stop.found is not None:
            return []
        events: Events = []
        thoughts = delta.get("reasoning_content") or delta.get("reasoning")
        if thoughts and isinstance(thoughts, str):
            events += self._add_thoughts(thoughts)
        text, citations = delta.get("content") or delta.get("refusal") or "", delta.get(CITATIONS) or ()
        if (text or citations) and isinstance(text, str):
            events += self._add_text(text, citations)
        for fragment in delta.get("tool_calls") or ():
            events += self._add_call(fragment)
        return events

    def _begin_call(self, call_id: str, tool: str, arguments: str) -> Events:
        """Add a call of a server tool, if the client wants to see it.

        Args:
            call_id: the upstream's id.
            tool: the tool's own name.
            arguments: its arguments as JSON text.
        """
        shown = self._options.tools.shown.get(tool)
        if shown is None and not self._options.server_calls:
            return []
        key = call_id, tool, arguments
        if not is_complete(arguments) and (repaired := self._options.arguments_of(ToolCall(call_id, tool, arguments))):
            arguments = rawjson.dumps_answer(repaired).decode()
        self._numbered += 1
        id_in_history = server_call_id(self._run_id, self._numbered)
        self._ids_in_history.setdefault((call_id, tool), deque()).append(id_in_history)
        own_id = shown_call_id(self._run_id, self._numbered, self._turn)
        if shown is not None:
            use = {"type": "server_tool_use", "id": own_id, "name": shown}
            call = ShownCall(use, arguments, error_block(shown, own_id))
        else:
            own_id = own_id.replace("srvtoolu_", "mcptoolu_")
            use = {"type": "mcp_tool_use", "id": own_id, "name": tool, "server_name": SERVER_NAME}
            call = ShownCall(use, arguments, other_block(own_id, "", is_error=True))
        self._begun[key] = call
        events = [] if self.blocks.has_open_call else self._flush()
        return events + self.blocks.add_server_call(call)

    def carried_by(self, turn: Turn, server_tools: Mapping[str, ToolSpec]) -> Carried:
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

    def sign_again(self, turn: int, carried: Carried) -> None:
        """Add fields to the signature of the thoughts of a turn, if it has any; for a message that nobody has seen."""
        if (index := self._thoughts_of.get(turn)) is not None:
            self.blocks.sign_again(index, carried)

    def _answered(self, calls: Sequence[AnsweredCall]) -> Events:
        """Add the results of a turn's calls, and the calls that were answered without being run."""
        events = self._flush() + self._write_all_waiting()
        for one in calls:
            key = one.call.id, one.tool or one.call.name, one.call.arguments
            if key not in self._begun:
                events += self._begin_call(*key)
            if (call := self._begun.pop(key, None)) is not None:
                call.result = self._result(call, one)
        self._begun.clear()
        return events + self.blocks.end_turn()

    def finish(self, answer: Respond) -> Events:
        """Add the text that was held back, unless it stands beside calls, and close all blocks."""
        held, self._held = self._held, []
        events: Events = []
        if answer.stop is not Stop.CLIENT_TOOL_CALLS:
            events = [event for delta in held for event in self._show(delta)]
        if answer.finish_reason in BROKEN_OFF:  # the last input may only be incomplete
            self.blocks.mended = None
        return events + self._flush() + self._write_all_waiting() + self.blocks.end_turn()

    def ending(self, answer: Respond) -> Json:
        """The `stop_reason` and the fields that belong to it."""
        cut = self._stop.found if self._stop is not None else None
        stop = cut or _stop_of_upstream(answer, self._options.stops)
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

    # -- text and thoughts --

    def _add_thoughts(self, thoughts: str) -> Events:
        """Add thoughts, unless they come after the text or the calls of their turn."""
        if self._has_thoughts:
            is_late = self.blocks.open_type != "thinking"
        else:
            is_late = self._has_text or bool(self._begun or self._client_calls)
        if not self._options.thoughts or is_late:
            return []
        events = [] if self._has_thoughts else self._flush() + self.blocks.close()
        self._has_thoughts = True
        events += self.blocks.add_thinking(thoughts, shown=not self._options.omits_thoughts)
        self._thoughts_of[self._number] = len(self.blocks.content) - 1
        return events

    def _add_text(self, text: str, citations: Sequence[Citation]) -> Events:
        """Add text, without the blank line that separates two turns of a chat: here they are two blocks."""
        if not self._has_text:
            whole, text = text, without_blank_lines_before(text)
            citations = moved_back(citations, len(whole) - len(text))
            self._has_text = bool(text.strip())
        self._cited.mark(citations, offset=self._text_length)
        self._text_length += len(text)
        if self._stop is not None:
            text = self._stop.feed(text)
        text, self._buffer = self._buffer + text, ""
        if self.blocks.has_open_call or (self.blocks.open_type != "text" and (not text or text.isspace())):
            self._buffer = text
            return []
        return self.blocks.add_text(text) if text else []

    def _flush(self) -> Events:
        """End a text: add what was held back for a stop sequence or an open call; blanks alone are dropped."""
        held = self._stop.close() if self._stop is not None else ""
        text, self._buffer = self._buffer + held, ""
        self._text_length = 0
        if held or text.strip():
            return self.blocks.add_text(text)
        if self.blocks.open_type != "text":
            self._cited.forget_marks()
        return []

    # -- calls --

    def _add_call(self, fragment: Json) -> Events:
        """Add a piece of a call of the client's. A call that begins before another is complete waits for its end."""
        index, function = fragment["index"], fragment.get("function") or {}
        if index and not self._options.tools.parallel:
            return []
        if fragment.get("id") and index not in self._client_calls:
            self._client_calls[index] = (tool_use_id(fragment["id"], self._turn), function.get("name") or "")
            self._waiting[index] = []
        arguments = function.get("arguments") or ""
        if index == self._current:  # if the block is closed, the call was complete
            return self.blocks.add_input(arguments) if self.blocks.open_type == "tool_use" else []
        if index not in self._waiting:  # another call has begun since, so this one was complete
            return []
        self._waiting[index].append(arguments)
        if not self.blocks.has_open_call:
            return self._write_waiting(index)
        return []

    def _write_waiting(self, index: int) -> Events:
        self._current, (call_id, name) = index, self._client_calls[index]
        events = self._flush() + self.blocks.begin_tool_use(call_id, name)
        return events + self.blocks.add_input("".join(self._waiting.pop(index)))

    def _write_all_waiting(self) -> Events:
        events: Events = []
        for index in sorted(self._waiting):
            events += self._write_waiting(index)
        return events

    def _result(self, call: ShownCall, answered: AnsweredCall) -> Json:
        """The block with the result of a call."""
        call_id, kind, is_error = call.use["id"], call.use["name"], answered.result.failed
        if call.use["type"] == "mcp_tool_use":
            return other_block(call_id, answered.result.for_app, is_error=is_error)
        if is_error:
            return error_block(kind, call_id, error_code(answered, is_page=kind == FETCH))
        self._uses[kind] += answered.was_run
        if kind == FETCH:
            return fetch_block(call_id, answered, self._options.now())
        pages = pages_of(answered)
        self._cited.add(pages)
        return search_block(call_id, pages, answered.content, self._options.seal)


def _stop_of_upstream(answer: Respond, stops: Sequence[str]) -> str | None:
    """The stop sequence that the upstream itself reports, in vLLM's field or in SGLang's."""
    if not stops:
        return None
    given = (answer.turn.choice.get(key) for key in ("stop_reason", "matched_stop"))
    return next((stop for stop in given if isinstance(stop, str) and stop in stops), None)
