"""The `output` of a response: the chunks and progress events of a run -> items, and the events that build them.

Messages and reasoning follow one another. Calls and searches may be open at the same time, because a tool may begin
while its turn is still being written. The text of each turn is a message of its own.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

from msgspec import Struct

from proxy.api.fold import Fold
from proxy.api.reply import Events
from proxy.api.responses.items import ClientCall, CodeCall, Item, McpCall, Message, Reasoning, SearchCall, Status
from proxy.api.responses.tools import Kind, ResponseTools
from proxy.loop.actions import Respond
from proxy.loop.offer import SEARCH
from proxy.loop.results import ToolResult
from proxy.loop.run_events import CallBegan, CallEnded, CallsAnswered, RunEvent, TurnBegan
from proxy.turn.citations import Citation
from proxy.wire import rawjson
from proxy.wire.chat import BROKEN_OFF, Json, ToolCall
from proxy.wire.search import queries_of

ItemT = TypeVar("ItemT", bound=Item)
_TEXT_DELTA = b'event: response.output_text.delta\ndata: %b%b,"sequence_number":%d}\n\n'
_PREFIXES: Mapping[Kind, str] = {"function": "fc", "custom": "ctc", "tool_search": "tsc"}  # of the ids of calls
_NO_SOURCES: Mapping[str, str] = MappingProxyType({})


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


ServerCall: TypeAlias = SearchCall | CodeCall | McpCall


class OutputBuilder(Fold):
    """Builds the items of an output.

    Args:
        run_id: the id of the run, from which the ids of the items are made.
        options: the options of the client.
        sources: URL -> title of the pages that earlier runs have found.

    Attributes:
        run_id: the id of the run.
        model: the upstream's name for the model, as far as it was known before the first item; empty: it was not.
        numbers: of the events of a stream.
    """

    def __init__(
        self,
        run_id: str,
        options: OutputOptions,
        sources: Mapping[str, str] = _NO_SOURCES,
    ) -> None:
        self.run_id = run_id
        self._options = options
        self.model = ""
        self.numbers = count()
        self._items: list[Item] = []
        self._current: Message | Reasoning | None = None
        self._calls: dict[int, ClientCall] = {}
        self._server_calls: dict[ToolCall, ServerCall] = {}  # the items of this turn's server calls
        self._sources = {**sources}

    @property
    def items(self) -> list[Json]:
        """The items in their present state."""
        return [item.as_json() for item in self._items]

    def take(self, chunk: Json) -> Events:
        """Add a chunk of the only choice."""
        self._learn_model(chunk.get("model"))
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
                self._learn_model(model)
                if (item := self._server_call(call)) is None:
                    return []
                self._server_calls[call] = item
                return self.end_text() + item.open()
            case CallEnded(_, call, result):
                return self._end_server_call(self._server_calls.get(call), result)
            case CallsAnswered():
                return self.end_text()

    def _learn_model(self, model: Any) -> None:
        if not self._items and isinstance(model, str) and model:
            self.model = model

    def text_event(self, text: str) -> bytes | None:
        """Add to the open message, and give the encoded event; None: no message is open."""
        beginning = self._current.grow_text(text) if isinstance(self._current, Message) else b""
        return _TEXT_DELTA % (beginning, rawjson.dumps_answer(text), next(self.numbers)) if beginning else None

    def write_thoughts(self, text: str) -> Events:
        """Add thoughts to the open reasoning, or to a new item, which may stand anywhere."""
        if isinstance(self._current, Reasoning):
            return self._current.append_text(text)
        events = self.end_text()
        reasoning = self._new(Reasoning, "rs", summarised=self._options.summary, seal=self._options.seal)
        self._current = reasoning
        return events + reasoning.open() + reasoning.append_text(text)

    def write_text(self, text: str, citations: Sequence[Citation], logprobs: Any) -> Events:
        """Add text to the open message, or to a new one."""
        message, opening = self._message()
        return opening + message.append_text(text, _logprobs(logprobs) if logprobs else (), citations)

    def write_refusal(self, text: str) -> Events:
        """Add the text of a refusal to the open message, or to a new one; text behind it is another part."""
        self._position, self._is_writing = 0, True
        message, opening = self._message()
        return opening + message.append_refusal(text)

    def annotate(self, given: Sequence[Json]) -> None:
        """Add the upstream's own annotations to the open message."""
        if isinstance(self._current, Message):
            self._current.add_annotations(given)

    def end_text(self) -> Events:
        """End the open message or reasoning."""
        return super().end_text() + self._close_text()

    def _close_text(self) -> Events:
        current, self._current = self._current, None
        return self._end(current, "completed") if current is not None else []

    def write_client_call(self, fragment: Json) -> Events:
        """Add a fragment of a call of the client's, which may be open beside others."""
        call = self._calls.get(fragment["index"])
        function = fragment.get("function") or {}
        events: Events = []
        if call is None or fragment.get("id"):
            name = self._options.tools.client_name_of(function.get("name") or "")
            call = self._new(ClientCall, _PREFIXES[name.kind], fragment["id"], name)
            self._calls[fragment["index"]] = call
            events += call.open()
        return events + call.append_arguments(function.get("arguments") or "")

    def _server_call(self, call: ToolCall) -> ServerCall | None:
        """The item of a declared hosted tool, or of another call for a client that asks for all."""
        if call.name == SEARCH and self._options.tools.search:
            arguments = self._options.arguments_of(call) or {}
            # A `web_search` that the operator has defined may call its argument `q`.
            query = next((arguments[name] for name in ("query", "q") if isinstance(arguments.get(name), str)), "")
            queries, _ = queries_of({**arguments, "query": query})
            return self._new(SearchCall, "ws", queries)
        if call.name == self._options.tools.code_tool:
            code = (self._options.arguments_of(call) or {}).get("code")
            return self._new(CodeCall, "ci", code if isinstance(code, str) else "")
        if self._options.server_calls:
            return self._new(McpCall, "mcp", call.name, call.arguments)
        return None

    def _end_server_call(self, item: ServerCall | None, result: ToolResult) -> Events:
        """Close the item of a call with what is shown of its result."""
        self._sources |= result.sources
        if item is None or item.status != "in_progress":
            return []
        match item:
            case SearchCall() if self._options.sources:
                item.sources = [] if result.failed else list(result.sources)
            case CodeCall() if self._options.code_outputs and not result.failed:
                item.logs = result.text
            case McpCall() if result.failed:
                item.error = result.for_app
        return item.close("failed" if result.failed else "completed")

    def finish(self, answer: Respond, *, carried: str | None = None) -> Events:
        """Close all items.

        Args:
            answer: the end of the run.
            carried: the sealed content that the client is to send back; it becomes an item without text.
        """
        self._learn_model(answer.turn.envelope.get("model"))
        events = self.add_text("", is_last=True)
        broken_off = answer.finish_reason in BROKEN_OFF  # the model was stopped in the middle of the last open item
        # Server calls that are still open were begun early, in a turn that was not completed.
        written = (item for item in self._items if not isinstance(item, ServerCall))
        last = max((item.index for item in written if item.status == "in_progress"), default=None)
        for item in self._items:
            if item.status == "in_progress":
                events += self._end(item, "incomplete" if broken_off and item.index == last else "completed")
        self._current = None
        if carried is not None:
            item = self._new(Reasoning, "rs", sealed=carried)
            events += item.open() + item.close("completed")
        return events

    def fail(self) -> Events:
        """Close all items after a failure in the middle of the run: those that are open are incomplete."""
        self._current = None
        opened = [item for item in self._items if item.status == "in_progress"]
        return [event for item in opened for event in self._end(item, "incomplete")]

    def _end(self, item: Item, status: Status) -> Events:
        if isinstance(item, Message):
            item.sources = self._sources
        if isinstance(item, ServerCall):  # announced in a turn that was cut off, or failed and was retried
            status = "failed"
        if isinstance(item, SearchCall) and self._options.sources:
            item.sources = ()
        return item.close(status)

    def _message(self) -> tuple[Message, Events]:
        """The message that is being written, and the events that open it if it is a new one."""
        if isinstance(self._current, Message):
            return self._current, []
        closing = self._close_text()
        message = self._current = self._new(Message, "msg")
        return message, closing + message.open()

    def _new(self, kind: Callable[..., ItemT], prefix: str, *fields: Any, **named: Any) -> ItemT:
        index = len(self._items)
        item = kind(*fields, id=f"{prefix}_{self.run_id}_{index}", index=index, **named)
        self._items.append(item)
        return item


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
