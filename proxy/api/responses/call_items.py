"""The output items for calls: of the client's tools, of a declared search, and of other server tools."""

from collections.abc import Sequence

import orjson
from msgspec import field

from proxy.api.fold import Events
from proxy.api.responses.conversation import OUR_SERVER
from proxy.api.responses.items import Item, Status
from proxy.api.responses.tools import TOOL_SEARCH, ClientToolName
from proxy.loop.chat import Json


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
        try:
            arguments = orjson.loads("".join(self._pieces))
        except orjson.JSONDecodeError:
            return {}
        return arguments if isinstance(arguments, dict) and self.status != "in_progress" else {}

    def _input(self) -> str:
        """The string in a custom tool's arguments; if these are not well formed, all that the model wrote."""
        if self.status == "in_progress":
            return ""
        text = "".join(self._pieces)
        try:
            arguments = orjson.loads(text)
        except orjson.JSONDecodeError:
            return text
        found = arguments.get("input") if isinstance(arguments, dict) else None
        return found if isinstance(found, str) else text


class SearchCall(Item):
    """A call of the server's search, which the client has declared.

    Attributes:
        query: the query; empty: the model's arguments have none.
        sources: the pages found; None: the client does not want them.
    """

    query: str
    sources: Sequence[str] | None = None

    def as_json(self) -> Json:
        """The item in its present state."""
        action: Json = {"type": "search", "query": self.query, "queries": [self.query] if self.query else []}
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
