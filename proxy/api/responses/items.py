"""The items of an output. Each is opened, extended and closed, and every step gives the events that describe it.

    added   (part added   delta*   part done)*   done

An event has all its fields except `sequence_number`. The events of an item together describe what `as_json` returns at
the end.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, TypeAlias

from msgspec import Struct

from proxy.api.reply import Events
from proxy.api.responses.conversation import CODE_CALL, OUR_SERVER
from proxy.api.responses.custom_input import custom_input
from proxy.api.responses.tools import TYPES_OF_CALLS, ClientToolName
from proxy.turn.citations import Citation, annotations
from proxy.wire.chat import Json
from proxy.wire.json_text import json_object

Status: TypeAlias = Literal["in_progress", "completed", "incomplete", "failed"]
PartKind: TypeAlias = Literal["output_text", "refusal"]
_EMPTY: Mapping[PartKind, Json] = {
    "output_text": {"type": "output_text", "text": "", "annotations": [], "logprobs": []},
    "refusal": {"type": "refusal", "refusal": ""},
}
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


class Part(Struct):
    """The open part of a message: text, or a refusal.

    Attributes:
        kind: the type of the part.
        index: the place of the part in the message.
        delta_head: the beginning of an event with more text of the part, up to the text; empty for a refusal.
        pieces: the text.
        logprobs: the log probabilities of the tokens of the text.
        citations: places in the text, and the pages that are cited there.
        annotations: the upstream's own annotations, whose events follow when the part is complete.
    """

    kind: PartKind
    index: int
    delta_head: bytes
    pieces: list[str] = []
    logprobs: list[Json] = []
    citations: list[Citation] = []
    annotations: list[Json] = []


class Message(Item):
    """A message of the model. Its `sources`, URL -> title, are the pages that it may cite."""

    sources: Mapping[str, str] = {}
    part: Part | None = None
    _content: list[Json] = []  # the parts that are closed

    def as_json(self) -> Json:
        """The item in its present state, without the open part."""
        head = {"id": self.id, "type": "message", "status": self.status, "role": "assistant"}
        return {**head, "content": list(self._content)}

    def append(
        self, kind: PartKind, text: str, logprobs: Sequence[Json] = (), citations: Sequence[Citation] = ()
    ) -> Events:
        """Add text, and citations at their places in the whole text of its part."""
        events: Events = []
        part = self.part
        if part is None or part.kind != kind:
            events = self._close_part()
            at = len(self._content)
            head = _DELTA_HEAD % (self.id.encode(), self.index, at) if kind == "output_text" else b""
            part = self.part = Part(kind, at, head)
            events.append(self.event("content_part.added", content_index=at, part=_EMPTY[kind]))
        part.pieces.append(text)
        part.logprobs += logprobs
        part.citations += citations
        more = {"logprobs": list(logprobs)} if kind == "output_text" else {}
        return [*events, self.event(f"{kind}.delta", content_index=part.index, delta=text, **more)]

    def close(self, status: Status) -> Events:
        """Close the item and its last part."""
        return self._close_part() + super().close(status)

    def _close_part(self) -> Events:
        part, self.part = self.part, None
        if part is None:
            return []
        at, text = part.index, "".join(part.pieces)
        if part.kind == "refusal":
            closed: Json = {"type": "refusal", "refusal": text}
            events = [self.event("refusal.done", content_index=at, refusal=text)]
        else:
            cited = _citations(part, text, self.sources)
            closed = {"type": "output_text", "text": text, "annotations": cited, "logprobs": part.logprobs}
            events = [
                self.event("output_text.annotation.added", content_index=at, annotation_index=number, annotation=one)
                for number, one in enumerate(cited)
            ]
            events.append(self.event("output_text.done", content_index=at, text=text, logprobs=part.logprobs))
        self._content.append(closed)
        return [*events, self.event("content_part.done", content_index=at, part=closed)]


def _citations(part: Part, text: str, sources: Mapping[str, str]) -> list[Json]:
    """The `url_citation`s of a part, in the flat form of this API: the proxy's, and the upstream's for other pages."""
    cited = [one["url_citation"] for one in annotations(text, sources, part.citations)]
    urls = {one["url"] for one in cited}
    for annotation in part.annotations:
        given = annotation.get("url_citation")
        if isinstance(given, dict) and isinstance(given.get("url"), str) and given["url"] not in urls:
            # OpenRouter writes 0 for an unknown index, and an empty title.
            places = {name: _place(given.get(name), text) for name in ("start_index", "end_index")}
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
    _pieces: list[str] = []

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
    _pieces: list[str] = []

    def as_json(self) -> Json:
        """The item in its present state; what is not a plain text of arguments is there when it is complete."""
        given, complete = "".join(self._pieces), self.status != "in_progress"
        head = {"id": self.id, "type": TYPES_OF_CALLS[self.tool.kind], "status": self.status, "call_id": self.call_id}
        named = {"namespace": self.tool.namespace} if self.tool.namespace else {}
        match self.tool.kind:
            case "function":
                return {**head, "name": self.tool.name, "arguments": given, **named}
            case "custom":
                return {**head, "name": self.tool.name, "input": custom_input(given) if complete else "", **named}
            case "tool_search":
                arguments = json_object(given) if complete else None
                return {**head, "execution": "client", "arguments": arguments or {}}

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
            text = custom_input("".join(self._pieces))
            events.append(self.event("custom_tool_call_input.delta", delta=text))
            events.append(self.event("custom_tool_call_input.done", input=text))
        elif self.tool.kind == "function":
            if not self._pieces and status == "completed":  # clients parse the arguments
                events += self.append_arguments("{}")
            arguments = "".join(self._pieces)
            events.append(self.event("function_call_arguments.done", name=self.tool.name, arguments=arguments))
        return events + super().close(status)


class ServerCall(Item):
    """The base of the calls of server tools. Their events are named by their type."""

    kind: ClassVar[str]
    endings: ClassVar[Sequence[Status]] = ("completed",)  # for which there is an event

    def close(self, status: Status) -> Events:
        """The events that complete the item."""
        ended = [self.event(f"{self.kind}.{status}")] if status in self.endings else []
        return ended + super().close(status)

    def _written(self, what: str, text: str) -> Events:
        """The events of a text of the call that is complete already."""
        events = [self.event(f"{self.kind}_{what}.delta", delta=text)] if text else []
        return [*events, self.event(f"{self.kind}_{what}.done", **{what: text})]


class SearchCall(ServerCall):
    """A call of the server's search, which the client has declared.

    Attributes:
        queries: the queries; empty: the model's arguments have none.
        sources: the pages found; None: the client does not want them.
    """

    kind = "web_search_call"
    queries: Sequence[str]
    sources: Sequence[str] | None = None

    def as_json(self) -> Json:
        """The item in its present state."""
        action: Json = {"type": "search", "query": next(iter(self.queries), ""), "queries": self.queries}
        if self.sources is not None:
            action["sources"] = [{"type": "url", "url": url} for url in self.sources]
        return {"id": self.id, "type": self.kind, "status": self.status, "action": action}

    def open(self) -> Events:
        """The events that open the item."""
        begun = [self.event("web_search_call.in_progress"), self.event("web_search_call.searching")]
        return super().open() + begun


class CodeCall(ServerCall):
    """A call of the server's tool that runs code, in the place of OpenAI's `code_interpreter`.

    Attributes:
        code: the code; empty: the model's arguments have none.
        logs: the output of the code; None: the client does not want it, or the call failed.
    """

    kind = CODE_CALL
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
        begun = [*super().open(), self.event("code_interpreter_call.in_progress")]
        return [*begun, *self._written("code", self.code), self.event("code_interpreter_call.interpreting")]


class McpCall(ServerCall):
    """A call of another server tool, for clients that ask for progress events."""

    kind = "mcp_call"
    endings = ("completed", "failed")
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
        return [*super().open(), self.event("mcp_call.in_progress"), *self._written("arguments", self.arguments)]
