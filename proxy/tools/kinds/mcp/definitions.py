"""What a server says its tools are, and what becomes of it when it says something else.

    accepted    whatever it says is offered; a change is logged
    pinned      what was seen first is kept in the state store, and nothing else is offered: a tool that changes is
                withheld until it changes back, or until the operator accepts what it has become. So is a tool that is
                new on a known server

A definition is what a model reads of a tool, and what says how its calls are made: description, schema, and the hints
that it only reads or may be repeated.
"""

import asyncio
import math
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import islice, takewhile
from typing import Any, Final, Protocol

import msgspec
import orjson
from mcp_types import Tool as ListedTool
from mcp_types import ToolAnnotations
from msgspec import Struct

from proxy.loop.fence import INVISIBLE
from proxy.ports import Clock, Observer, Pins
from proxy.tools.kinds.mcp.content import is_malformed
from proxy.wire.chat import Json

POLL_SECONDS: Final = 5.0
"""Seconds after which another look is taken at what is pinned, which `toolproxy check --accept` may have changed."""

_LONGEST_KEPT = 16 * 1024  # bytes of a definition that is kept to be compared; of a longer one there is only the hash
_MOST_DIFFERENCES = 3
_AROUND = 60  # characters shown before and after a difference
_MOST_KEPT = 1024  # names for one server: one that lists ever new ones fills neither the memory nor the state store
_NEW = "it is new"
# Kept beside the pins of a server that was accepted, whatever it listed; no tool has this name.
_ACCEPTED = ""


class Pin(Struct, frozen=True):
    """A definition that was pinned: its hash, and itself if it is short enough to be shown."""

    hash: str
    definition: Json | None = None

    @classmethod
    def of(cls, listed: ListedTool) -> "Pin":
        """The pin of a tool as it is listed."""
        hints = listed.annotations or ToolAnnotations()
        definition = {
            "description": listed.description or listed.title or hints.title or "",
            "schema": listed.input_schema,
            "reads_only": hints.read_only_hint is True,
            "may_be_repeated": hints.idempotent_hint is True,
        }
        try:
            data = orjson.dumps(definition, option=orjson.OPT_SORT_KEYS)
        except (orjson.JSONEncodeError, RecursionError):  # such a tool is refused for that
            return cls(sha256(repr(definition).encode("utf-8", "replace")).hexdigest())
        return cls(sha256(data).hexdigest(), definition if len(data) <= _LONGEST_KEPT else None)

    def changed_to(self, now: "Pin") -> str:
        """The differences to a later definition, as text for the log."""
        if self.definition is None or now.definition is None:
            return "its definition, which is too large to be shown"
        found = list(islice(_differences(self.definition, now.definition, ""), _MOST_DIFFERENCES + 1))
        more = ["and more"] if len(found) > _MOST_DIFFERENCES else []
        return "; ".join([*found[:_MOST_DIFFERENCES], *more])


def _differences(before: Any, now: Any, path: str) -> Iterator[str]:
    if before == now:
        return
    if isinstance(before, dict) and isinstance(now, dict):
        for key in dict.fromkeys((*before, *now)):
            at = f"{path}.{key}" if path else str(key)
            if key not in now:
                yield f"{_visible(at)}: gone"
            elif key not in before:
                yield f"{_visible(at)}: added: {_shown(now[key], 0)}"
            else:
                yield from _differences(before[key], now[key], at)
        return
    old, new = _text(before), _text(now)
    alike = takewhile(lambda pair: pair[0] == pair[1], zip(old, new, strict=False))
    place = sum(1 for _ in alike)
    yield f"{_visible(path)}: {_shown(old, place)} -> {_shown(new, place)}"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _shown(value: Any, at: int) -> str:
    """A value around a place in it, quoted."""
    text, begin = _text(value), max(0, at - _AROUND)
    part = text[begin : at + _AROUND]
    return f'"{"..." if begin else ""}{_visible(part)}{"..." if at + _AROUND < len(text) else ""}"'


def _visible(text: str) -> str:
    """A text in which nothing is hidden from whoever reads the log."""
    return INVISIBLE.sub(lambda found: found[0].encode("unicode_escape").decode(), text[: 4 * _AROUND])


class Definitions(Protocol):
    """Decides which tools of a server are offered as they are listed."""

    @property
    def judged_by(self) -> Mapping[str, bytes] | None:
        """The pins by which a list was last checked."""
        ...

    async def withheld(self, listed: Sequence[ListedTool]) -> frozenset[str]:
        """The names of the tools that are not offered."""
        ...


async def _pins_of(listed: Sequence[ListedTool]) -> dict[str, Pin]:
    pins: dict[str, Pin] = {}
    for tool in listed:
        if not is_malformed(tool):
            pins.setdefault(tool.name, Pin.of(tool))  # of two tools with one name, the first one is offered
            await asyncio.sleep(0)  # a definition may have a quarter of a megabyte
    return pins


class AcceptedDefinitions:
    """`definitions: accepted`. Implements `Definitions`."""

    judged_by = None

    def __init__(self, server: str, observe: Observer) -> None:
        self._server = server
        self._observe = observe
        self._seen: dict[str, Pin] = {}

    async def withheld(self, listed: Sequence[ListedTool]) -> frozenset[str]:
        """No tools; what has changed is logged."""
        now = await _pins_of(listed)
        for name, pin in now.items():
            before = self._seen.get(name, pin)
            if before.hash != pin.hash:
                self._observe("mcp.tool_changed", server=self._server, tool=name, change=before.changed_to(pin))
        for name in now:
            self._seen.pop(name, None)
        self._seen |= now  # those of the last list come last
        while len(self._seen) > _MOST_KEPT:
            del self._seen[next(iter(self._seen))]
        return frozenset()


class PinnedDefinitions:
    """`definitions: pinned`, for one server and all of its sessions. Implements `Definitions`.

    Args:
        server: the name of the entry.
        pins: keeps what was seen first.
        observe: gets an event for each tool that is withheld.
        clock: times the looks at what is pinned.
        by_user: whether lists differ by user, so that a name which is seen for the first time is nothing new.

    Attributes:
        judged_by: what was pinned when a list was last judged; None: it was not known.
    """

    def __init__(self, server: str, pins: Pins, observe: Observer, *, clock: Clock, by_user: bool = False) -> None:
        self.judged_by: Mapping[str, bytes] | None = None
        self._server = server
        self._pins = pins
        self._observe = observe
        self._clock = clock
        self._by_user = by_user
        self._looked_at = -math.inf
        self._seen: Mapping[str, bytes] | None = None  # at the last look
        self._is_known = True
        self._told: set[tuple[str, str]] = set()  # the name and the hash of each tool whose change was logged

    async def have_changed(self, since: Mapping[str, bytes] | None) -> bool:
        """Whether something else is pinned now than `since`; all sessions of the server share the looks."""
        now = self._clock.monotonic()
        if now - self._looked_at > POLL_SECONDS / 2:
            self._looked_at, self._seen = now, await self._pins.read(self._server)
        return self._seen is not None and self._seen != since

    async def withheld(self, listed: Sequence[ListedTool]) -> frozenset[str]:
        """The tools that are not as they are pinned; those that may be are pinned."""
        now = await _pins_of(listed)
        kept = await self._kept(now)
        if kept is None:
            if self._is_known:
                self._observe("mcp.pins_unknown", server=self._server)
            self._is_known = False
            return frozenset(now)
        self._is_known = True
        changed = {name: pin for name, pin in now.items() if name not in kept or kept[name].hash != pin.hash}
        for name, pin in changed.items():
            self._tell(name, pin.hash, kept[name].changed_to(pin) if name in kept else _NEW)
        return frozenset(changed)

    async def _kept(self, now: Mapping[str, Pin]) -> dict[str, Pin] | None:
        kept = await self._pins.read(self._server)
        if kept is not None and (not kept or self._by_user):
            unknown = [(name, pin) for name, pin in now.items() if name not in kept]
            new = {name: msgspec.json.encode(pin) for name, pin in unknown[: max(0, _MOST_KEPT - len(kept))]}
            kept = await self._pins.add(self._server, new) if new else kept
        self.judged_by = kept
        return None if kept is None else _read(kept)

    def _tell(self, name: str, digest: str, change: str) -> None:
        if (name, digest) not in self._told:
            if len(self._told) >= _MOST_KEPT:
                self._told.clear()
            self._told.add((name, digest))
            self._observe("mcp.tool_withheld", server=self._server, tool=name, change=change)


def _read(kept: Mapping[str, bytes]) -> dict[str, Pin]:
    return {name: msgspec.json.decode(pin, type=Pin) for name, pin in kept.items() if name != _ACCEPTED}


async def accept(server: str, listed: Sequence[ListedTool], pins: Pins) -> list[str] | None:
    """Pin the definitions of a server as they are listed, in place of all that was pinned of it.

    Returns:
        A line for each tool that is new, has changed or is gone; None: the state store cannot be reached.
    """
    now, kept = await _pins_of(listed), await pins.read(server)
    encoded = {name: msgspec.json.encode(pin) for name, pin in now.items()}
    if kept is None or not await pins.replace(server, {**encoded, _ACCEPTED: b""}):
        return None
    before = _read(kept)
    lines = [f"{name}: new" for name in now if name not in before]
    lines += [f"{name}: gone" for name in before if name not in now]
    both = [(name, before[name], pin) for name, pin in now.items() if name in before]
    return lines + [f"{name}: {old.changed_to(pin)}" for name, old, pin in both if old.hash != pin.hash]
