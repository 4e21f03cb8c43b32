"""Repairs the messages of an MCP server that break the schema, whichever version of the protocol they follow.

A missing field gets its default. A fault in one tool or one part of a result costs that tool or part, not the list or
the result. Lists and results are bounded before the client checks them, which takes it a while, and a page
of a list that has not changed since it was last read is not parsed again.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from hashlib import sha256
from itertools import islice
from typing import Any, Final

import msgspec
import orjson
from anyio.abc import ObjectReceiveStream
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCResponse
from mcp_types.methods import parse_server_result
from msgspec import Raw
from pydantic import ValidationError

from proxy.wire.chat import Json
from proxy.wire.json_values import holds_too_many_values

UNCHANGED: Final = "toolproxy/unchanged"
"""The key of `_meta` in a page of a list whose tools are left out, because they are the same as in the last reading."""

MOST_TOOLS = 128
"""Tools of one server, which is OpenAI's limit for the tools of one request."""

# Eight megabytes of one text are parsed in ten milliseconds, and this many values in fifty to a hundred. A list of 128
# tools with a hundred parameters each has half as many.
MOST_VALUES: Final = 100_000
MOST_VALUES_OF_TOOL: Final = MOST_VALUES // MOST_TOOLS
"""The values of one tool, if the list as a whole has too many."""

TOO_LARGE: Final = "toolproxy/too large"
"""The key of what stands in a list for a tool that is too large to be read."""

# The fields that every result, and every list, has since 2026. Nothing is cached here, so what a list says about that
# does not matter.
_COMPLETE = {"resultType": "complete"}
_LIST = {**_COMPLETE, "ttlMs": 0, "cacheScope": "private"}
_LONGEST_DEFINITION = 256 * 1024  # bytes of a tool as JSON; its schema may have a quarter of that
_MOST_BLOCKS = 1000  # of a result; its text is cut to a fraction of that
_BLOCKS = frozenset(("text", "image", "audio", "resource", "resource_link"))
_LONGEST_KIND = 40


class ListReading:
    """The state of reading a server's list, which is read again and again, and is mostly the same.

    Attributes:
        known: the digests of the pages of the last list that was read as a whole.
        read: the digests of the pages that are read now.
        refused: the entries that are left out of these pages, each with its fault.
    """

    def __init__(self) -> None:
        self.known: list[bytes] = []
        self.read: list[bytes] = []
        self.refused: list[str] = []

    def begin(self) -> None:
        """Begin to read the list as a whole."""
        self.known, self.read, self.refused = [], [], []

    def is_known(self, tools: bytes) -> bool:
        """Whether the next page, whose tools are given as they were sent, is the one of the last reading."""
        self.read.append(sha256(tools).digest())
        at = len(self.read) - 1
        return self.known[at : at + 1] == self.read[at:]


class RepairedMessages(ObjectReceiveStream[SessionMessage | Exception]):
    """The messages of a server, with every result made well-formed.

    `version` returns the version of the protocol, or raises `RuntimeError` before it is settled. Tools whose names are
    not allowed are left out of lists. `reading` knows pages of the list, and why tools of the others are left out.
    """

    def __init__(
        self,
        messages: ObjectReceiveStream[SessionMessage | Exception],
        version: Callable[[], str],
        is_allowed: Callable[[str], bool],
        reading: ListReading,
    ) -> None:
        self._messages = messages
        self._version = version
        self._is_allowed = is_allowed
        self._reading = reading

    async def receive(self) -> SessionMessage | Exception:
        """The next message of the server; an exception stands for one that could not be read."""
        received = await self._messages.receive()
        if isinstance(received, SessionMessage) and isinstance(received.message, JSONRPCResponse):
            with suppress(RuntimeError):
                await self._repair(received.message.result)
        return received

    async def aclose(self) -> None:
        """Receive no more, and close the stream of the server's messages."""
        await self._messages.aclose()

    async def _repair(self, result: Json) -> None:
        for name in [name for name, value in result.items() if value is None]:
            del result[name]
        if "supportedVersions" in result:  # the answer to `server/discover`, before the version is settled
            result |= {"capabilities": {}, **_COMPLETE, **result} | _LIST
            return
        if isinstance(tools := result.get("tools"), list):
            result |= {"tools": await self._well_formed(tools, self._version())} | _LIST
        elif self._version() >= "2026":
            result |= _COMPLETE | result
        if "content" in result or "structuredContent" in result:
            content = result.get("content")
            result["content"] = [*_known(content)] if isinstance(content, list) else []

    async def _well_formed(self, tools: list[Any], version: str) -> list[Json]:
        """The allowed tools, as many as may be offered and one more; why others are left out is noted."""
        found: list[Json] = []
        for tool in tools:
            name = name_of(tool)
            if not self._is_allowed(name):
                continue
            await asyncio.sleep(0)  # to check one may take some milliseconds
            if why := fault_of(tool, version):
                self._reading.refused.append(f"{name}: it is malformed: {why}")
            else:
                found.append(tool)
            if len(found) > MOST_TOOLS:
                break
        return found


def readable(message: bytes, reading: ListReading) -> bytes | None:
    """A message as the client is to read it, in bounded time; None: there is no such message.

    A page of a list that is known comes without its tools, and one with too many values without the largest of them.
    Neither is parsed for that, except into parts.

    Args:
        message: a JSON text, or an event of a stream with one line of data.
        reading: which pages of the list are known.
    """
    less = message
    if b'"tools"' in message:
        begin, end = message.find(b"{"), message.rfind(b"}") + 1
        less = message[:begin] + _list_to_read(message[begin:end], reading) + message[end:]
    return None if holds_too_many_values(less, MOST_VALUES) else less


def _list_to_read(message: bytes, reading: ListReading) -> bytes:
    """A page of a tool list, without tools if they are known, or too large. Any other message is unchanged."""
    try:
        reply = msgspec.json.decode(message, type=dict[str, Raw])
        result = msgspec.json.decode(reply["result"], type=dict[str, Raw])
        tools = msgspec.json.decode(result["tools"], type=list[Raw])
    except (msgspec.DecodeError, KeyError, RecursionError):
        return message
    if reading.is_known(bytes(result["tools"])):
        # A page with a cursor, even an empty one, is no whole list, after which the client forgets all others.
        less: dict[str, Any] = {"nextCursor": "", **result, "tools": [], "_meta": {UNCHANGED: True}}
        if less["nextCursor"] == b"null":
            less["nextCursor"] = ""
    elif holds_too_many_values(message, MOST_VALUES):
        less = {**result, "tools": [*map(_less_of, tools)]}
    else:
        return message
    return msgspec.json.encode({**reply, "result": less})


def _less_of(tool: Raw) -> Raw | Json:
    return _stand_in(tool) if holds_too_many_values(bytes(tool), MOST_VALUES_OF_TOOL) else tool


def _stand_in(tool: Raw) -> Json:
    """The name of a tool whose definition is too large to be read."""
    try:
        return {"name": msgspec.json.decode(tool, type=_Named).name, TOO_LARGE: True}
    except (msgspec.DecodeError, RecursionError):
        return {TOO_LARGE: True}


class _Named(msgspec.Struct):
    name: str


def name_of(tool: Any) -> str:
    """The name of an entry of a list of tools, as it was sent."""
    name = tool.get("name") if isinstance(tool, dict) else None
    return name if isinstance(name, str) else "(without a name)"


def fault_of(tool: Any, version: str) -> str | None:
    """The first fault of an entry of a server's list of tools, by the rules of this version of the protocol."""
    if isinstance(tool, dict) and TOO_LARGE in tool:
        return f"its definition holds more than {MOST_VALUES_OF_TOOL} values, in a list that is too large for it"
    try:
        if len(orjson.dumps(tool)) > _LONGEST_DEFINITION:
            return f"its definition is larger than {_LONGEST_DEFINITION} bytes"
        parse_server_result("tools/list", version, {**_LIST, "tools": [tool]})
    except ValidationError as exc:
        fault = exc.errors()[0]
        return ".".join(map(str, fault["loc"][2:])) + f": {fault['msg']}"
    except (orjson.JSONEncodeError, RecursionError) as exc:
        return f"it cannot be written as JSON: {exc}"
    return None


def _known(content: Iterable[Any]) -> Iterator[Json]:
    """The parts of a result, as many as may be read; a text stands for a part of an unknown type."""
    for block in islice(content, _MOST_BLOCKS):
        kind = block.get("type") if isinstance(block, dict) else None
        if isinstance(kind, str) and kind in _BLOCKS:
            yield block
        else:
            named = f"of the type {kind[:_LONGEST_KIND]!r}" if isinstance(kind, str) else "without a type"
            yield {"type": "text", "text": f"[a part {named}: it cannot be read here]"}
