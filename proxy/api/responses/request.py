"""A Responses request: read, checked, and translated into a chat request."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from msgspec import Meta, Struct

from proxy.api.fields import Count, Name, PositiveCount, expect, quoted, read_fields
from proxy.api.known import is_read
from proxy.api.parsing import MOST_TOOLS
from proxy.api.responses.conversation import read_items
from proxy.api.schema import SchemaCheck
from proxy.api.unshown import Unshown
from proxy.wire import rawjson
from proxy.wire.chat import Json

# Fields with the same meaning in both APIs; null is treated as absent.
_OF_SAMPLING = ("frequency_penalty", "presence_penalty", "seed", "stop", "temperature", "top_p")
_OF_GLM_AND_VLLM = ("chat_template_kwargs", "thinking", "tool_stream")
_SAME = frozenset({*_OF_SAMPLING, *_OF_GLM_AND_VLLM, "max_tool_calls", "parallel_tool_calls", "user"})
SENT_AS: Mapping[str, str] = {
    "max_tokens": "max_output_tokens",
    "messages": "input",
    "reasoning_effort": "reasoning.effort",
    "response_format": "text.format",
}
"""Fields of the chat request -> the fields of the Responses request from which they are made."""
_SECRETS = ("authorization", "headers")  # fields of an `mcp` tool
SOURCES = "web_search_call.action.sources"
CODE_OUTPUTS = "code_interpreter_call.outputs"
ENCRYPTED = "reasoning.encrypted_content"
LOGPROBS = "message.output_text.logprobs"


_UNSUPPORTED = ("background", "conversation", "prompt")  # may be false or null
# The place of a field that the proxy reads -> what its value must be.
_DEMANDS: Mapping[str, str] = {
    "model": "must be the name of a model",
    **dict.fromkeys(_UNSUPPORTED, "is not supported"),
    **dict.fromkeys(("stream", "store", "parallel_tool_calls"), "must be true or false"),
    **dict.fromkeys(("reasoning", "text", "text.format", "stream_options", "metadata"), "must be an object"),
    **dict.fromkeys(("reasoning.effort", "instructions", "previous_response_id"), "must be a string"),
    "max_output_tokens": "must be an integer from 1",
    **dict.fromkeys(("max_tool_calls", "top_logprobs"), "must be an integer from 0"),
    "include": "must be a list of strings",
    "tools": f"must be a list of at most {MOST_TOOLS} tools",
}


class _Reasoning(Struct, frozen=True):
    effort: str | None = None
    summary: object = None
    generate_summary: object = None  # the earlier name of `summary`


class _TextOptions(Struct, frozen=True):
    format: Json | None = None


class _CreateFields(Struct, frozen=True):
    model: Name
    background: None = None
    conversation: None = None
    prompt: None = None
    stream: bool | None = None
    store: bool | None = None
    parallel_tool_calls: bool | None = None
    reasoning: _Reasoning | None = None
    text: _TextOptions | None = None
    stream_options: Json | None = None
    metadata: Json | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    max_output_tokens: PositiveCount | None = None
    max_tool_calls: Count | None = None
    top_logprobs: Count | None = None
    include: list[str] | None = None
    tools: Annotated[list[Any], Meta(max_length=MOST_TOOLS)] | None = None


class ResponsesRequest(Struct, frozen=True):
    """A client's request.

    Attributes:
        fields: the fields as the client sent them, without secrets; the response echoes them.
        asked: those fields that the proxy reads.
        items: the items of its `input`.
        response_format: its `text.format` in the form of Chat Completions; None: any text.
        check: checks the answer against the schema in `text.format`; None: there is none.
        unshown: the types of items and parts that the model is not shown.
        summary: whether the client wants reasoning as a summary as well.
    """

    fields: Json
    asked: _CreateFields
    items: Sequence[Json]
    response_format: Json | None
    check: SchemaCheck | None
    unshown: Unshown
    summary: bool

    def as_chat(self, messages: Sequence[Json], tools: Json) -> Json:
        """The request as one of Chat Completions, with these messages and fields for tools."""
        asked = self.asked
        optional = {
            **{key: value for key, value in self.fields.items() if key in _SAME},
            "max_tokens": asked.max_output_tokens,
            "reasoning_effort": asked.reasoning.effort if asked.reasoning is not None else None,
            "response_format": self.response_format,
            "top_logprobs": asked.top_logprobs or None,
            "logprobs": True if asked.top_logprobs or LOGPROBS in (asked.include or ()) else None,
            "stream": True if asked.stream else None,
        }
        given = {key: value for key, value in optional.items() if value is not None}
        return {"model": asked.model, "messages": messages, **tools, **given}


def read_request(fields: Json) -> ResponsesRequest:
    """A request. The fields that the proxy reads are checked.

    Raises:
        RequestError: a field is not well formed; its name is `param`.
    """
    for name in _UNSUPPORTED:
        if fields.get(name) is False:
            del fields[name]
    asked = read_fields(fields, _CreateFields, _DEMANDS)
    given = fields.get("input")
    new = [item for item in given if not is_read(item)] if isinstance(given, list) else given
    # The response echoes the fields one level deeper, where they must not be nested too deep to be written.
    rawjson.dumps({"response": {**fields, "input": new}})
    unshown = Unshown()
    items = [without_secrets(item) if item.get("tools") else item for item in read_items(given, unshown)]
    wanted, reasoning = asked.text.format if asked.text is not None else None, asked.reasoning or _Reasoning()
    response_format, check = _read_format(wanted) if wanted else (None, None)
    summary = (reasoning.summary or reasoning.generate_summary or "none") != "none"
    return ResponsesRequest(without_secrets(fields), asked, items, response_format, check, unshown, summary)


def without_secrets(holder: Any) -> Any:
    """A request, an item or a tool, fit to be stored and echoed: without the credentials of declared MCP servers."""
    if not isinstance(holder, dict):
        return holder
    if holder.get("type") == "mcp":
        return {key: value for key, value in holder.items() if key not in _SECRETS}
    tools = holder.get("tools")
    return {**holder, "tools": list(map(without_secrets, tools))} if tools and isinstance(tools, list) else holder


def _read_format(wanted: Json) -> tuple[Json | None, SchemaCheck | None]:
    """`text.format` as `response_format`, and the check of its schema. Raises `RequestError`."""
    match wanted.get("type", "text"):
        case "text":
            return None, None
        case "json_object":
            return {"type": "json_object"}, None
        case "json_schema":
            expect(isinstance(wanted.get("name"), str), "text.format.name", "must be a string")
            keys = ("name", "description", "schema", "strict")
            nested = {key: wanted[key] for key in keys if wanted.get(key) is not None}
            check = SchemaCheck.of(wanted.get("schema"), "text.format.schema")
            return {"type": "json_schema", "json_schema": nested}, check
        case _:
            raise quoted("text.format.type", "must be text, json_object or json_schema")
