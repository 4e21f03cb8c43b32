"""The tool calls of one turn: assembled from the fragments of a stream, or read from a whole message.

Calls of server tools are hidden from the client. The client's own calls get indices without gaps and ids of this run,
so that the client cannot see that there were others.
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TypeGuard

import orjson
from msgspec import Struct, field

from proxy.loop.actions import CallUpstream
from proxy.loop.carried import merged_fields
from proxy.loop.chat import JSON_BLANKS, Json, ToolCall, is_json, name_of
from proxy.loop.continuation import client_call_id
from proxy.loop.leaks import Leak
from proxy.loop.leaks.glm import split_glued_name
from proxy.loop.rawjson import dumps_answer

# The types of calls, and the field of each in which the input arrives in pieces.
_ARGUMENTS = {"function": "arguments", "custom": "input"}
# The keys of a fragment, and of its function, that `PartialCall` holds by themselves.
_OF_FRAGMENTS, _OF_FUNCTIONS = frozenset({"id", "type", *_ARGUMENTS}), frozenset({"name", *_ARGUMENTS.values()})
# An escaped character, a backslash whose character is still to come, a quotation mark or a bracket.
_MARK = re.compile(r'\\.|\\|["{}\[\]]', re.DOTALL)


class ObjectScanner(Struct):
    """Finds the end of a JSON object that arrives in pieces, reading each character once.

    Brackets are counted and nothing is parsed: no object is missed, but a text that is found need not be valid JSON.
    """

    _depth: int = 0
    _in_string: bool = False
    _backslash: str = ""  # at the end of the last piece
    _done: bool = False  # the object is complete, or the text is not an object

    def feed(self, piece: str) -> bool:
        """Take the next piece; whether it completes the object, with nothing but blanks after it."""
        if self._depth == 0 and (begun := piece.lstrip()):
            self._done = self._done or begun[0] != "{"
        if self._done:
            return False
        text, self._backslash = self._backslash + piece, ""
        for match in _MARK.finditer(text):
            mark = match.group()
            if mark == "\\":
                self._backslash = mark
            elif mark == '"':
                self._in_string = not self._in_string
            elif not self._in_string and len(mark) == 1:
                self._depth += 1 if mark in "{[" else -1
                if self._depth == 0:
                    self._done = True
                    return not text[match.end() :].strip()
        return False


class PartialCall(Struct):
    """A tool call that may not be complete yet.

    Attributes:
        id: the upstream's id.
        fields: the other fields as received, such as `extra_content`, which the upstream wants back.
        received: the entry of a whole message; None: the call was streamed.
        arguments: the pieces of the arguments.
        client_index: the index in the client's stream; None: the call is not the client's.
        client_id: the id that the client gets; None: the call is not the client's.
        is_announced: whether `take_ready` has returned the call.
        is_whole: whether the arguments are a complete object, which only blanks can follow.
        scanner: looks for the end of that object.
    """

    id: str
    type: str = "function"
    name: str = ""
    arguments: list[str] = []
    fields: Json = {}
    received: Json | None = None
    client_index: int | None = None
    client_id: str | None = None
    is_announced: bool = False
    is_whole: bool = False
    scanner: ObjectScanner = field(default_factory=ObjectScanner)

    def add_fields(self, fragment: Json, detail: Json) -> None:
        """Add the other fields of a fragment, and of the function that it describes; most have none."""
        if not (fragment.keys() <= _OF_FRAGMENTS and detail.keys() <= _OF_FUNCTIONS):
            self.fields = merged_fields(self.fields, fragment)

    def entry(self) -> Json:
        """The call as an entry of a message's `tool_calls`."""
        if self.received is not None:
            return self.received
        entry = {**self.fields, "id": self.id, "type": self.type}
        if self.type in _ARGUMENTS:
            written = {"name": self.name, _ARGUMENTS[self.type]: "".join(self.arguments)}
            entry[self.type] = {**(self.fields.get(self.type) or {}), **written}
        return entry


class CallAssembler(Struct):
    """Collects the calls of one turn.

    Attributes:
        upstream_call: the upstream call that the turn answers; has the names of all tools, and of the client's.
        by_index: index -> tool call.
        client_count: how many of the calls are the client's.
    """

    upstream_call: CallUpstream
    by_index: dict[int, PartialCall] = {}
    client_count: int = 0

    def add(self, fragments: Sequence[Json]) -> list[Json]:
        """Take in fragments of calls.

        Returns:
            The fragments of the client's own calls, as the client gets them.

        Raises:
            UpstreamError: the arguments are nested too deep.
        """
        shown: list[Json] = []
        for fragment in fragments:
            index = fragment.pop("index", None)
            if not is_index(index):
                index = inferred_index(fragment, {at: call.id for at, call in self.by_index.items()})
            call = self.by_index.get(index)
            if call is None:
                call = self.by_index[index] = PartialCall(fragment.get("id") or self._new_id(index))
            if not call.is_announced:
                call.id = fragment.get("id") or call.id
            call.type = fragment.get("type") or call.type
            detail = fragment.get(call.type) or {}
            call.add_fields(fragment, detail)
            if not isinstance(arguments := detail.get(_ARGUMENTS.get(call.type)), str):
                arguments = as_text(arguments)
            if not call.name and (name := detail.get("name")):
                call.name = name
                if name not in self.upstream_call.tools:
                    call.name, arguments = split_glued_name(name, arguments, self.upstream_call.tools)
            call.arguments.append(arguments)
            if call.scanner.feed(arguments):
                with suppress(orjson.JSONDecodeError):
                    given = orjson.loads("".join(call.arguments))
                    # Some servers begin every call with an empty object, which the arguments follow.
                    call.is_whole = bool(given) or not self._needs_arguments(call)
            if call.name in self.upstream_call.client_tools:
                shown.append(self._opening(call) if call.client_id is None else _more_of(call, fragment, arguments))
        return shown

    def add_whole(self, entries: Sequence[Json]) -> None:
        """Take in the entries of a whole message; they stay as received, but for missing and wrong parts.

        Raises:
            UpstreamError: the arguments are nested too deep.
        """
        for index, entry in enumerate(entries):
            if not entry.get("id"):
                entry["id"] = self._new_id(index)
            if isinstance(function := entry.get("function"), dict):
                name, arguments = function.get("name") or "", as_text(function.get("arguments"))
                function["name"], function["arguments"] = split_glued_name(name, arguments, self.upstream_call.tools)
            call = self.by_index[index] = PartialCall(entry["id"], received=entry)
            if self.upstream_call.client_tools and name_of(entry) in self.upstream_call.client_tools:
                self._show(call)

    def add_leaked(self, leak: Leak) -> list[Json]:
        """Take in a call that was found in a text, and return the entries that the client gets: one, or none."""
        index = max(self.by_index, default=-1) + 1
        name = self.upstream_call.renamed.get(leak.name, leak.name)
        call = self.by_index[index] = PartialCall(self._new_id(index), name=name, arguments=[leak.arguments])
        return [self._opening(call)] if name in self.upstream_call.client_tools else []

    def take_ready(self) -> list[ToolCall]:
        """The server's calls that are complete and not yet returned, in order, up to the first incomplete one.

        Once the next call has begun, arguments that are any JSON value are complete. Empty arguments are not: some
        servers name every call before they send the arguments of the first.
        """
        if not self.by_index:
            return []
        ready: list[ToolCall] = []
        last = max(self.by_index)
        for index in sorted(self.by_index):
            call = self.by_index[index]
            if call.is_announced or call.client_id:
                continue
            arguments = "".join(call.arguments).strip(JSON_BLANKS)
            if not call.name or not (call.is_whole or (index < last and is_json(arguments))):
                break
            call.is_announced = True
            ready.append(ToolCall(call.id, call.name, arguments))
        return ready

    def _needs_arguments(self, call: PartialCall) -> bool:
        return bool(self.upstream_call.tools.get(call.name, {}).get("required"))

    def _new_id(self, index: int) -> str:
        """An id, unique in this run, for a call without one: the tool message that answers the call needs an id."""
        return f"call_{self.upstream_call.run_id}t{self.upstream_call.number}_{index}"

    def _opening(self, call: PartialCall) -> Json:
        """The first fragment that the client gets of a call of its own."""
        self._show(call)
        return {**call.entry(), "index": call.client_index, "id": call.client_id}

    def _show(self, call: PartialCall) -> None:
        """Give one of the client's calls its index and its id in the client's stream."""
        call.client_index = self.client_count
        call.client_id = client_call_id(self.upstream_call.run_id, self.client_count)
        self.client_count += 1


def _more_of(call: PartialCall, fragment: Json, arguments: str) -> Json:
    """A later fragment for the client, without id, type and name: readers of a stream would join repeated strings."""
    rest = {key: value for key, value in fragment.items() if key not in ("id", "type")}
    if call.type in _ARGUMENTS:
        rest[call.type] = {_ARGUMENTS[call.type]: arguments}
    return {**rest, "index": call.client_index}


def as_text(arguments: object) -> str:
    """Arguments as JSON text: ZOAS and native Ollama send an object. Raises `UpstreamError` if that is too deep."""
    if arguments is None:
        return ""
    return arguments if isinstance(arguments, str) else dumps_answer(arguments).decode()


def is_index(index: object) -> TypeGuard[int]:
    """Whether a fragment's `index` can be used: Z.AI has been seen to send -1, and Mistral sends none."""
    return isinstance(index, int) and index >= 0


def inferred_index(fragment: Json, known: Mapping[int, str]) -> int:
    """The index of a fragment without one: a new id begins a call, any other fragment continues the last call.

    Args:
        fragment: a fragment of a call.
        known: the calls of the turn so far, index -> id.
    """
    last, identity = max(known, default=-1), fragment.get("id")
    for index, known_id in known.items():
        if identity and known_id == identity:
            return index
    return last + 1 if identity or last < 0 else last
