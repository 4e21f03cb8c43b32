"""The items of an output. Each is opened, extended and closed, and every step gives the events that describe it.

    added   (part added   delta*   part done)*   done

An event has all its fields except `sequence_number`. The events of an item together describe what `as_json` returns at
the end.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from msgspec import Struct, field

from proxy.api.reply import Events
from proxy.api.responses.conversation import CODE_CALL, OUR_SERVER
from proxy.api.responses.custom_input import custom_input
from proxy.api.responses.tools import TOOL_SEARCH, ClientToolName
from proxy.turn.citations import Citation, annotations
from proxy.wire.chat import Json
from proxy.wire.json_text import json_object

Status: TypeAlias = Literal["in_progress", "completed", "incomplete", "failed"]
_DELTA_HEAD = (
    b'{"type":"response.output_text.delta","item_id":"%b","output_index":%d,"content_index":%d,"logprobs":[],"delta":'
)


class Item(Struct, kw_only=True):
    """The base of all items; `index` is an item's place in the `output`."""

    id: str
    index: int
    status: Status = "in_progress"

    def as_json(self) -> Json:
        """The item in its present state."""
        raise NotImplementedError

    def open(self) -> Events:
        """The events that open the item."""
        return [{"type": "response.output_item.added", "output_index": self.index, "item": self.as_json()}]

    def close(self, status: Status) -> Events:
        """The events that complete the item."""
        self.status = status
        return [{"type": "response.output_item.done", "output_index": self.index, "item": self.as_json()}]

    def event(self, kind: str, **fields: Any) -> Json:
        """An event of this item."""
        return {"type": f"response.{kind}", "item_id": self.id, "output_index": self.index, **fields}


class _Part(Struct):
    """A part of a message: text, or a refusal."""

    kind: Literal["output_text", "refusal"]
    pieces: list[str] = field(default_factory=list)
    annotations: list[Json] = field(default_factory=list)
    logprobs: list[Json] = field(default_factory=list)
    citations: list[Citation] = field(default_factory=list)
    upstream_annotations: list[Json] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def as_json(self) -> Json:
        if self.kind == "refusal":
            return {"type": "refusal", "refusal": self.text}
        cited, logprobs = list(self.annotations), list(self.logprobs)
        return {"type": "output_text", "text": self.text, "annotations": cited, "logprobs": logprobs}


class Message(Item):
    """A message of the model. Its `sources`, URL -> title, are the pages that it may cite."""

    sources: Mapping[str, str] = field(default_factory=dict)
    _parts: list[_Part] = field(default_factory=list)
    _delta_head: bytes = b""  # of the open text

    def as_json(self) -> Json:
        """The item in its present state."""
        content = [part.as_json() for part in self._parts]
        return {"id": self.id, "type": "message", "status": self.status, "role": "assistant", "content": content}

    def grow_text(self, text: str) -> bytes:
        """Add to the open text; returns the beginning of the event, up to the text itself. Empty: no text is open."""
        if self._delta_head:
            self._parts[-1].pieces.append(text)
        return self._delta_head

    def append_text(self, text: str, logprobs: Sequence[Json] = (), citations: Sequence[Citation] = ()) -> Events:
        """Add text, and citations at their places in the whole text of the part."""
        events = self._open_part("output_text")
        part = self._parts[-1]
        part.citations += citations
        part.pieces.append(text)
        part.logprobs += logprobs
        return [*events, self._part_event("output_text.delta", delta=text, logprobs=list(logprobs))]

    def add_annotations(self, given: Sequence[Json]) -> None:
        """Add the upstream's own annotations to the text; their events follow when the part is complete."""
        if self._parts and self._parts[-1].kind == "output_text":
            self._parts[-1].upstream_annotations += given

    def append_refusal(self, text: str) -> Events:
        """Add text of a refusal."""
        events = self._open_part("refusal")
        self._parts[-1].pieces.append(text)
        return [*events, self._part_event("refusal.delta", delta=text)]

    def close(self, status: Status) -> Events:
        """Close the item and its last part."""
        return self._close_part() + super().close(status)

    def _open_part(self, kind: Literal["output_text", "refusal"]) -> Events:
        if self._parts and self._parts[-1].kind == kind:
            return []
        events = self._close_part()
        self._parts.append(_Part(kind))
        place = self.id.encode(), self.index, len(self._parts) - 1
        self._delta_head = _DELTA_HEAD % place if kind == "output_text" else b""
        return [*events, self._part_event("content_part.added", part=self._parts[-1].as_json())]

    def _close_part(self) -> Events:
        if not self._parts:
            return []
        part = self._parts[-1]
        if part.kind == "refusal":
            events = [self._part_event("refusal.done", refusal=part.text)]
        else:
            part.annotations = _citations(part, self.sources)
            events = [
                self._part_event("output_text.annotation.added", annotation_index=at, annotation=cited)
                for at, cited in enumerate(part.annotations)
            ]
            events.append(self._part_event("output_text.done", text=part.text, logprobs=list(part.logprobs)))
        return [*events, self._part_event("content_part.done", part=part.as_json())]

    def _part_event(self, kind: str, **fields: Any) -> Json:
        return self.event(kind, content_index=len(self._parts) - 1, **fields)


def _citations(part: _Part, sources: Mapping[str, str]) -> list[Json]:
    """The `url_citation`s of a part, in the flat form of this API: the proxy's, and the upstream's for other pages."""
    cited = [one["url_citation"] for one in annotations(part.text, sources, part.citations)]
    urls = {one["url"] for one in cited}
    for annotation in part.upstream_annotations:
        given = annotation.get("url_citation")
        if isinstance(given, dict) and isinstance(given.get("url"), str) and given["url"] not in urls:
            # OpenRouter writes 0 for an unknown index, and an empty title.
            places = {name: _place(given.get(name), part.text) for name in ("start_index", "end_index")}
            title = given.get("title")
            one = {**places, "title": title if title and isinstance(title, str) else given["url"], "url": given["url"]}
            if one not in cited:
                cited.append(one)
    return [{"type": "url_citation", **one} for one in cited]


def _place(index: Any, text: str) -> int:
    return min(max(index, 0), len(text)) if isinstance(index, int) else 0


class Reasoning(Item):
    """Reasoning of the model.

    Attributes:
        summarised: whether it is shown as a summary as well; some clients show nothing else.
        seal: makes its `encrypted_content`; None: it has none.
        sealed: its `encrypted_content`.
    """

    summarised: bool = False
    seal: Callable[[str], str] | None = None
    sealed: str | None = None
    _pieces: list[str] = field(default_factory=list)

    def as_json(self) -> Json:
        """The item in its present state."""
        text = "".join(self._pieces)
        item: Json = {"id": self.id, "type": "reasoning", "status": self.status}
        item["summary"] = [{"type": "summary_text", "text": text}] if text and self.summarised else []
        item["content"] = [{"type": "reasoning_text", "text": text}] if text else []
        return item if self.sealed is None else {**item, "encrypted_content": self.sealed}

    def append_text(self, text: str) -> Events:
        """The events of more text."""
        events: Events = []
        if not self._pieces:
            part = {"type": "reasoning_text", "text": ""}
            events.append(self.event("content_part.added", content_index=0, part=part))
            if self.summarised:
                empty = {"type": "summary_text", "text": ""}
                events.append(self.event("reasoning_summary_part.added", summary_index=0, part=empty))
        self._pieces.append(text)
        events.append(self.event("reasoning_text.delta", content_index=0, delta=text))
        if self.summarised:
            events.append(self.event("reasoning_summary_text.delta", summary_index=0, delta=text))
        return events

    def close(self, status: Status) -> Events:
        """The events that complete the item."""
        events: Events = []
        if text := "".join(self._pieces):
            whole = {"type": "reasoning_text", "text": text}
            events.append(self.event("reasoning_text.done", content_index=0, text=text))
            events.append(self.event("content_part.done", content_index=0, part=whole))
            if self.summarised:
                summary = {"type": "summary_text", "text": text}
                events.append(self.event("reasoning_summary_text.done", summary_index=0, text=text))
                events.append(self.event("reasoning_summary_part.done", summary_index=0, part=summary))
            if self.seal:
                self.sealed = self.seal(text)
        return events + super().close(status)


class ClientCall(Item):
    """A call of one of the client's own tools."""

    call_id: str
    tool: ClientToolName
    _pieces: list[str] = field(default_factory=list)

    def as_json(self) -> Json:
        """The item in its present state."""
        if self.tool.kind == TOOL_SEARCH:
            search = {"call_id": self.call_id, "execution": "client", "arguments": self._arguments()}
            return {"id": self.id, "type": "tool_search_call", "status": self.status, **search}
        custom = self.tool.kind == "custom"
        given: Json = {"input": self._input()} if custom else {"arguments": "".join(self._pieces)}
        named = {"namespace": self.tool.namespace} if self.tool.namespace else {}
        kind = "custom_tool_call" if custom else "function_call"
        head = {"id": self.id, "type": kind, "status": self.status, "call_id": self.call_id, "name": self.tool.name}
        return {**head, **given, **named}

    def append_arguments(self, arguments: str) -> Events:
        """Add arguments. For a custom tool they hold the input as JSON, which is sent when it is complete."""
        if not arguments:
            return []
        self._pieces.append(arguments)
        is_function = self.tool.kind == "function"
        return [self.event("function_call_arguments.delta", delta=arguments)] if is_function else []

    def close(self, status: Status) -> Events:
        """The events that complete the item."""
        events: Events = []
        if self.tool.kind == "custom":
            self.status = status  # first, because the input can be read only then
            text = self._input()
            events.append(self.event("custom_tool_call_input.delta", delta=text))
            events.append(self.event("custom_tool_call_input.done", input=text))
        elif self.tool.kind == "function":
            if not self._pieces and status == "completed":  # clients parse the arguments
                events += self.append_arguments("{}")
            arguments = "".join(self._pieces)
            events.append(self.event("function_call_arguments.done", name=self.tool.name, arguments=arguments))
        return events + super().close(status)

    def _arguments(self) -> Json:
        """The arguments of a search for tools; empty until they are complete, and if they are no JSON object."""
        return (self.status != "in_progress" and json_object("".join(self._pieces))) or {}

    def _input(self) -> str:
        """The input of a custom tool, once it is complete."""
        return "" if self.status == "in_progress" else custom_input("".join(self._pieces))


class SearchCall(Item):
    """A call of the server's search, which the client has declared.

    Attributes:
        queries: the queries; empty: the model's arguments have none.
        sources: the pages found; None: the client does not want them.
    """

    queries: Sequence[str]
    sources: Sequence[str] | None = None

    def as_json(self) -> Json:
        """The item in its present state."""
        action: Json = {"type": "search", "query": next(iter(self.queries), ""), "queries": self.queries}
        if self.sources is not None:
            action["sources"] = [{"type": "url", "url": url} for url in self.sources]
        return {"id": self.id, "type": "web_search_call", "status": self.status, "action": action}

    def open(self) -> Events:
        """The events that open the item."""
        begun = [self.event("web_search_call.in_progress"), self.event("web_search_call.searching")]
        return super().open() + begun

    def close(self, status: Status) -> Events:
        """The events that complete the item. A failed search has a status of its own, but no event."""
        ended = [self.event("web_search_call.completed")] if status == "completed" else []
        return ended + super().close(status)


class CodeCall(Item):
    """A call of the server's tool that runs code, in the place of OpenAI's `code_interpreter`.

    Attributes:
        code: the code; empty: the model's arguments have none.
        logs: what came of it; None: the client does not want it, or the call failed.
    """

    code: str
    logs: str | None = None

    def as_json(self) -> Json:
        """The item in its present state."""
        code = "" if self.status == "in_progress" else self.code
        outputs = None if self.logs is None else [{"type": "logs", "logs": self.logs}]
        head = {"id": self.id, "type": CODE_CALL, "status": self.status}
        return {**head, "code": code, "container_id": OUR_SERVER, "outputs": outputs}

    def open(self) -> Events:
        """The events that open the item."""
        events = [*super().open(), self.event("code_interpreter_call.in_progress")]
        if self.code:
            events.append(self.event("code_interpreter_call_code.delta", delta=self.code))
        events.append(self.event("code_interpreter_call_code.done", code=self.code))
        return [*events, self.event("code_interpreter_call.interpreting")]

    def close(self, status: Status) -> Events:
        """The events that complete the item. Code that could not be run has a status of its own, but no event."""
        ended = [self.event("code_interpreter_call.completed")] if status == "completed" else []
        return ended + super().close(status)


class McpCall(Item):
    """A call of another server tool, for clients that ask for progress events."""

    name: str
    arguments: str
    error: str | None = None

    def as_json(self) -> Json:
        """The item in its present state."""
        begun = self.status == "in_progress"
        content = [{"type": "text", "text": self.error}]
        error = {"type": "mcp_tool_execution_error", "content": content} if self.error is not None else None
        fields = {"name": self.name, "arguments": "" if begun else self.arguments, "output": None, "error": error}
        head = {"id": self.id, "type": "mcp_call", "status": self.status, "server_label": OUR_SERVER}
        return {**head, "approval_request_id": None, **fields}

    def open(self) -> Events:
        """The events that open the item."""
        events = [*super().open(), self.event("mcp_call.in_progress")]
        if self.arguments:
            events.append(self.event("mcp_call_arguments.delta", delta=self.arguments))
        return [*events, self.event("mcp_call_arguments.done", arguments=self.arguments)]

    def close(self, status: Status) -> Events:
        """The events that complete the item."""
        ended = self.event("mcp_call.completed" if status == "completed" else "mcp_call.failed")
        return [ended, *super().close(status)]
