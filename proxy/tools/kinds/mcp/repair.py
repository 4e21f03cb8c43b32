"""Repairs the messages of an MCP server that break the schema, whichever version of the protocol they follow.

A missing field gets its default. A fault in one tool or one part of a result costs that tool or part, not the list or
the result. Lists and results are bounded before the client checks them, which takes it a while.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
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


class RepairedMessages(ObjectReceiveStream[SessionMessage | Exception]):
    """The messages of a server, with every result made well-formed.

    `version` returns the version of the protocol, or raises `RuntimeError` before it is settled. Tools whose names are
    not allowed are left out of lists. `left_out` gets the reasons why others are left out as malformed.
    """

    def __init__(
        self,
        messages: ObjectReceiveStream[SessionMessage | Exception],
        version: Callable[[], str],
        is_allowed: Callable[[str], bool],
        left_out: list[str],
    ) -> None:
        self._messages = messages
        self._version = version
        self._is_allowed = is_allowed
        self._left_out = left_out

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
                self._left_out.append(f"{name}: it is malformed: {why}")
            else:
                found.append(tool)
            if len(found) > MOST_TOOLS:
                break
        return found


def readable(message: bytes) -> bytes | None:
    """A message, or an event of a stream, as the client is to read it; None: it holds too many values.

    A page of a list with too many values comes without the tools that have the most.
    """
    if not holds_too_many_values(message, MOST_VALUES):
        return message
    begin, end = message.find(b"{"), message.rfind(b"}") + 1
    less = message[:begin] + _without_large_tools(message[begin:end]) + message[end:]
    return None if holds_too_many_values(less, MOST_VALUES) else less


def _without_large_tools(message: bytes) -> bytes:
    """A page of a tool list, parsed only into its parts. Any other message is unchanged."""
    try:
        reply = msgspec.json.decode(message, type=dict[str, Raw])
        result = msgspec.json.decode(reply["result"], type=dict[str, Raw])
        tools = msgspec.json.decode(result["tools"], type=list[Raw])
    except (msgspec.DecodeError, KeyError, RecursionError):
        return message
    return msgspec.json.encode({**reply, "result": {**result, "tools": [*map(_less_of, tools)]}})


def _less_of(tool: Raw) -> Raw | Json:
    """A tool, or the name of a tool whose definition is too large to be read."""
    if not holds_too_many_values(bytes(tool), MOST_VALUES_OF_TOOL):
        return tool
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
