"""The `output` of a response: the chunks and progress events of a run -> items, and the events that build them.

Messages and reasoning follow one another. Calls and searches may be open at the same time, because a tool may begin
while its turn is still being written. The text of each turn is a message of its own.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any, TypeVar

from msgspec import Struct

from proxy.api.fold import Fold
from proxy.api.reply import Events
from proxy.api.responses.conversation import CODE_CALL
from proxy.api.responses.items import (
    ID_PREFIXES,
    MCP_CALL,
    SEARCH_CALL,
    ClientCall,
    Item,
    Message,
    PartKind,
    Reasoning,
    ServerCall,
    Status,
    client_call,
    code_call,
    mcp_call,
    search_call,
)
from proxy.api.responses.tools import TYPES_OF_CALLS, ResponseTools
from proxy.loop.actions import Respond
from proxy.loop.offer import SEARCH
from proxy.loop.results import ToolResult
from proxy.loop.run_events import CallBegan, CallEnded, CallsAnswered, RunEvent, TurnBegan
from proxy.turn.citations import Citation
from proxy.wire import rawjson
from proxy.wire.chat import BROKEN_OFF, Json, ToolCall
from proxy.wire.code import CODE_INTERPRETER
from proxy.wire.search import queries_of

ItemT = TypeVar("ItemT", bound=Item)
_TEXT_DELTA = b'event: response.output_text.delta\ndata: %b%b,"sequence_number":%d}\n\n'


class OutputOptions(Struct, frozen=True):
    """The options of a client's output.

    Attributes:
        tools: the client's names for its tools, and which hosted tools it has declared.
        arguments_of: reads the arguments of a search, as `Toolset.arguments_of` does.
        server_calls: whether the calls of other server tools are shown as well.
        sources: whether the pages that searches have found are shown.
        code_outputs: whether it is shown what came of code that was run.
        summary: whether reasoning is shown as a summary as well.
        seal: makes the `encrypted_content` of reasoning; None: the client does not want it.
    """

    tools: ResponseTools = ResponseTools()
    arguments_of: Callable[[ToolCall], Json | None] = lambda _: None
    server_calls: bool = False
    sources: bool = False
    code_outputs: bool = False
    summary: bool = False
    seal: Callable[[str], str] | None = None


class OutputBuilder(Fold):
    """Builds the items of an output. `sources` are the pages that earlier runs have found, URL -> title.

    Attributes:
        run_id: the id of the run, from which the ids of the items are made.
        model: the `model` of the upstream, if it was sent before the first item.
        numbers: of the events of a stream.
    """

    def __init__(self, run_id: str, options: OutputOptions, sources: Mapping[str, str]) -> None:
        self.run_id = run_id
        self._options = options
        self.model: Any = None
        self.numbers = count()
        self._items: list[Item] = []
        self._current: Message | Reasoning | None = None
        self._calls: dict[int, ClientCall] = {}
        self._server_calls: dict[ToolCall, ServerCall] = {}  # the items of this turn's server calls
        self._sources = {**sources}

    @property
    def items(self) -> list[Json]:
        """The items in their present state."""
        return [item.json for item in self._items]

    def take(self, chunk: Json) -> Events:
        """Add a chunk of the only choice."""
        if not self._items:
            self.model = chunk.get("model") or self.model
        return super().take(chunk)

    def take_event(self, event: RunEvent) -> Events:
        """Add an event of the run."""
        match event:
            case TurnBegan():
                self._server_calls = {}
                events = self.end_text()
                self._has_text = False
                return events
            case CallBegan(_, call, model):
                if not self._items:
                    self.model = model or self.model
                if (item := self._server_call(call)) is None:
                    return []
                self._server_calls[call] = item
                return self.end_text() + item.open()
            case CallEnded(_, call, result):
                return self._end_server_call(self._server_calls.get(call), result)
            case CallsAnswered():
                return self.end_text()

    def text_event(self, text: str) -> bytes | None:
        """Add to the open text, and give the encoded event; None: no text is open."""
        part = self._current.part if isinstance(self._current, Message) else None
        if part is None or not part.delta_head:
            return None
        part.pieces.append(text)
        return _TEXT_DELTA % (part.delta_head, rawjson.dumps_answer(text), next(self.numbers))

    def write_thoughts(self, text: str) -> Events:
        """Add thoughts to the open reasoning, or to a new item, which may stand anywhere."""
        if isinstance(self._current, Reasoning):
            return self._current.append_text(text)
        events = self.end_text()
        how = {"summarised": self._options.summary, "seal": self._options.seal}
        reasoning = self._current = self._new(Reasoning, "reasoning", {"summary": [], "content": []}, **how)
        return events + reasoning.open() + reasoning.append_text(text)

    def write_text(self, text: str, citations: Sequence[Citation], logprobs: Any) -> Events:
        """Add text to the open message, or to a new one."""
        return self._write("output_text", text, _logprobs(logprobs) if logprobs else (), citations)

    def write_refusal(self, text: str) -> Events:
        """Add the text of a refusal to the open message, or to a new one; text behind it is another part."""
        self._position, self._is_writing = 0, True
        return self._write("refusal", text)

    def _write(
        self, kind: PartKind, text: str, logprobs: Sequence[Json] = (), citations: Sequence[Citation] = ()
    ) -> Events:
        events: Events = []
        if not isinstance(self._current, Message):
            events = self._close_text()
            begun = {"role": "assistant", "content": []}
            self._current = self._new(Message, "message", begun, sources=self._sources)
            events += self._current.open()
        return events + self._current.append(kind, text, logprobs, citations)

    def annotate(self, given: Sequence[Json]) -> None:
        """Add the upstream's own annotations to the open text."""
        if isinstance(self._current, Message) and self._current.part is not None:
            self._current.part.annotations += given

    def end_text(self) -> Events:
        """End the open message or reasoning."""
        return super().end_text() + self._close_text()

    def _close_text(self) -> Events:
        current, self._current = self._current, None
        return current.close("completed") if current is not None else []

    def write_client_call(self, fragment: Json) -> Events:
        """Add a fragment of a call of the client's, which may be open beside others."""
        call = self._calls.get(fragment["index"])
        function = fragment.get("function") or {}
        events: Events = []
        if call is None or fragment.get("id"):
            name = self._options.tools.client_name_of(function.get("name") or "")
            call = self._new(ClientCall, TYPES_OF_CALLS[name.kind], client_call(fragment["id"], name), name)
            self._calls[fragment["index"]] = call
            events += call.open()
        return events + call.append_arguments(function.get("arguments") or "")

    def _server_call(self, call: ToolCall) -> ServerCall | None:
        """The item of a declared hosted tool, or of another call for a client that asks for all."""
        if call.name == self._options.tools.hosted.get(SEARCH):
            arguments = self._options.arguments_of(call) or {}
            # A `web_search` that the operator has defined may call its argument `q`.
            query = next((arguments[name] for name in ("query", "q") if isinstance(arguments.get(name), str)), "")
            queries, _ = queries_of({**arguments, "query": query})
            return self._new(ServerCall, SEARCH_CALL, *search_call(queries, shows_sources=self._options.sources))
        if call.name == self._options.tools.hosted.get(CODE_INTERPRETER):
            code = (self._options.arguments_of(call) or {}).get("code")
            return self._new(ServerCall, CODE_CALL, *code_call(code if isinstance(code, str) else ""))
        if self._options.server_calls:
            return self._new(ServerCall, MCP_CALL, *mcp_call(call.name, call.arguments))
        return None

    def _end_server_call(self, item: ServerCall | None, result: ToolResult) -> Events:
        """Close the item of a call with what is shown of its result."""
        self._sources |= result.sources
        if item is None or not item.is_open:
            return []
        match item.json["type"]:
            case "web_search_call" if self._options.sources and not result.failed:
                item.ended["action"]["sources"] = [{"type": "url", "url": url} for url in result.sources]
            case "code_interpreter_call" if self._options.code_outputs and not result.failed:
                item.ended["outputs"] = [{"type": "logs", "logs": result.text}]
            case "mcp_call" if result.failed:
                content = [{"type": "text", "text": result.for_app}]
                item.ended["error"] = {"type": "mcp_tool_execution_error", "content": content}
        return item.close("failed" if result.failed else "completed")

    def finish(self, answer: Respond, *, carried: str | None = None) -> Events:
        """Close all items; `carried` is sealed content for the client to send back, in an item without text."""
        if not self._items:
            self.model = answer.turn.envelope.get("model") or self.model
        events = self.add_text("", is_last=True)
        opened = [item for item in self._items if item.is_open]
        # The model was stopped in the middle of the last open item that it wrote itself. Server calls that are still
        # open were begun early, in a turn that was not completed.
        written = [item for item in opened if not isinstance(item, ServerCall)]
        cut = written[-1] if written and answer.finish_reason in BROKEN_OFF else None
        for item in opened:
            events += _closed(item, "incomplete" if item is cut else "completed")
        self._current = None
        if carried is not None:
            begun = {"summary": [], "content": [], "encrypted_content": carried}
            item = self._new(Item, "reasoning", begun)
            events += item.open() + item.close("completed")
        return events

    def fail(self) -> Events:
        """Close all items after a failure in the middle of the run: those that are open are incomplete."""
        self._current = None
        opened = [item for item in self._items if item.is_open]
        return [event for item in opened for event in _closed(item, "incomplete")]

    def _new(self, item: Callable[..., ItemT], kind: str, begun: Json, *fields: Any, **named: Any) -> ItemT:
        index = len(self._items)
        head = {"id": f"{ID_PREFIXES[kind]}_{self.run_id}_{index}", "type": kind, "status": "in_progress"}
        made = item(*fields, index=index, json={**head, **begun}, **named)
        self._items.append(made)
        return made


def _closed(item: Item, status: Status) -> Events:
    """The events that close an item, with a call that was announced in a turn that was cut off or retried as failed."""
    return item.close("failed" if isinstance(item, ServerCall) else status)


def _logprobs(logprobs: Any) -> list[Json]:
    """The log probabilities of a choice's tokens, with every key that the Responses API requires."""
    entries = _objects(logprobs.get("content")) if isinstance(logprobs, dict) else ()
    made: list[Json] = []
    for entry in entries:
        top = [{**one, "bytes": one.get("bytes") or []} for one in _objects(entry.get("top_logprobs"))]
        made.append({**entry, "bytes": entry.get("bytes") or [], "top_logprobs": top})
    return made


def _objects(listed: Any) -> list[Json]:
    return [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
