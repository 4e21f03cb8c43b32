"""`POST /mcp`: the tools that a client may use, as an MCP server, for agents that run their own loop.

The server and its transport are the SDK's, streamable HTTP without sessions: each request is its own exchange, in
any protocol version of the SDK. Its answer is JSON or, if it takes long, a stream that is kept alive.
"""

import asyncio
import re
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any

import orjson
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ContentBlock,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    Tool,
    ToolAnnotations,
)
from starlette.types import Message, Receive, Scope, Send

from proxy import __version__
from proxy.api.access import BUDGET_REFUSAL
from proxy.api.body import header, read_body
from proxy.api.direct import DirectCalls, Door
from proxy.api.event_stream import EventStream
from proxy.api.exchange import send_bytes, while_wanted
from proxy.api.json_bounds import MOST_VALUES
from proxy.api.ports import Ports
from proxy.api.search import row_of
from proxy.kit import request_context
from proxy.loop import results
from proxy.loop.queries import left_out_note
from proxy.loop.results import ToolError, ToolOutput
from proxy.wire.chat import Json, ToolCall, ToolSpec
from proxy.wire.errors import RequestError, RequestTooLarge
from proxy.wire.json_values import holds_too_many_values
from proxy.wire.relayed import Headers

# The arguments of a call have at most 1 MiB; the SDK takes too long to read a larger message.
_LONGEST_ID = 64  # characters; a client chooses the id of its call, which is logged
_PAGE = 500  # tools; their definitions have a megabyte or two
_CURSOR = re.compile(r"tools-([0-9]{1,9})")
_NO_JSON = "The arguments are nested too deep, or hold a number or half a character that JSON cannot have."
_MOST_BYTES = 2 * 1024 * 1024


class McpEndpoint:
    """The endpoint, as an ASGI callable."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._door = Door(ports)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        self._door.admit(scope)
        body = await read_body(scope, receive, self._ports.config.server, self._ports.clock)
        if not (header(scope, b"content-type") or "").lower().startswith("application/json"):
            raise RequestError("An MCP message needs the Content-Type application/json.")
        if len(body) > _MOST_BYTES:
            raise RequestTooLarge(f"A message of MCP may have {_MOST_BYTES} bytes at most.")
        if holds_too_many_values(body, MOST_VALUES):
            raise RequestError(f"The request body may have at most {MOST_VALUES} values.")
        message = None
        with suppress(orjson.JSONDecodeError):  # the SDK reads some that is no JSON, such as `NaN`
            message = orjson.loads(body)
        # Clients list the tools after a call as well, in order to read its result, which uses nothing of a budget.
        is_call = not isinstance(message, dict) or message.get("method") == "tools/call"
        if is_call and (refusal := scope.get(BUDGET_REFUSAL)) is not None:
            raise refusal
        calls = await self._door.open(scope, partial(_asks_for, message))
        # Not the SDK's streams, which a signal to stop cuts off. An answer that takes long becomes a stream of ours.
        server = _server_of(calls, is_json=message is not None)
        manager = StreamableHTTPSessionManager(
            server, stateless=True, json_response=True, max_request_body_size=_MOST_BYTES
        )
        stream = EventStream(scope, send)
        takes_stream = "text/event-stream" in (header(scope, b"accept") or "")
        heartbeat = partial(stream.keep_alive, self._ports.config.server.keepalive_seconds)
        work, most = partial(_exchange, manager, scope, body), calls.limits.max_duration
        beside = heartbeat if takes_stream else None
        status, headers, answer = await while_wanted(scope, receive, work, seconds=most, beside=beside)
        if stream.is_started:
            await stream.finish(b"event: message\ndata: " + answer + b"\n\n")
        else:
            await send_bytes(send, status, headers, answer)


def _asks_for(message: Any, server: ToolSpec) -> bool:
    """Whether a message lists tools, or calls one that may be the server's."""
    if not isinstance(message, dict):
        return False
    params = message.get("params")
    name = params.get("name") if isinstance(params, dict) else None
    is_call = message.get("method") == "tools/call" and isinstance(name, str) and name.startswith(server.name)
    return is_call or message.get("method") == "tools/list"


async def _exchange(manager: StreamableHTTPSessionManager, scope: Scope, body: bytes) -> tuple[int, Headers, bytes]:
    """The SDK's response to a body: its status, its headers without the length, and its body."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async with manager.run():
        await manager.handle_request(scope, _receive_of(body), send)
    head, *parts = sent
    headers = [(name, value) for name, value in head["headers"] if name.lower() != b"content-length"]
    return int(head["status"]), headers, b"".join(part["body"] for part in parts)


def _receive_of(body: bytes) -> Receive:
    """An ASGI `receive` for a body that has been read; `while_wanted` notices that the client leaves."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if not messages:
            await asyncio.Event().wait()
        return messages.pop()

    return receive


def _server_of(calls: DirectCalls, *, is_json: bool) -> Server[Any]:
    """The MCP server for one request; `is_json`: its body is JSON."""

    async def list_tools(_: Any, params: PaginatedRequestParams | None) -> ListToolsResult:
        request_context.add({"mcp": "tools/list"})
        return _page_of(calls, params.cursor if params is not None else None)

    async def call_tool(context: Any, params: CallToolRequestParams) -> CallToolResult:
        request_context.add({"mcp": "tools/call"})
        if not calls.may_call(params.name):
            raise MCPError(INVALID_PARAMS, f"Unknown tool: {params.name}")
        if not is_json:
            raise MCPError(INVALID_PARAMS, _NO_JSON)
        try:
            arguments = orjson.dumps(params.arguments or {}).decode()
        except orjson.JSONEncodeError as exc:
            raise MCPError(INVALID_PARAMS, _NO_JSON) from exc
        return await _called(calls, ToolCall(f"mcp_{context.request_id}"[:_LONGEST_ID], params.name, arguments))

    server: Server[Any] = Server(
        "toolproxy",
        version=__version__,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        get_tool_input_schema=lambda name: tool.parameters if (tool := calls.tool(name)) else None,
    )
    server.middleware.clear()  # which is OpenTelemetry's; the proxy has traces of its own
    return server


def _page_of(calls: DirectCalls, cursor: str | None) -> ListToolsResult:
    """A page of the tools. A cursor is the place of the first tool of its page, so that nothing is kept for it.

    Raises:
        MCPError: the cursor is none that a page has given.
    """
    start = 0
    if cursor is not None:
        found = _CURSOR.fullmatch(cursor)
        start = int(found[1]) if found else calls.places
        if start >= calls.places:
            raise MCPError(INVALID_PARAMS, "The cursor is not one of this list.")
    page = [*islice(calls.offered(start), _PAGE + 1)]
    following = f"tools-{page[_PAGE][0]}" if len(page) > _PAGE else None
    return ListToolsResult(tools=[_described(tool) for _, tool in page[:_PAGE]], next_cursor=following)


def _described(tool: ToolSpec) -> Tool:
    annotations = ToolAnnotations(read_only_hint=True, open_world_hint=True) if tool.searches else None
    schema = {"type": "object", **tool.parameters}
    return Tool(name=tool.name, description=tool.description, input_schema=schema, annotations=annotations)


async def _called(calls: DirectCalls, call: ToolCall) -> CallToolResult:
    """The result of a call, within the limits of a result."""
    most, left_out, failed = calls.limits.max_result_bytes, tuple[str, ...](), False
    try:
        output, left_out = await calls.output_of(call)
    except ToolError as exc:
        output, failed = ToolOutput(str(exc)), True
    content: list[ContentBlock] = [TextContent(text=results.success(call.name, output, max_bytes=most).text)]
    if left_out:
        content.append(TextContent(text=left_out_note(left_out)))
    return CallToolResult(content=content, structured_content=_structured(output, most), is_error=failed)


def _structured(output: ToolOutput, most: int) -> Json | None:
    """The pages that a search found, as many as have room in `most` bytes; None: there are none."""
    rows: list[Json] = []
    for hit in output.hits:
        row = row_of(hit, hit.query)
        most -= len(orjson.dumps(row))
        if most < 0:
            break
        rows.append(row)
    return {"results": rows} if rows else None
