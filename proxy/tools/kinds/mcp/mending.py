"""The messages of an MCP server, borne with as they come, whatever date of the protocol they follow.

What a server leaves out has its default. What one tool or one part of a result has wrong costs that tool or part, not
the list or the result. Lists and results are bounded before the client checks them, which takes it a while.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Any, Final

import orjson
from anyio.abc import ObjectReceiveStream
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCResponse
from mcp_types.methods import parse_server_result
from pydantic import ValidationError

from proxy.wire.chat import Json

MALFORMED: Final = "toolproxy/malformed"
"""The key of `_meta`, in the stand-in for a malformed tool, with the fault of that tool."""

MOST_TOOLS = 128
"""Tools of one server, which is OpenAI's limit for the tools of one request."""

# The fields that every result, and every list, has since 2026. Nothing is cached here, so what a list says about that
# does not matter.
_COMPLETE = {"resultType": "complete"}
_LIST = {**_COMPLETE, "ttlMs": 0, "cacheScope": "private"}
_LONGEST_DEFINITION = 256 * 1024  # bytes of a tool as JSON; its schema may have a quarter of that
_MOST_BLOCKS = 1000  # of a result; its text is cut to a fraction of that
_BLOCKS = frozenset(("text", "image", "audio", "resource", "resource_link"))
_LONGEST_KIND = 40


class MendedMessages(ObjectReceiveStream[SessionMessage | Exception]):
    """The messages of a server, with every result made well-formed.

    Args:
        messages: the messages as the server sends them.
        version: the version of the protocol; raises `RuntimeError` before it is settled.
        is_allowed: whether the tool of a name may be offered; others are left out of lists.
    """

    def __init__(
        self,
        messages: ObjectReceiveStream[SessionMessage | Exception],
        version: Callable[[], str],
        is_allowed: Callable[[str], bool],
    ) -> None:
        self._messages = messages
        self._version = version
        self._is_allowed = is_allowed

    async def receive(self) -> SessionMessage | Exception:
        """The next message of the server; an exception stands for one that could not be read."""
        received = await self._messages.receive()
        if isinstance(received, SessionMessage) and isinstance(received.message, JSONRPCResponse):
            with suppress(RuntimeError):
                self._mend(received.message.result)
        return received

    async def aclose(self) -> None:
        """Receive no more, and close the stream of the server's messages."""
        await self._messages.aclose()

    def _mend(self, result: Json) -> None:
        for name in [name for name, value in result.items() if value is None]:
            del result[name]
        if "supportedVersions" in result:  # the answer to `server/discover`, before the version is settled
            result |= {"capabilities": {}, **_COMPLETE, **result} | _LIST
            return
        if isinstance(tools := result.get("tools"), list):
            version = self._version()
            allowed = (tool for tool in tools if self._is_allowed(name_of(tool)))
            result |= {"tools": [well_formed(tool, version) for tool in islice(allowed, MOST_TOOLS + 1)]} | _LIST
        elif self._version() >= "2026":
            result |= _COMPLETE | result
        if "content" in result or "structuredContent" in result:
            content = result.get("content")
            result["content"] = [*_known(content)] if isinstance(content, list) else []


def name_of(tool: Any) -> str:
    """The name of an entry of a list of tools, as it was sent."""
    name = tool.get("name") if isinstance(tool, dict) else None
    return name if isinstance(name, str) else "(without a name)"


def well_formed(tool: Any, version: str) -> Any:
    """An entry of a server's list of tools, or, if it is malformed, a stand-in with its name that `tool_of` refuses.

    Args:
        tool: the entry as the server sent it.
        version: the version of the protocol, which defines well-formed entries.
    """
    try:
        if len(orjson.dumps(tool)) > _LONGEST_DEFINITION:
            return _stand_in(tool, f"its definition is larger than {_LONGEST_DEFINITION} bytes")
        parse_server_result("tools/list", version, {**_LIST, "tools": [tool]})
    except ValidationError as exc:
        fault = exc.errors()[0]
        return _stand_in(tool, ".".join(map(str, fault["loc"][2:])) + f": {fault['msg']}")
    except (orjson.JSONEncodeError, RecursionError) as exc:
        return _stand_in(tool, f"it cannot be written as JSON: {exc}")
    return tool


def _stand_in(tool: Any, why: str) -> Json:
    return {"name": name_of(tool), "inputSchema": {"type": "object"}, "_meta": {MALFORMED: why}}


def _known(content: Iterable[Any]) -> Iterator[Json]:
    """The parts of a result, as many as may be read; a text stands for a part of an unknown type."""
    for block in islice(content, _MOST_BLOCKS):
        kind = block.get("type") if isinstance(block, dict) else None
        if isinstance(kind, str) and kind in _BLOCKS:
            yield block
        else:
            named = f"of the type {kind[:_LONGEST_KIND]!r}" if isinstance(kind, str) else "without a type"
            yield {"type": "text", "text": f"[a part {named}: it cannot be read here]"}
