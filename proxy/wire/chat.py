"""The keys of Chat Completions that the loop reads.

JSON stays JSON: messages, chunks and bodies are plain dicts, and keys that are not named here pass through untouched.
The frozen values below are those on which the loop itself decides.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import repeat
from types import MappingProxyType
from typing import Any, TypeAlias

import orjson
from msgspec import Struct

from proxy.wire.json_text import is_json

Json: TypeAlias = dict[str, Any]

# The text fields of a message that arrive in pieces. `reasoning_content` is the name at Z.AI and llama.cpp,
# `reasoning` at vLLM, OpenRouter, Groq and Cerebras.
TEXT_FIELDS = ("content", "reasoning_content", "reasoning", "refusal")

JSON_BLANKS = " \t\n\r"  # the only blanks that JSON permits around a value

# A turn that ends for one of these reasons was broken off: its calls are not complete, and another turn would not help.
BROKEN_OFF = ("length", "content_filter")

_LONGEST_READ_AGAIN = 64 * 1024  # characters of arguments, which are a few milliseconds for each reading

_TOKEN_LIMITS = ("max_completion_tokens", "max_tokens")
_TOOL_REQUEST_FIELDS = ("tools", "tool_choice", "parallel_tool_calls")

NATIVE_REASON = "native_finish_reason"
"""The field of a choice for the upstream's own finish reason, if its profile translates that. OpenRouter's name."""

WINDOW_EXCEEDED = "model_context_window_exceeded"
"""The finish reason of a turn that has filled the model's context; a word that GLM and Anthropic share."""


class ToolCall(Struct, frozen=True):
    """A function call that a model asked for.

    Attributes:
        id: the upstream's own id; the tool message that answers the call has to carry it.
        name: as the model wrote it, or the tool's own name once the call is resolved.
        arguments: JSON text, not parsed; as the model wrote it, or in the tool's terms once the call is resolved.
    """

    id: str
    name: str
    arguments: str

    @property
    def fingerprint(self) -> tuple[str, str]:
        """A key that is equal for calls of one tool with equal arguments; empty arguments and `null` equal `{}`.

        Long arguments are compared as they are written.
        """
        if len(self.arguments) > _LONGEST_READ_AGAIN:
            return self.name, self.arguments
        try:
            parsed = orjson.loads(self.arguments) if self.arguments.strip() else None
            arguments = orjson.dumps({} if parsed is None else parsed, option=orjson.OPT_SORT_KEYS).decode()
        except (orjson.JSONDecodeError, orjson.JSONEncodeError):  # not JSON, or nested too deep to be written
            arguments = self.arguments
        return self.name, arguments


class ToolSpec(Struct, frozen=True):
    """A server tool as a model sees it.

    Attributes:
        name: the tool's name in the configuration.
        description: the description for the model.
        parameters: a JSON Schema of type object.
        aliases: other names under which a model or a client may call the tool.
        max_calls: how often the tool may run in one request; None: as often as the request's budget allows.
        offer: when the tool is shown to a model: always, on_request, declared or never.
        eager: whether a call may start while the model is still writing its turn. False for tools that change things:
            the turn may still fail and be asked for again.
        group: the entry of the configuration that the tool comes from, if that entry has several tools; its name stands
            for all of them wherever tools are chosen.
        searches: whether the tool searches the web, so that its calls count as `web_search_requests`; true of
            `web_search` in any case.
        fetches: whether the tool fetches any web page itself, so that it does the work of Messages' `web_fetch`.
        alias_parameters: alias -> the JSON Schema of calls by that alias, if it is not `parameters`.
        serves: the hosted tool in whose place this one stands where a request declares that (`code_interpreter`); None:
            it stands for itself alone.
        needs: the names, in lower case, of the headers of a request without which the tool cannot be called.
    """

    name: str
    description: str
    parameters: Json
    aliases: tuple[str, ...] = ()
    max_calls: int | None = None
    offer: str = "always"
    eager: bool = True
    group: str | None = None
    searches: bool = False
    fetches: bool = False
    alias_parameters: Mapping[str, Json] = {}
    serves: str | None = None
    needs: frozenset[str] = frozenset()

    @property
    def names(self) -> tuple[str, ...]:
        """Every name under which a model or a client may call the tool, its own first."""
        return (self.name, *self.aliases)

    def is_among(self, names: Collection[str]) -> bool:
        """Whether a selection by names includes the tool: by its name, an alias or its group."""
        return any(name in names for name in self.names) or (self.group is not None and self.group in names)

    def definition(self) -> Json:
        """The entry of a request's `tools`."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}


class Turn(Struct, frozen=True):
    """A whole upstream answer.

    Attributes:
        message: the assistant message as received. It goes back into the history unchanged.
        finish_reason: why the model stopped, in OpenAI's terms.
        choice: the other fields of the answer's only choice (index, logprobs, ...).
        envelope: the fields of the answer but `choices` and `usage` (id, model, system_fingerprint, ...).
        calls: the function calls in the message, in order.
        usage: the upstream's own count of tokens; None: it sent none.
        buffered: chunks of a stream that were not shown, because the turn first had to prove to be the answer.
        aside: chunks of a stream with unknown fields, which are shown if the turn is the last one.
        garbled: whether raw model format without a meaning was taken out of the text.
        client_ids: for each entry of the message's `tool_calls` the id that the client gets; None: the call is not the
            client's. Empty if none of the calls is.
        step: the step by which the model was made to answer (`forcing.AnswerStep`); None: it was not made to.
        number: the number of the upstream call that the turn answers, from 1.
    """

    message: Json
    finish_reason: str
    choice: Mapping[str, Any] = MappingProxyType({})
    envelope: Mapping[str, Any] = MappingProxyType({})
    calls: tuple[ToolCall, ...] = ()
    usage: Json | None = None
    buffered: tuple[Json, ...] = ()
    aside: tuple[Json, ...] = ()
    garbled: bool = False
    client_ids: tuple[str | None, ...] = ()
    step: str | None = None
    number: int = 1

    @property
    def text(self) -> str:
        """The text for the user; empty if there is none."""
        return text_of(self.message)

    @property
    def fills_context(self) -> bool:
        """Whether the turn ended because the model's context was full."""
        return self.choice.get(NATIVE_REASON) == WINDOW_EXCEEDED

    @property
    def server_calls(self) -> tuple[ToolCall, ...]:
        """The function calls that are not the client's, in order."""
        if not self.client_ids:
            return self.calls
        return calls_of({"tool_calls": [entry for entry, client_id in self.entries if client_id is None]})

    @property
    def entries(self) -> Iterator[tuple[Json, str | None]]:
        """Each entry of the message's `tool_calls` with the id that the client gets; None: not the client's call."""
        return zip(self.message.get("tool_calls") or (), self.client_ids or repeat(None), strict=False)


def text_of(message: Json) -> str:
    """The text of a message, whose content may be a string or a list of parts."""
    content = message.get("content")
    if isinstance(content, list):
        return "".join(part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str))
    return content if isinstance(content, str) else ""


def thoughts_of(content: Sequence[Any]) -> str:
    """The thoughts in a content of parts, in Mistral's format: `{"type": "thinking", "thinking": [{"text"}]}`."""
    return "".join([text_of({"content": part["thinking"]}) for part in content if _is_thinking(part)])


def parts_beside_text(content: Sequence[Any]) -> list[Json]:
    """The parts of a content that are not text; thoughts that were streamed in pieces are joined into one part."""
    parts: list[Json] = []
    for part in content:
        if not isinstance(part, dict) or isinstance(part.get("text"), str):
            continue
        if parts and _is_thinking(part) and _is_thinking(parts[-1]):
            thoughts = thoughts_of([parts[-1], part])
            parts[-1] = {**parts[-1], **part, "thinking": [{"type": "text", "text": thoughts}]}
        else:
            parts.append(part)
    return parts


def _is_thinking(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "thinking" and "thinking" in part


def in_plain_text(message: Json) -> Json:
    """A message with its content of parts as text and `reasoning_content`; a message without parts as it is."""
    content = message.get("content")
    if not isinstance(content, list):
        return message
    plain = {**message, "content": text_of(message)}
    if thoughts := thoughts_of(content):
        plain["reasoning_content"] = (plain.get("reasoning_content") or "") + thoughts
    return plain


def calls_of(message: Json) -> tuple[ToolCall, ...]:
    """The function calls in an assistant message; bigmodel lists the results of its own MCP servers beside them."""
    calls: list[ToolCall] = []
    for entry in message.get("tool_calls") or ():
        if entry.get("type", "function") == "function":
            function = entry.get("function") or {}
            arguments = (function.get("arguments") or "").strip(JSON_BLANKS)
            calls.append(ToolCall(entry.get("id") or "", function.get("name") or "", arguments))
    return tuple(calls)


def name_of(tool: Json) -> str | None:
    """The name in an entry of a request's `tools`; None for a hosted tool, which has no name."""
    detail = tool.get(tool.get("type", "function"))
    name = detail.get("name") if isinstance(detail, dict) else None
    return name if isinstance(name, str) else None


def choice_of(name: str) -> Json:
    """The `tool_choice` that demands a call of the function of that name."""
    return {"type": "function", "function": {"name": name}}


def drop_tools(body: Json) -> None:
    """Remove a request's `tools`, and the fields that an upstream refuses, or may refuse, without `tools`."""
    for name in _TOOL_REQUEST_FIELDS:
        body.pop(name, None)


def inferred_reason(message: Json, request: Json, usage: Any) -> str | None:
    """The finish_reason of an answer that came to an orderly end without one.

    xAI behind OpenRouter (when `max_tokens` was reached), Snowflake and Nebius leave it out, or send `null` or `""`.

    Returns:
        `tool_calls` if all calls are complete, else `length` if `max_tokens` was reached, else `stop`; None: nothing in
        the answer is complete.
    """
    calls = message.get("tool_calls") or ()
    if calls and all(map(_is_whole, calls)):
        return "tool_calls"
    function = message.get("function_call")
    if isinstance(function, dict) and function.get("name"):
        return "function_call"
    written = usage.get("completion_tokens") if isinstance(usage, dict) else None
    limits = [limit for name in _TOKEN_LIMITS if isinstance(limit := request.get(name), int)]
    if isinstance(written, int) and limits and written >= min(limits):
        return "length"
    return "stop" if not calls and (text_of(message) or message.get("refusal")) else None


def _is_whole(call: Json) -> bool:
    """Whether the arguments of a call can be complete: they are empty, or JSON."""
    function = call.get("function")
    arguments = function.get("arguments") if isinstance(function, dict) else None
    return not isinstance(arguments, str) or not arguments.strip() or is_json(arguments)
