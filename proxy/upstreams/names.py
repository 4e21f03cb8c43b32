"""Tool names that an upstream would refuse, mapped to ones that it takes, and back again.

OpenAI's rule and GLM's: `^[a-zA-Z0-9_-]{1,64}$`. Apps send others (`browser.search`, names in other scripts), and
expect to be called by the names that they sent.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache

from proxy.loop.chat import Json, name_of

_GOOD = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_BAD_CHARACTER = re.compile(r"[^a-zA-Z0-9_-]")
_LONGEST = 64


class ToolNames:
    """The mapping for one request."""

    def __init__(self, body: Json) -> None:
        names = dict.fromkeys(name for entry in _named_in(body) if (name := name_of(entry)) is not None)
        self._outward: dict[str, str] = {}
        taken = {name for name in names if _is_good(name)}
        for name in names:
            if name not in taken:
                self._outward[name] = _unused(name, {*taken, *self._outward.values()})
        self._inward = {theirs: ours for ours, theirs in self._outward.items()}

    @property
    def told(self) -> Mapping[str, str]:
        """The names that the upstream was told in place of others -> the others."""
        return self._inward

    def outward(self, body: Json) -> Json:
        """The request with names that the upstream takes; `body` is not changed."""
        mapped = {**body, "messages": [_with_calls(message, self._rename_out) for message in body["messages"]]}
        if body.get("tools"):
            mapped["tools"] = [self._rename_out(tool) for tool in body["tools"]]
        if isinstance(body.get("tool_choice"), dict):
            mapped["tool_choice"] = self._rename_out(body["tool_choice"])
        return mapped

    def inward(self, answer: Json) -> bool:
        """Give a completion or chunk the client's names back, in place; whether there were any."""
        changed = False
        for choice in answer.get("choices") or ():
            message = choice.get("message") or choice.get("delta") or {}
            for call in message.get("tool_calls") or ():
                function = call.get("function") or {}
                if (name := function.get("name")) in self._inward:
                    function["name"] = self._inward[name]
                    changed = True
        return changed

    def _rename_out(self, entry: Json) -> Json:
        name = name_of(entry)
        if name not in self._outward:
            return entry
        kind = entry.get("type", "function")
        return {**entry, kind: {**entry[kind], "name": self._outward[name]}}


def renamed_in(body: Json) -> ToolNames | None:
    """The mapping for a request; None where every name is good, as nearly always."""
    return None if are_good(_named_in(body)) else ToolNames(body)


def are_good(entries: Iterable[Json]) -> bool:
    """Whether an upstream takes the name of every tool among `entries`, of which some are offered and some called."""
    for entry in entries:
        # As `name_of` finds it, without the call: this is done for each tool of each request.
        detail = entry.get(entry.get("type", "function"))
        name = detail.get("name") if detail.__class__ is dict else None
        if name.__class__ is str and not (len(name) <= _LONGEST and is_spelled_well(name)):
            return False
    return True


def _is_good(name: str) -> bool:
    return len(name) <= _LONGEST and is_spelled_well(name)


@lru_cache(1024)  # an app has few, and they stand in each of its requests
def is_spelled_well(name: str) -> bool:
    """Whether a name has the characters that upstreams take."""
    return _GOOD.fullmatch(name) is not None


def _with_calls(message: Json, rename: Callable[[Json], Json]) -> Json:
    calls = message.get("tool_calls")
    return {**message, "tool_calls": [rename(call) for call in calls]} if calls else message


def _named_in(body: Json) -> list[Json]:
    """What has the name of a tool in it: offered, demanded or called."""
    entries = called_in(body["messages"])
    if tools := body.get("tools"):
        entries = [*tools, *entries]
    if (choice := body.get("tool_choice")).__class__ is dict:
        entries.append(choice)
    return entries


def called_in(messages: Iterable[Json]) -> list[Json]:
    """The calls of tools that were made in a conversation."""
    entries: list[Json] = []
    for message in messages:
        if "tool_calls" in message:
            entries += message["tool_calls"] or ()
    return entries


def _unused(name: str, taken: Iterable[str]) -> str:
    base = _BAD_CHARACTER.sub("_", name)[:_LONGEST] or "_"
    candidate, number = base, 2
    while candidate in taken:
        suffix = f"_{number}"
        candidate, number = base[: _LONGEST - len(suffix)] + suffix, number + 1
    return candidate
