"""A Responses request: read, checked, and translated into a chat request."""

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

from proxy.api.body import MOST_TOOLS, expect, expect_few_blocks, is_integer, make_whole, parse_object
from proxy.api.known import History, is_read
from proxy.api.responses.conversation import ItemConversation, read_items
from proxy.api.responses.tools import ResponseTools
from proxy.api.schema import SchemaCheck
from proxy.api.unshown import Unshown
from proxy.wire import rawjson
from proxy.wire.chat import Json
from proxy.wire.errors import ProxyError, RequestError

# Fields with the same meaning in both APIs, including those of GLM and vLLM; null is treated as absent.
_SAME = frozenset(
    {
        "frequency_penalty",
        "max_tool_calls",
        "parallel_tool_calls",
        "presence_penalty",
        "seed",
        "stop",
        "temperature",
        "thinking",
        "tool_stream",
        "chat_template_kwargs",
        "top_p",
        "user",
    }
)
# Fields of the chat request -> the fields of the Responses request from which they are made.
_SENT_AS: Mapping[str, str] = {
    "max_tokens": "max_output_tokens",
    "messages": "input",
    "reasoning_effort": "reasoning.effort",
    "response_format": "text.format",
}
_SECRETS = ("authorization", "headers")  # fields of an `mcp` tool
_MOST = 2**31
_Demand: TypeAlias = tuple[Callable[[Any], bool], str]  # a predicate, and its meaning in words
SOURCES = "web_search_call.action.sources"
CODE_OUTPUTS = "code_interpreter_call.outputs"
ENCRYPTED = "reasoning.encrypted_content"
LOGPROBS = "message.output_text.logprobs"


class ResponsesRequest(Struct, frozen=True):
    """A client's request.

    Attributes:
        fields: the fields as the client sent them, without secrets; the response echoes them.
        items: the items of its `input`.
        check: checks the answer against the schema in `text.format`; None: there is none.
        unshown: the types of items and parts that the model is not shown.
    """

    fields: Json
    items: tuple[Json, ...]
    check: SchemaCheck | None = None
    unshown: Unshown = msgspec.field(default_factory=Unshown)

    @property
    def stream(self) -> bool:
        """Whether the answer is streamed."""
        return bool(self.fields.get("stream"))

    @property
    def store(self) -> bool:
        """Whether the answer is stored."""
        return self.fields.get("store") is not False

    @property
    def previous(self) -> str | None:
        """The id of the response that this request continues."""
        return self.fields.get("previous_response_id")

    @property
    def text_format(self) -> Json:
        """The `text.format` in the flat form of this API; empty without one."""
        return (self.fields.get("text") or {}).get("format") or {}

    def includes(self, what: str) -> bool:
        """Whether `include` contains `what`."""
        return what in (self.fields.get("include") or ())

    @property
    def summary(self) -> bool:
        """Whether the client wants reasoning as a summary as well."""
        reasoning = self.fields.get("reasoning") or {}
        wanted = reasoning.get("summary") or reasoning.get("generate_summary")
        return bool(wanted) and wanted != "none"

    def as_chat(self, conversation: ItemConversation, tools: ResponseTools) -> Json:
        """The request as one of Chat Completions."""
        fields = self.fields
        chat: Json = {"model": fields["model"], "messages": list(conversation.messages), **tools.fields()}
        chat |= {key: value for key, value in fields.items() if key in _SAME and value is not None}
        optional = {
            "max_tokens": fields.get("max_output_tokens"),
            "reasoning_effort": (fields.get("reasoning") or {}).get("effort"),
            "response_format": _response_format(self.text_format),
            "top_logprobs": fields.get("top_logprobs") or None,
            "logprobs": True if fields.get("top_logprobs") or self.includes(LOGPROBS) else None,
            "stream": True if self.stream else None,
        }
        return chat | {key: value for key, value in optional.items() if value is not None}

    def as_sent(self, error: ProxyError) -> None:
        """Replace the field of the chat request that an error names by the one that the client has sent."""
        if error.param is None:
            return
        name = re.split(r"[.\[]", error.param, maxsplit=1)[0]
        sent = _SENT_AS.get(name)
        if name == "logprobs":
            sent = "top_logprobs" if self.fields.get("top_logprobs") else "include"
        if sent is not None:
            error.message = error.message.replace(f"'{error.param}'", f"'{sent}'")
            error.param = sent


def parse_request(body: bytes, history: History | None = None) -> ResponsesRequest:
    """The request in a body, whose bounds are checked first. Raises `InvalidJson`, `RequestError`.

    `history` is as for `parse_object`.
    """
    fields = parse_object(body, history)
    expect_few_blocks(fields.get("input"), "input", of=body)
    return read_request(fields)


def read_request(fields: Json) -> ResponsesRequest:
    """A request. The fields that the proxy reads are checked.

    Raises:
        RequestError: a field is not well formed; its name is `param`.
    """
    expect(isinstance(fields.get("model"), str) and fields["model"], "model", "must be the name of a model")
    make_whole(fields, "max_output_tokens", "max_tool_calls", "top_logprobs")
    for name in filter(fields.__contains__, _DEMANDS):
        is_met, demand = _DEMANDS[name]
        expect(fields[name] is None or is_met(fields[name]), name, demand)
    _check_inner(fields)
    given = fields.get("input")
    new = [item for item in given if not is_read(item)] if isinstance(given, list) else given
    # The response echoes the fields one level deeper, where they must not be nested too deep to be written.
    rawjson.dumps({"response": {**fields, "input": new}})
    unshown = Unshown()
    items = tuple([_without_secrets(item) for item in read_items(given, unshown)])
    return ResponsesRequest(_without_secrets(fields), items, _check_format(fields), unshown)


def _without_secrets(holder: Json) -> Json:
    """A request or an item, fit to be stored and echoed: without the secrets in its `tools`."""
    return {**holder, "tools": tools_without_secrets(holder["tools"])} if holder.get("tools") else holder


def tools_without_secrets(tools: Any) -> Any:
    """A list of tools, fit to be stored and echoed: without the credentials of declared MCP servers."""
    return [_tool_without_secrets(tool) for tool in tools] if isinstance(tools, list) else tools


def _tool_without_secrets(tool: Any) -> Any:
    if not isinstance(tool, dict):
        return tool
    if tool.get("type") == "mcp":
        return {key: value for key, value in tool.items() if key not in _SECRETS}
    return {**tool, "tools": tools_without_secrets(tool["tools"])} if "tools" in tool else tool


def _check_inner(fields: Json) -> None:
    effort = (fields.get("reasoning") or {}).get("effort")
    expect(effort is None or isinstance(effort, str), "reasoning.effort", "must be a string")
    wanted = (fields.get("text") or {}).get("format")
    expect(wanted is None or isinstance(wanted, dict), "text.format", "must be an object")


def _check_format(fields: Json) -> SchemaCheck | None:
    wanted: Mapping[str, Any] = (fields.get("text") or {}).get("format") or {}
    match wanted.get("type", "text"):
        case "text" | "json_object":
            return None
        case "json_schema":
            expect(isinstance(wanted.get("name"), str), "text.format.name", "must be a string")
            return SchemaCheck.of(wanted.get("schema"), "text.format.schema")
        case _:
            raise RequestError("'text.format.type' must be text, json_object or json_schema.", param="text.format.type")


def _response_format(wanted: Json) -> Json | None:
    match wanted.get("type"):
        case "json_object":
            return {"type": "json_object"}
        case "json_schema":
            keys = ("name", "description", "schema", "strict")
            nested = {key: wanted[key] for key in keys if wanted.get(key) is not None}
            return {"type": "json_schema", "json_schema": nested}
        case _:
            return None


def _is_off(value: Any) -> bool:
    return value in (None, False)


def _must_be(kind: type, called: str) -> _Demand:
    return lambda value: isinstance(value, kind), f"must be {called}"


def _must_be_from(least: int) -> _Demand:
    return lambda value: is_integer(value, least, _MOST), f"must be an integer from {least}"


def _are_strings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _are_few(tools: Any) -> bool:
    return not isinstance(tools, list) or len(tools) <= MOST_TOOLS


# Fields that the proxy reads -> the demand that a value other than null must meet, in the order of the checks.
_DEMANDS: Mapping[str, _Demand] = {
    **dict.fromkeys(("background", "conversation", "prompt"), (_is_off, "is not supported")),
    **dict.fromkeys(("stream", "store", "parallel_tool_calls"), _must_be(bool, "true or false")),
    **dict.fromkeys(("reasoning", "text", "stream_options", "metadata"), _must_be(dict, "an object")),
    **dict.fromkeys(("instructions", "previous_response_id"), _must_be(str, "a string")),
    "max_output_tokens": _must_be_from(1),
    **dict.fromkeys(("max_tool_calls", "top_logprobs"), _must_be_from(0)),
    "include": (_are_strings, "must be a list of strings"),
    "tools": (_are_few, f"may hold {MOST_TOOLS} tools at most"),
}
