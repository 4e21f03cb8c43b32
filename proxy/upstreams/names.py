"""Replaces tool names that an upstream would refuse in requests, and restores them in answers.

OpenAI and GLM accept `^[a-zA-Z0-9_-]{1,64}$`. Apps send other names (`browser.search`, names in other scripts), and
expect calls with the names that they sent. Some servers leave parts of a model's raw format attached to the name of a
call, which are taken off.
"""

import re
from collections.abc import Collection, Iterable, Mapping

from proxy.turn.call_fragments import as_text
from proxy.turn.leaks import clean_name
from proxy.turn.leaks.glm import split_glued_name
from proxy.wire.chat import Json, name_of

_GOOD = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_BAD_CHARACTER = re.compile(r"[^a-zA-Z0-9_-]")
_LONGEST = 64


class ToolNames:
    """The names that are replaced in one request.

    Attributes:
        originals: the names in the upstream's request -> the client's names.
    """

    def __init__(self, names: Iterable[str]) -> None:
        taken = {name for name in names if _GOOD.fullmatch(name)}
        self._replacements: dict[str, str] = {}
        for name in names:
            if name not in taken:
                self._replacements[name] = _unused(name, {*taken, *self._replacements.values()})
        self.originals = {replacement: name for name, replacement in self._replacements.items()}

    @classmethod
    def replaced_in(cls, body: Json) -> "ToolNames | None":
        """The names to replace in a request, of tools that it offers, demands or has called; None: all are valid."""
        entries = [*(body.get("tools") or ())]
        if isinstance(choice := body.get("tool_choice"), dict):
            entries.append(choice)
        for message in body["messages"]:
            if "tool_calls" in message:
                entries += message["tool_calls"] or ()
        names: dict[str, None] = {}
        for entry in entries:
            if (name := name_of(entry)) is not None:  # hosted tools have no name
                names[name] = None
        return None if all(map(_GOOD.fullmatch, names)) else cls(names)

    def replace(self, body: Json) -> Json:
        """The request with names that the upstream accepts; `body` is not modified."""
        replaced = dict(body)
        replaced["messages"] = [
            {**message, "tool_calls": [self._renamed(call) for call in message["tool_calls"]]}
            if message.get("tool_calls")
            else message
            for message in body["messages"]
        ]
        if body.get("tools"):
            replaced["tools"] = [self._renamed(tool) for tool in body["tools"]]
        if isinstance(choice := body.get("tool_choice"), dict):
            replaced["tool_choice"] = self._renamed_choice(choice)
        return replaced

    def restore(self, answer: Json) -> None:
        """Restore the client's names in a completion or chunk, in place."""
        for choice in answer.get("choices") or ():
            message = choice.get("message") or choice.get("delta") or {}
            for call in message.get("tool_calls") or ():
                detail = call.get("function") or call.get("custom") or {}
                name = clean_name(detail.get("name") or "", self.originals)
                if name in self.originals:
                    detail["name"] = self.originals[name]

    def _renamed_choice(self, choice: Json) -> Json:
        allowed = choice.get("allowed_tools")
        if isinstance(allowed, dict) and allowed.get("tools"):
            return {**choice, "allowed_tools": {**allowed, "tools": [self._renamed(tool) for tool in allowed["tools"]]}}
        return self._renamed(choice)

    def _renamed(self, entry: Json) -> Json:
        name = name_of(entry)
        if name not in self._replacements:
            return entry
        kind = entry.get("type", "function")
        return {**entry, kind: {**entry[kind], "name": self._replacements[name]}}


def functions_of(request: Json) -> dict[str, Json]:
    """The names of the functions that a request offers -> their JSON Schemas."""
    functions: dict[str, Json] = {}
    for tool in request.get("tools") or ():
        if (name := name_of(tool)) is not None:
            schema = tool[tool.get("type", "function")].get("parameters")
            functions[name] = schema if isinstance(schema, dict) else {}
    return functions


def clean_calls(answer: Json, request: Json) -> None:
    """Take raw format off the names in the calls of a whole completion, in place."""
    entries = [entry for choice in answer["choices"] for entry in choice["message"].get("tool_calls") or ()]
    # A name that has only letters, digits and underscores holds no raw format.
    raw = [entry for entry in entries if not ((entry.get("function") or {}).get("name") or "").isidentifier()]
    functions = functions_of(request) if raw else {}
    for entry in raw:
        clean_call(entry, functions)


def clean_call(entry: Json, functions: Mapping[str, Json]) -> None:
    """Take raw format off the name in an entry of `tool_calls`, in place, if that gives the name of a function.

    Raises:
        UpstreamError: the arguments are nested too deep.
    """
    function = entry.get("function") or {}
    if not (name := function.get("name")) or name in functions:
        return
    name, arguments = split_glued_name(name, as_text(function.get("arguments")), functions)
    if name in functions:
        function["name"], function["arguments"] = name, arguments


def _unused(name: str, taken: Collection[str]) -> str:
    """A valid name similar to `name` that is not `taken`."""
    base = _BAD_CHARACTER.sub("_", name)[:_LONGEST] or "_"
    candidate, number = base, 2
    while candidate in taken:
        suffix = f"_{number}"
        candidate, number = base[: _LONGEST - len(suffix)] + suffix, number + 1
    return candidate
