"""The items of an output. Each is opened, extended and closed, and every step gives the events that describe it.

    added   (part added   delta*   part done)*   done

An event has all its fields except `sequence_number`. The events of an item together describe its `json` at the end.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from proxy.api.reply import Events
from proxy.api.responses.conversation import CODE_CALL, OUR_SERVER
from proxy.api.responses.custom_input import custom_input
from proxy.api.responses.tools import TOOL_SEARCH, ClientToolName
from proxy.turn.citations import Citation, annotations
from proxy.wire.chat import Json
from proxy.wire.json_text import json_object

SEARCH_CALL, MCP_CALL = "web_search_call", "mcp_call"
Status: TypeAlias = Literal["in_progress", "completed", "incomplete", "failed"]
PartKind: TypeAlias = Literal["output_text", "refusal"]
ID_PREFIXES: Mapping[str, str] = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "tool_search_call": "tsc",
    "tool_search_output": "tso",
    "additional_tools": "at",
    SEARCH_CALL: "ws",
    CODE_CALL: "ci",
    MCP_CALL: "mcp",
}
"""The types of items -> the beginnings of their ids."""
_EMPTY: Mapping[PartKind, Json] = {
    "output_text": {"type": "output_text", "text": "", "annotations": [], "logprobs": []},
    "refusal": {"type": "refusal", "refusal": ""},
}
_DELTA_HEAD = (
    b'{"type":"response.output_text.delta","item_id":"%b","output_index":%d,"content_index":%d,"logprobs":[],"delta":'
)


class Item(Struct, kw_only=True):
    """The base of all items.

    Attributes:
        index: the place of the item in the `output`.
        json: the item as it was when it was opened, or as it is since it was closed.
        is_open: whether the item is not complete.
    """

    index: int
    json: Json
    is_open: bool = True

    def open(self) -> Events:
        """The events that open the item."""
        return [{"type": "response.output_item.added", "output_index": self.index, "item": self.json}]

    def close(self, status: Status) -> Events:
        """The events that complete the item."""
        return [self.done(status)]

    def done(self, status: Status, **fields: Any) -> Json:
        """The last event of the item, with the fields that have another value now."""
        self.is_open = False
        self.json = {**self.json, "status": status, **fields}
        return {"type": "response.output_item.done", "output_index": self.index, "item": self.json}

    def event(self, kind: str, **fields: Any) -> Json:
        """An event of this item."""
        return {"type": f"response.{kind}", "item_id": self.json["id"], "output_index": self.index, **fields}


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

    def append(
        self, kind: PartKind, text: str, logprobs: Sequence[Json] = (), citations: Sequence[Citation] = ()
    ) -> Events:
        """Add text, and citations at their places in the whole text of its part."""
        events: Events = []
        part = self.part
        if part is None or part.kind != kind:
            events = self._close_part()
            at = len(self._content)
            head = _DELTA_HEAD % (self.json["id"].encode(), self.index, at) if kind == "output_text" else b""
            part = self.part = Part(kind, at, head)
            events.append(self.event("content_part.added", content_index=at, part=_EMPTY[kind]))
        part.pieces.append(text)
        part.logprobs += logprobs
        part.citations += citations
        more = {"logprobs": list(logprobs)} if kind == "output_text" else {}
        return [*events, self.event(f"{kind}.delta", content_index=part.index, delta=text, **more)]

    def close(self, status: Status) -> Events:
        """Close the item and its last part."""
        return [*self._close_part(), self.done(status, content=self._content)]

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
    """

    summarised: bool = False
    seal: Callable[[str], str] | None = None
    _pieces: list[str] = []

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
        text = "".join(self._pieces)
        if not text:
            return [self.done(status)]
        whole, summary = {"type": "reasoning_text", "text": text}, {"type": "summary_text", "text": text}
        events = [
            self.event("reasoning_text.done", content_index=0, text=text),
            self.event("content_part.done", content_index=0, part=whole),
        ]
        if self.summarised:
            events.append(self.event("reasoning_summary_text.done", summary_index=0, text=text))
            events.append(self.event("reasoning_summary_part.done", summary_index=0, part=summary))
        sealed = {"encrypted_content": self.seal(text)} if self.seal else {}
        return [*events, self.done(status, content=[whole], summary=[summary] if self.summarised else [], **sealed)]


class ClientCall(Item):
    """A call of one of the client's own tools."""

    tool: ClientToolName
    _pieces: list[str] = []

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
        match self.tool.kind:
            case "function":
                if not self._pieces and status == "completed":  # clients parse the arguments
                    events += self.append_arguments("{}")
                arguments = "".join(self._pieces)
                events.append(self.event("function_call_arguments.done", name=self.tool.name, arguments=arguments))
                return [*events, self.done(status, arguments=arguments)]
            case "custom":
                text = custom_input("".join(self._pieces))
                events.append(self.event("custom_tool_call_input.delta", delta=text))
                events.append(self.event("custom_tool_call_input.done", input=text))
                return [*events, self.done(status, input=text)]
            case "tool_search":
                return [self.done(status, arguments=json_object("".join(self._pieces)) or {})]


def client_call(call_id: str, tool: ClientToolName) -> Json:
    """The fields of a call of the client's when it begins."""
    if tool.kind == TOOL_SEARCH:
        return {"call_id": call_id, "execution": "client", "arguments": {}}
    named = {"namespace": tool.namespace} if tool.namespace else {}
    return {"call_id": call_id, "name": tool.name, "input" if tool.kind == "custom" else "arguments": "", **named}


class ServerCall(Item):
    """A call of a server tool.

    Attributes:
        ended: the fields that have another value when the item is closed.
        steps: the ends of the names of the events that follow its beginning -> the fields of the events.
    """

    ended: Json
    steps: Mapping[str, Json]

    def open(self) -> Events:
        """The events that open the item."""
        return [*super().open(), *(self.event(self.json["type"] + step, **given) for step, given in self.steps.items())]

    def close(self, status: Status) -> Events:
        """The events that complete the item. Only the failure of an `mcp_call` has an event."""
        kind = self.json["type"]
        ended = [self.event(f"{kind}.{status}")] if status == "completed" or kind == MCP_CALL else []
        return [*ended, self.done(status, **self.ended)]


CallForm: TypeAlias = tuple[Json, Json, Mapping[str, Json]]
"""The fields of a call when it begins, and the `ended` and `steps` of its `ServerCall`."""


def search_call(queries: Sequence[str], *, shows_sources: bool) -> CallForm:
    """A call of the server's search, which the client has declared; no queries: the model's arguments have none."""
    action: Json = {"type": "search", "query": next(iter(queries), ""), "queries": queries}
    ended = {**action, "sources": []} if shows_sources else action
    return {"action": action}, {"action": ended}, {".in_progress": {}, ".searching": {}}


def code_call(code: str) -> CallForm:
    """A call of the server's tool that runs code, in the place of OpenAI's `code_interpreter`."""
    begun = {"code": "", "container_id": OUR_SERVER, "outputs": None}
    written = {"_code.delta": {"delta": code}} if code else {}
    return begun, {"code": code}, {".in_progress": {}, **written, "_code.done": {"code": code}, ".interpreting": {}}


def mcp_call(name: str, arguments: str) -> CallForm:
    """A call of another server tool, for clients that ask for progress events."""
    begun = {"server_label": OUR_SERVER, "approval_request_id": None, "name": name}
    begun |= {"arguments": "", "output": None, "error": None}
    ended = {"arguments": arguments}
    written = {"_arguments.delta": {"delta": arguments}} if arguments else {}
    return begun, ended, {".in_progress": {}, **written, "_arguments.done": ended}
