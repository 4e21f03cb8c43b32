"""The `output` of a response: the chunks and progress events of a run -> items, and the events that build them.

Messages and reasoning follow one another. Calls and searches may be open at the same time, because a tool may begin
while its turn is still being written. The text of each turn is a message of its own.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

from msgspec import Struct

from proxy.api.responses.call_items import ClientCall, McpCall, SearchCall
from proxy.api.responses.items import Events, Item, Message, Reasoning, Status
from proxy.api.responses.tools import Kind, ResponseTools
from proxy.loop.actions import Respond
from proxy.loop.chat import BROKEN_OFF, Json, ToolCall
from proxy.loop.citations import CITATIONS, Citation, moved_back
from proxy.loop.offer import SEARCH
from proxy.loop.results import ToolResult
from proxy.loop.shown import CallBegan, CallEnded, CallsAnswered, RunEvent, TurnBegan
from proxy.loop.texts import without_blank_lines_before

ItemT = TypeVar("ItemT", bound=Item)
_PREFIXES: Mapping[Kind, str] = {"function": "fc", "custom": "ctc", "tool_search": "tsc"}  # of the ids of calls
ANNOTATIONS = "annotations"  # the key of the upstream's own annotations in a message or a delta
_TEXT = ("content", CITATIONS, ANNOTATIONS)  # the keys of a delta for text and its citations
_NO_SOURCES: Mapping[str, str] = MappingProxyType({})


class OutputOptions(Struct, frozen=True):
    """The options of a client's output.

    Attributes:
        tools: the client's names for its tools, and whether it has declared a search.
        arguments_of: reads the arguments of a search, as `Toolset.arguments_of` does.
        server_calls: whether the calls of other server tools are shown as well.
        sources: whether the pages that searches have found are shown.
        summary: whether reasoning is shown as a summary as well.
        seal: makes the `encrypted_content` of reasoning; None: the client does not want it.
    """

    tools: ResponseTools = ResponseTools()
    arguments_of: Callable[[ToolCall], Json | None] = lambda _: None
    server_calls: bool = False
    sources: bool = False
    summary: bool = False
    seal: Callable[[str], str] | None = None


class OutputBuilder:
    """Builds the items of an output; each method gives the events for what it adds.

        ( hear | take )*   finish

    Args:
        run_id: the id of the run, from which the ids of the items are made.
        options: the options of the client.
        sources: URL -> title of the pages that earlier runs have found.
        hold_text: whether text is held back until the end, because it may have to be dropped.

    Attributes:
        model: the upstream's name for the model, as far as it was known before the first item; empty: it was not.
        has_enough: false: the client needs the whole answer.
        wants_answers: false: the end of each call has all that is shown of it.
    """

    has_enough = wants_answers = False

    def __init__(
        self,
        run_id: str,
        options: OutputOptions,
        sources: Mapping[str, str] = _NO_SOURCES,
        *,
        hold_text: bool = False,
    ) -> None:
        self._run_id = run_id
        self._options = options
        self._hold_text = hold_text
        self._held: list[Json] = []  # choices with text
        self.model = ""
        self._items: list[Item] = []
        self._current: Message | Reasoning | None = None
        self._calls: dict[int, ClientCall] = {}
        self._server_calls: dict[tuple[int, ToolCall], SearchCall | McpCall] = {}  # those without a result, by turn
        self._sources = {**sources}
        self._has_text = False

    @property
    def items(self) -> list[Json]:
        """The items in their present state."""
        return [item.as_json() for item in self._items]

    def take(self, chunk: Json) -> Events:
        """Add a chunk."""
        self._learn_model(chunk.get("model"))
        events: Events = []
        for choice in chunk["choices"]:
            calls = bool(choice["delta"].get("tool_calls"))
            if self._hold_text and not calls and any(choice["delta"].get(key) for key in _TEXT):
                self._held.append({**choice})
                continue
            if calls:  # they are the client's, so this turn is the last one; its text precedes its calls
                events += self._release_held()
            events += self._show(choice)
        return events

    def hear(self, event: RunEvent) -> Events:
        """Add an event of the run."""
        match event:
            case TurnBegan():
                self._held.clear()  # the text of the turn before is not the answer
                self._has_text = False  # each turn's text is a message of its own
                return self._end_current()
            case CallBegan(turn, call, model):
                self._learn_model(model)
                return self._begin_server_call(turn, call)
            case CallEnded(turn, call, result):
                return self._end_server_call(turn, call, result)
            case CallsAnswered():  # a call that was not run is not shown
                return []

    def _learn_model(self, model: Any) -> None:
        if not self._items and isinstance(model, str) and model:
            self.model = model

    def _release_held(self) -> Events:
        held, self._held = self._held, []
        return [event for choice in held for event in self._show(choice)]

    def grow_text(self, text: str) -> bytes:
        """Add to the open text if one delta describes the change; see `Message.grow_text`."""
        return self._current.grow_text(text) if isinstance(self._current, Message) else b""

    def _show(self, choice: Json) -> Events:
        """Add the parts of a choice's delta that the client may see."""
        delta: Json = choice["delta"]
        events: Events = []
        if reasoning := _text(delta, "reasoning_content") or _text(delta, "reasoning"):
            events += self._add_reasoning(reasoning)
        text, cited = _text(delta, "content"), delta.get(CITATIONS) or ()
        if text or cited:
            events += self._add_text(text, _logprobs(choice.get("logprobs")), cited)
        if refusal := _text(delta, "refusal"):
            message, opening = self._message()
            events += opening + message.append_refusal(refusal)
        if isinstance(self._current, Message) and (given := _objects(delta.get(ANNOTATIONS))):
            self._current.add_annotations(given)
        for fragment in delta.get("tool_calls") or ():
            events += self._add_call(fragment)
        return events

    def _add_text(self, text: str, logprobs: Sequence[Json], citations: Sequence[Citation]) -> Events:
        """Add text, without the blank line that separates two turns of a chat: here they are two messages."""
        if not self._has_text:
            whole, text = text, without_blank_lines_before(text)
            citations = moved_back(citations, len(whole) - len(text))
        elif text.isspace() and not isinstance(self._current, Message):  # blanks behind a call are no message
            return []
        if not text and not (citations and isinstance(self._current, Message)):
            return []
        self._has_text = True
        message, opening = self._message()
        return opening + message.append_text(text, logprobs, citations)

    def _add_reasoning(self, text: str) -> Events:
        if isinstance(self._current, Reasoning):
            return self._current.append_text(text)
        events = self._end_current()
        reasoning = self._new(Reasoning, "rs", summarised=self._options.summary, seal=self._options.seal)
        self._current = reasoning
        return events + reasoning.open() + reasoning.append_text(text)

    def _end_server_call(self, turn: int, call: ToolCall, result: ToolResult) -> Events:
        self._sources |= result.sources
        item = self._server_calls.pop((turn, call), None)
        if item is None:
            return []
        match item:
            case SearchCall() if self._options.sources:
                item.sources = [] if result.failed else list(result.sources)
            case McpCall() if result.failed:
                item.error = result.for_app
        return item.close("failed" if result.failed else "completed")

    def finish(self, answer: Respond, *, carried: str | None = None) -> Events:
        """Add the text that was held back, and close all items.

        Args:
            answer: the end of the run.
            carried: the sealed content that the client is to send back; it becomes an item without text.
        """
        self._learn_model(answer.turn.envelope.get("model"))
        events = self._release_held()
        broken_off = answer.finish_reason in BROKEN_OFF  # the model was stopped in the middle of the last open item
        # Server calls that are still open were begun early, in a turn that was not completed.
        written = (item for item in self._items if not isinstance(item, (SearchCall, McpCall)))
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
        if isinstance(item, (SearchCall, McpCall)):  # announced in a turn that was cut off, or failed and was retried
            status = "failed"
        if isinstance(item, SearchCall) and self._options.sources:
            item.sources = ()
        return item.close(status)

    def _end_current(self) -> Events:
        current, self._current = self._current, None
        return self._end(current, "completed") if current is not None else []

    def _message(self) -> tuple[Message, Events]:
        """The message that is being written, and the events that open it if it is a new one."""
        if isinstance(self._current, Message):
            return self._current, []
        closing = self._end_current()
        message = self._current = self._new(Message, "msg")
        return message, closing + message.open()

    def _add_call(self, fragment: Json) -> Events:
        call = self._calls.get(fragment["index"])
        function = fragment.get("function") or {}
        events: Events = []
        if call is None or fragment.get("id"):
            events += self._end_current()
            name = self._options.tools.client_name_of(function.get("name") or "")
            call = self._new(ClientCall, _PREFIXES[name.kind], fragment["id"], name)
            self._calls[fragment["index"]] = call
            events += call.open()
        return events + call.append_arguments(function.get("arguments") or "")

    def _begin_server_call(self, turn: int, call: ToolCall) -> Events:
        item = self._server_item(call)
        if item is None:
            return []
        self._server_calls[turn, call] = item
        return self._end_current() + item.open()

    def _server_item(self, call: ToolCall) -> SearchCall | McpCall | None:
        """The item for a call of a server tool; None: the client does not want it."""
        if call.name == SEARCH and self._options.tools.search:
            arguments = self._options.arguments_of(call) or {}
            # A `web_search` that the operator has defined may call its argument `q`.
            query = next((arguments[name] for name in ("query", "q") if isinstance(arguments.get(name), str)), "")
            return self._new(SearchCall, "ws", query)
        if self._options.server_calls:
            return self._new(McpCall, "mcp", call.name, call.arguments)
        return None

    def _new(self, kind: Callable[..., ItemT], prefix: str, *fields: Any, **named: Any) -> ItemT:
        index = len(self._items)
        item = kind(*fields, id=f"{prefix}_{self._run_id}_{index}", index=index, **named)
        self._items.append(item)
        return item


def _text(delta: Json, key: str) -> str:
    text = delta.get(key)
    return text if isinstance(text, str) else ""


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
