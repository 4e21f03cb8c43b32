"""The items of a Responses request as the messages of a chat request.

    adjacent reasoning, messages of the assistant, calls   one assistant message
    outputs of calls, tool_search_output                   a tool message directly after it, in call order
    message of any other role                              a message
    code_interpreter_call with its outputs                 the same: a call, and its result
    web_search_call, the proxy's own mcp_call              nothing: they do not contain what was found
    TURNS                                                  the messages of a stored response, and the results of the
                                                           calls in the last message
    calls of other hosted tools, with what they returned   text
    compactions, lists of tools, approvals                 nothing: they say nothing to a model
    items of any other type, and those that are broken     a note in their place

Each item is checked when it is read. What a client returns in its history is never refused, but for calls and outputs
that do not pair; what a user has just said is.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import orjson
from msgspec import Struct

from proxy.api.fields import expect, refuse
from proxy.api.history import PastCall, PastResult, assistant_message, content_of, joined_text, result_of, with_results
from proxy.api.json_bounds import MOST_MESSAGES
from proxy.api.known import Known, is_read
from proxy.api.responses.encrypted_content import Hidden
from proxy.api.responses.parts import chat_parts
from proxy.api.responses.told import SILENT, broken, told
from proxy.api.responses.tools import ADDITIONAL, FOUND, checked_tools, names_found
from proxy.api.unshown import ALL_FAULTS, NO_FAULTS, Forgiven, Unshown
from proxy.loop.continuation import Continuation
from proxy.loop.prompts import PICTURES
from proxy.loop.results import fenced
from proxy.turn.call_ids import server_call_id
from proxy.wire import rawjson
from proxy.wire.chat import Json
from proxy.wire.errors import RequestError

_BETWEEN = ""  # the texts of several parts, because a client may split a text anywhere
OUR_SERVER = "toolproxy"
CODE_CALL = "code_interpreter_call"
TURNS: Final = object()
"""The type of an item with messages of a stored response; no client can send it."""
_ROLES = ("user", "system", "developer", "assistant")
_NEEDS_A_ROLE = f"needs a role: {', '.join(_ROLES)}"
_CALLS = frozenset({"function_call", "custom_tool_call", "tool_search_call"})
_OUTPUTS = frozenset({"function_call_output", "custom_tool_call_output", FOUND})
# The supported items -> the fields that must be strings in each.
_STRINGS_OF: Mapping[Any, tuple[str, ...]] = {
    **dict.fromkeys(("reasoning", ADDITIONAL, "web_search_call", CODE_CALL, "mcp_call"), ()),
    **dict.fromkeys((*_OUTPUTS, "tool_search_call"), ("call_id",)),
    "message": ("role",),
    "function_call": ("call_id", "name", "arguments"),
    "custom_tool_call": ("call_id", "name", "input"),
    "item_reference": ("id",),
}
# The run and the number of the item in its output.
_OUR_CODE_CALL = re.compile(r"ci_([0-9a-f]{32})_([0-9]+)")


def read_items(given: Any, unshown: Unshown | None = None) -> list[Json]:
    """A request's `input` as items, each with a type and a content of parts.

    `unshown` takes the types of items and parts that a model cannot be shown. Raises `RequestError`, with the place of
    the fault as `param`.
    """
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": given}]}]
    if not isinstance(given, list) or not given:
        refuse("input", "must be a string, or a list of at least one item")
    if len(given) > MOST_MESSAGES:
        refuse("input", f"may hold {MOST_MESSAGES} items at most")
    unshown = unshown or Unshown()
    last, is_answered = last_said(given), any(map(_is_of_assistant, given))
    return [
        item if is_read(item) else _read(item, f"input[{at}]", unshown, is_past=at < last, is_answered=is_answered)
        for at, item in enumerate(given)
    ]


def last_said(items: Sequence[Any]) -> int:
    """The position of the last message of the user's; without one, that of the last item."""
    for at in range(len(items) - 1, -1, -1):
        if isinstance(items[at], dict) and items[at].get("role") == "user":
            return at
    return len(items) - 1


def _is_of_assistant(item: Any) -> bool:
    """Whether an item is an answer, or a part of one."""
    return isinstance(item, dict) and (
        item.get("role") == "assistant" or item.get("type") in (*_CALLS, *_OUTPUTS, "reasoning")
    )


def _read(item: Any, where: str, unshown: Unshown, *, is_past: bool, is_answered: bool) -> Json:
    """The item at `where`; the same object if it has a type, and a list as the content of a message.

    Args:
        item: the item.
        where: its place in the request.
        unshown: as for `read_items`.
        is_past: whether the item stands before the last message of the user's.
        is_answered: whether the input holds an item of the assistant's: then items of unknown types may be such, too.
    """
    if not isinstance(item, dict):
        refuse(where, "must be an object")
    kind = item.get("type") or ("message" if "role" in item else "item_reference" if "id" in item else None)
    if not isinstance(kind, str):
        refuse(where, "needs a 'type', a string")
    if not _is_read_here(item, kind):
        if not (is_past or is_answered):
            raise RequestError(f"Items of type {kind[:64]!r} are not supported.", param=where)
        unshown.add(kind)
        return {**item, "type": kind}
    forgiven = ALL_FAULTS if is_past or kind in _OUTPUTS else NO_FAULTS
    try:
        return _checked(item, kind, where, forgiven, unshown)
    except RequestError:
        if not is_past:
            raise
        unshown.add(kind)
        return broken(item, kind)


def _is_read_here(item: Json, kind: str) -> bool:
    """Whether an item has a meaning of its own; calls of other MCP servers are those of hosted tools."""
    return kind in _STRINGS_OF and (kind != "mcp_call" or item.get("server_label") == OUR_SERVER)


def _checked(item: Json, kind: str, where: str, forgiven: Forgiven, unshown: Unshown) -> Json:
    """An item with a meaning of its own. Raises `RequestError`."""
    for key in _STRINGS_OF[kind]:
        expect(isinstance(item.get(key), str), where, f"needs '{key}', a string")
    if kind == "message" and isinstance(text := item.get("content"), str):
        part = {"type": "output_text", "annotations": []} if item["role"] == "assistant" else {"type": "input_text"}
        item = {**item, "content": [{**part, "text": text}]}
    before = unshown.count
    _check(item, kind, where, forgiven, unshown)
    if item.get("type") != kind:
        return {**item, "type": kind}
    if isinstance(item, Known) and unshown.count == before:  # notes depend on the place in the conversation
        item.reading = _reading_of(item)
    return item


def _check(item: Json, kind: str, where: str, forgiven: Forgiven, unshown: Unshown) -> None:
    if kind == "message":
        expect(item["role"] in _ROLES, where, _NEEDS_A_ROLE)
        expect(isinstance(item.get("content"), list), where, "needs a 'content'")
        chat_parts(item["content"], f"{where}.content", forgiven, unshown)
    elif kind == "reasoning":
        for key in ("content", "summary"):
            expect(isinstance(item.get(key), list | None), where, f"needs a list as '{key}'")
    elif kind in (ADDITIONAL, FOUND):
        checked_tools(item, f"{where}.tools")
    elif kind == "tool_search_call":
        expect(isinstance(item.get("arguments"), dict), where, "needs 'arguments', an object")
    elif kind in _OUTPUTS:
        expect(isinstance(item.get("output"), str | list), where, "needs an 'output'")
        parts = item["output"] if isinstance(item["output"], list) else ()
        chat_parts(parts, f"{where}.output", forgiven, unshown)


def _reading_of(item: Json) -> Any:
    """An item translated by itself: a message's content, a call's result; a known item keeps what was made of it."""
    if is_read(item):
        return item.reading
    if item["type"] == "message":
        parts = chat_parts(item["content"], "input", ALL_FAULTS)
        return joined_text(parts, _BETWEEN) if item["role"] == "assistant" else content_of(parts, _BETWEEN)
    if item["type"] not in _OUTPUTS:
        return ""
    output = names_found(item) if item["type"] == FOUND else item["output"]
    if isinstance(output, str):
        return PastResult(output)
    return result_of(chat_parts(output, "input", ALL_FAULTS), _BETWEEN)


def read_conversation(
    items: Sequence[Json],
    *,
    instructions: str | None,
    name_of: Callable[[Json], str],
    unseal: Callable[[Any], str | Hidden | None],
) -> tuple[list[Json], Mapping[str, Continuation]]:
    """The items as messages of a chat request, and the hidden parts of runs that the client has sent back, by run.

    Args:
        items: the whole conversation.
        instructions: the system message before it.
        name_of: gives the model's name for the tool of a call.
        unseal: opens `encrypted_content`.

    Raises:
        RequestError: a call has no output, or an output has no call.
    """
    writer = _MessageWriter(name_of, unseal)
    # An id that is used several times has the output of its first call last.
    for item in reversed(items):
        if item["type"] in _OUTPUTS:
            writer.outputs.setdefault(item["call_id"], []).append(item)
    if instructions:
        writer.messages.append({"role": "system", "content": instructions})
    for item in items:
        writer.take(item)
    writer.flush()
    for call_id, unpaired in reversed(writer.outputs.items()):  # the first of them is named
        if unpaired:
            message = f"No tool call found for function call output with call_id {call_id}."
            raise RequestError(message, param="input")
    return writer.messages, writer.hidden


class _MessageWriter(Struct):
    """Makes messages from items. Items of the assistant are collected in one message until an item of another role.

    Attributes:
        outputs: the outputs that no call has taken yet, by `call_id`, the last one first.
        has_results: whether the collected items contain what their calls returned: a text belongs to the next turn.
    """

    name_of: Callable[[Json], str]
    unseal: Callable[[Any], str | Hidden | None]
    outputs: dict[str, list[Json]] = {}
    messages: list[Json] = []
    hidden: dict[str, Continuation] = {}
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[PastCall] = []
    has_results: bool = False

    def take(self, item: Json) -> None:
        """Translate the next item of the conversation."""
        kind = item["type"]
        if self.has_results and kind in ("message", "reasoning"):  # of the next turn
            self.flush()
        match kind:
            case "message":
                self._add_message(item)
            case "reasoning":
                self._add_reasoning(item)
            case _ if kind in _CALLS:
                self._add_call(item)
            case _ if kind in _OUTPUTS:
                self.flush()
            case _ if kind == CODE_CALL:
                self._add_code_call(item)
            case _ if kind is TURNS:
                self.flush()
                *before, last = item["messages"]
                results = [self._result_of(call["id"]) for call in last.get("tool_calls") or ()]
                self.messages += [*before, *with_results(last, results, above_pictures=PICTURES)]
            case _ if not _is_read_here(item, kind):
                self._add_other(item)

    def _add_message(self, item: Json) -> None:
        said = _reading_of(item)
        if item["role"] != "assistant":
            self.flush()
            self.messages.append({"role": item["role"], "content": said})
        elif said:
            self.texts.append(said)

    def _add_other(self, item: Json) -> None:
        """Add an item that is text here, if it says anything."""
        kind = item["type"]
        if kind in SILENT:
            return
        if kind.endswith("_output"):
            self.flush()
            self.messages.append({"role": "user", "content": told(item)})
        else:
            self.texts.append(told(item))

    def _add_reasoning(self, item: Json) -> None:
        match self.unseal(item.get("encrypted_content")):
            case Hidden(run_id, continuation):
                self.hidden[run_id] = continuation
            case str(text):
                self.thoughts.append(text)
            case None:
                parts = item.get("content") or item.get("summary") or ()
                texts = [part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]
                self.thoughts += [text for text in texts if text]

    def _add_call(self, item: Json) -> None:
        match item["type"]:
            case "custom_tool_call":
                arguments = orjson.dumps({"input": item["input"]}).decode()
            case "tool_search_call":
                arguments = rawjson.dumps(item["arguments"]).decode()
            case _:
                arguments = item["arguments"]
        call_id = item["call_id"]
        self.calls.append(PastCall(call_id, self.name_of(item), arguments, self._result_of(call_id)))

    def _add_code_call(self, item: Json) -> None:
        """Add a call of the server's, unless the item does not contain what came of it."""
        outputs = item.get("outputs")
        logs = [one["logs"] for one in outputs or () if isinstance(one, dict) and isinstance(one.get("logs"), str)]
        if not logs:
            return
        identity, name = item.get("id"), self.name_of(item)
        ours = _OUR_CODE_CALL.fullmatch(identity) if isinstance(identity, str) else None
        # Under this id, the call has its place in what may be stored of its run.
        call_id = server_call_id(ours[1], int(ours[2])) if ours else f"code_{len(self.messages)}_{len(self.calls)}"
        arguments = orjson.dumps({"code": item.get("code") or ""}).decode()
        self.calls.append(PastCall(call_id, name, arguments, PastResult(fenced(name, "\n".join(logs)))))
        self.has_results = True

    def flush(self) -> None:
        """Write the collected message of the assistant, if there is one."""
        texts, thoughts, calls = self.texts, self.thoughts, self.calls
        if texts or thoughts or calls:
            self.texts, self.thoughts, self.calls, self.has_results = [], [], [], False
            results = [call.result for call in calls if call.result]
            message = assistant_message("\n\n".join(texts), thoughts, calls)
            self.messages += with_results(message, results, above_pictures=PICTURES)

    def _result_of(self, call_id: str) -> PastResult:
        """The next result of a call with that id."""
        outputs = self.outputs.get(call_id)
        if not outputs:
            raise RequestError(f"No tool output found for function call {call_id}.", param="input")
        result: PastResult = _reading_of(outputs.pop())
        return result
