"""A Messages request: read, checked, and translated into a chat request."""

from collections.abc import Collection, Mapping
from typing import Any

from msgspec import Struct

from proxy.api.messages.parts import refuse
from proxy.api.messages.tools import Tools, read_tools
from proxy.api.schema import SchemaCheck
from proxy.loop.chat import Json
from proxy.loop.errors import RequestError
from proxy.ports import Upstream

_MOST = 2**31
_SAME = ("temperature", "top_p")  # fields that mean the same to both APIs
_KINDS: Mapping[str, tuple[Any, str]] = {
    "stream": (bool, "true or false"),
    "thinking": (dict, "an object with a `type`"),
    "output_config": (dict, "an object"),
    **dict.fromkeys((*_SAME, "top_k"), ((int, float), "a number")),
}
_EFFORTS = {"low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "high"}
_MEDIUM_BUDGET, _HIGH_BUDGET = 4096, 16384  # tokens of thoughts from which an effort is meant
_SUBJECT = "output_config.format"


class MessagesRequest(Struct, frozen=True):
    """A client's request.

    Attributes:
        fields: the request as it came.
        tools: its tools.
        check: checks the answer against the schema that is asked for.
    """

    fields: Json
    tools: Tools
    check: SchemaCheck | None = None

    @property
    def model(self) -> str:
        """The model, by the client's name for it."""
        return str(self.fields["model"])

    @property
    def stream(self) -> bool:
        """Whether the answer is streamed."""
        return bool(self.fields.get("stream"))

    @property
    def thinks(self) -> bool:
        """Whether the client wants the model to think."""
        return bool((self.fields.get("thinking") or {}).get("type", "disabled") != "disabled")

    @property
    def omits_thoughts(self) -> bool:
        """Whether the client wants the thoughts in the signature alone."""
        return bool((self.fields.get("thinking") or {}).get("display") == "omitted")

    @property
    def stops(self) -> tuple[str, ...]:
        """The sequences at which the text ends."""
        stops = self.fields.get("stop_sequences")
        return tuple(dict.fromkeys(filter(None, stops))) if stops else ()

    def as_chat(self, messages: list[Json]) -> Json:
        """The chat request, but for what depends on the upstream (`fields_for`)."""
        fields = self.fields
        chat: Json = {"model": fields["model"], "messages": messages, **self.tools.for_chat()}
        chat |= {key: fields[key] for key in _SAME if fields.get(key) is not None}
        if fields.get("max_tokens") is not None:
            chat["max_tokens"] = fields["max_tokens"]
        if stops := self.stops:
            chat["stop"] = list(stops)
        if self.check is not None:
            wanted = {"name": "answer", "schema": self.check.schema, "strict": True}
            chat["response_format"] = {"type": "json_schema", "json_schema": wanted}
        if self.stream:
            chat["stream"] = True
        return chat

    def fields_for(self, upstream: Upstream) -> Json:
        """The fields of the chat request that depend on the upstream: how much the model is to think, and `top_k`."""
        fields: Json = {}
        if upstream.top_k and self.fields.get("top_k") is not None:
            fields["top_k"] = self.fields["top_k"]
        if upstream.thinking_switch:
            fields["thinking"] = {"type": "enabled" if self.thinks else "disabled"}
            if not self.thinks:
                return fields
        if (effort := self._effort()) is not None:
            fields["reasoning_effort"] = effort
        return fields

    def _effort(self) -> str | None:
        wanted = (self.fields.get("output_config") or {}).get("effort")
        if wanted is not None:
            return _EFFORTS.get(wanted)
        budget = (self.fields.get("thinking") or {}).get("budget_tokens")
        if budget is None or not self.thinks:
            return None
        return "low" if budget < _MEDIUM_BUDGET else "medium" if budget < _HIGH_BUDGET else "high"


def read_request(fields: Json, server_names: Collection[str], *, to_be_answered: bool = True) -> MessagesRequest:
    """A request, checked as far as it is read; its conversation is left to `conversation.read_messages`.

    Args:
        fields: the request as it came.
        server_names: the names and aliases of the server tools.
        to_be_answered: whether it needs `max_tokens`.

    Raises:
        RequestError: with the field that is at fault as `param`.
    """
    if not isinstance(fields.get("model"), str) or not fields["model"]:
        refuse("model", "must be the name of a model")
    if to_be_answered or fields.get("max_tokens") is not None:
        _expect_count(fields.get("max_tokens"), "max_tokens", least=1)
    for name, value in fields.items():
        if name in _KINDS and value is not None:
            kind, called = _KINDS[name]
            if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
                refuse(name, f"must be {called}")
    _refuse_conversations_held_here(fields)
    _check_inner(fields)
    return MessagesRequest(fields, read_tools(fields, server_names), _check_format(fields))


def _refuse_conversations_held_here(fields: Json) -> None:
    """Refuse what would change the meaning of the request if it were ignored; the SDKs go on without it."""
    if fields.get("thread") is not None:
        details: Json = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
        message = "thread: conversations are not held here; send the whole history"
        raise RequestError(message, param="thread", details=details)
    if fields.get("compaction") is not None:
        details = {"error_code": "compaction_unavailable"}
        raise RequestError("compaction: is not available here", param="compaction", details=details)


def _check_inner(fields: Json) -> None:
    stops = fields.get("stop_sequences")
    if stops is not None and not (isinstance(stops, list) and all(isinstance(stop, str) for stop in stops)):
        refuse("stop_sequences", "must be a list of strings")
    thinking = fields.get("thinking") or {}
    if fields.get("thinking") is not None and not isinstance(thinking.get("type"), str):
        refuse("thinking.type", "must be a string")
    if thinking.get("budget_tokens") is not None:
        _expect_count(thinking["budget_tokens"], "thinking.budget_tokens", least=0)
    effort = (fields.get("output_config") or {}).get("effort")
    if not isinstance(effort, str | None):
        refuse("output_config.effort", f"must be one of {', '.join(_EFFORTS)}")


def _check_format(fields: Json) -> SchemaCheck | None:
    wanted = (fields.get("output_config") or {}).get("format")
    if wanted is None:
        wanted = fields.get("output_format")  # its name before `output_config`
    if wanted is None:
        return None
    if not isinstance(wanted, dict) or wanted.get("type") != "json_schema":
        refuse(_SUBJECT, "must be an object of type `json_schema`")
    return SchemaCheck.of(wanted.get("schema"), f"{_SUBJECT}.schema")


def _expect_count(value: Any, where: str, *, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= _MOST:
        refuse(where, f"must be an integer of at least {least}")
