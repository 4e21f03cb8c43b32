"""A Messages request: read, checked, and translated into a chat request."""

from typing import Any, TypeAlias

from msgspec import Struct

from proxy.api.fields import Count, Name, PositiveCount, prefixed, read_fields
from proxy.api.messages.parts import refuse
from proxy.api.schema import SchemaCheck
from proxy.ports import Upstream
from proxy.wire.chat import Json
from proxy.wire.errors import RequestError

_EFFORTS = {"low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "high"}
_MEDIUM_BUDGET, _HIGH_BUDGET = 4096, 16384  # thinking budgets, in tokens, from which the effort is medium or high
_AS_IN_CHAT = ("temperature", "top_p", "max_tokens", "max_tool_calls")  # fields that a chat request has as well
_FORMAT_FIELD = "output_config.format"
_NUMBER = "must be a number"
_DEMANDS = {
    "model": "must be the name of a model",
    "max_tokens": "must be an integer of at least 1",
    "stream": "must be true or false",
    "max_tool_calls": "must be an integer of at least 0",
    "temperature": _NUMBER,
    "top_p": _NUMBER,
    "top_k": _NUMBER,
    "stop_sequences": "must be a list of strings",
    "thinking": "must be an object with a `type`",
    "thinking.type": "must be a string",
    "thinking.budget_tokens": "must be an integer of at least 0",
    "output_config": "must be an object",
    "output_config.effort": f"must be one of {', '.join(_EFFORTS)}",
}
Number: TypeAlias = int | float


class _Thinking(Struct, frozen=True):
    type: str
    budget_tokens: Count | None = None
    display: object = None  # "omitted": thoughts are shown as a signature only


class _OutputConfig(Struct, frozen=True):
    effort: str | None = None
    format: object = None


class MessagesRequest(Struct, frozen=True):
    """The fields of a client's request, except its conversation and its tools."""

    model: Name
    max_tokens: PositiveCount | None = None
    stream: bool | None = None
    temperature: Number | None = None
    top_p: Number | None = None
    top_k: Number | None = None
    stop_sequences: list[str] | None = None
    thinking: _Thinking | None = None
    output_config: _OutputConfig | None = None
    output_format: object = None  # the earlier name of `output_config.format`
    metadata: object = None  # goes nowhere; its session names the conversation
    max_tool_calls: Count | None = None  # the proxy's own field, as in Chat Completions
    thread: object = None
    compaction: object = None

    @property
    def thinks(self) -> bool:
        """Whether the client wants the model to think."""
        return self.thinking is not None and self.thinking.type != "disabled"

    def schema_check(self) -> SchemaCheck | None:
        """The check against the schema of `output_config.format`; None without one. Raises `RequestError`."""
        wanted: Any = self.output_config.format if self.output_config is not None else None
        if wanted is None:
            wanted = self.output_format
        if wanted is None:
            return None
        if not isinstance(wanted, dict) or wanted.get("type") != "json_schema":
            refuse(_FORMAT_FIELD, "must be an object of type `json_schema`")
        return SchemaCheck.of(wanted.get("schema"), f"{_FORMAT_FIELD}.schema")

    def as_chat(self, messages: list[Json], tools: Json, check: SchemaCheck | None) -> Json:
        """The chat request with these fields for tools, without those that depend on the upstream (`fields_for`)."""
        chat: Json = {"model": self.model, "messages": messages, **tools}
        for name in _AS_IN_CHAT:
            if (value := getattr(self, name)) is not None:
                chat[name] = value
        if stops := list(dict.fromkeys(filter(None, self.stop_sequences or ()))):
            chat["stop"] = stops
        if check is not None:
            wanted = {"name": "answer", "schema": check.schema, "strict": True}
            chat["response_format"] = {"type": "json_schema", "json_schema": wanted}
        if self.stream:
            chat["stream"] = True
        return chat

    def fields_for(self, upstream: Upstream, effort: str | None) -> Json:
        """The fields for thinking and `top_k`, which depend on the upstream; `effort` was asked for in the history."""
        fields: Json = {}
        if upstream.traits.top_k and self.top_k is not None:
            fields["top_k"] = self.top_k
        if upstream.traits.thinking_switch:
            fields["thinking"] = {"type": "enabled" if self.thinks else "disabled"}
            if not self.thinks:
                return fields
        wanted = self.output_config.effort if self.output_config is not None else None
        budget = self.thinking.budget_tokens if self.thinking is not None and self.thinks else None
        if (known := _EFFORTS.get(effort or "") or _EFFORTS.get(wanted or "")) is not None:
            fields["reasoning_effort"] = known
        elif wanted is None and budget is not None:
            is_low, is_medium = budget < _MEDIUM_BUDGET, budget < _HIGH_BUDGET
            fields["reasoning_effort"] = "low" if is_low else "medium" if is_medium else "high"
        return fields


def read_request(fields: Json, *, needs_max_tokens: bool = True) -> MessagesRequest:
    """A request, except its conversation (`conversation.read_conversation`) and its tools (`tools.read_tools`).

    Raises:
        RequestError: a field is not well formed, or `max_tokens` is needed and missing; its name is `param`.
    """
    request = read_fields(fields, MessagesRequest, _DEMANDS, prefixed)
    if needs_max_tokens and request.max_tokens is None:
        refuse("max_tokens", _DEMANDS["max_tokens"])
    # Ignoring one of these two fields would change the meaning of the request; if they are refused, SDKs omit them.
    if request.thread is not None:
        details: Json = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
        message = "thread: conversations are not held here; send the whole history"
        raise RequestError(message, param="thread", details=details)
    if request.compaction is not None:
        details = {"error_code": "compaction_unavailable"}
        raise RequestError("compaction: is not available here", param="compaction", details=details)
    return request
