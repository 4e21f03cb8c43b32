"""A real MCP server, written with the `mcp` package: over HTTP in a test's own loop, or as a process over stdio.

`legacy` as the process's argument: as servers were before 2026.
"""

import asyncio
import base64
import os
import sys

from mcp import MCPError
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ToolsListChanged
from mcp.shared.message import SessionMessage
from mcp_types import (
    METHOD_NOT_FOUND,
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    ErrorData,
    ImageContent,
    JSONRPCError,
    ListToolsResult,
    ResourceLink,
    TextContent,
    TextResourceContents,
    Tool,
    ToolAnnotations,
)

OBJECT = {"type": "object"}
ECHO = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
READS = ToolAnnotations(read_only_hint=True)
PNG = base64.b64encode(b"not really a picture").decode()

TOOLS = [
    Tool(name="echo", description="Says it again.", input_schema=ECHO, annotations=READS),
    Tool(name="fail", input_schema=OBJECT),
    Tool(name="picture", input_schema=OBJECT),
    Tool(name="links", input_schema=OBJECT),
    Tool(name="numbers", input_schema=OBJECT, output_schema={"type": "object", "required": ["never"]}),
    Tool(name="hang", input_schema=OBJECT),
    Tool(name="cancelled", input_schema=OBJECT),
    Tool(name="grow", input_schema=OBJECT, annotations=ToolAnnotations(idempotent_hint=True)),
    Tool(name="environment", input_schema=OBJECT),
    Tool(name="header", input_schema=OBJECT),
    Tool(name="big", input_schema=OBJECT),
    Tool(name="huge", input_schema=OBJECT),
    Tool(name="die", input_schema=OBJECT),
    Tool(name="break", input_schema=OBJECT),
]


def text(*words: str, **fields) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=word) for word in words], **fields)


class Wiki:
    """What the server knows; `tools` may be changed while it runs."""

    def __init__(self, tools=TOOLS, *, legacy=False, page=5) -> None:
        self.tools = list(tools)
        self.page = page
        self.was_cancelled = asyncio.Event()
        self.bus = InMemorySubscriptionBus()
        listen = None if legacy else ListenHandler(self.bus)
        self.server = Server(
            "wiki", on_list_tools=self.list_tools, on_call_tool=self.call, on_subscriptions_listen=listen
        )
        if legacy:
            self.server.middleware.append(refuse_discovery)

    async def list_tools(self, _, params) -> ListToolsResult:
        start = int(params.cursor) if params is not None and params.cursor else 0
        end = start + self.page
        return ListToolsResult(tools=self.tools[start:end], next_cursor=str(end) if end < len(self.tools) else None)

    async def call(self, context, params) -> CallToolResult:
        return await getattr(self, f"do_{params.name}")(context, params.arguments or {})

    async def do_echo(self, _, arguments):
        return text("You said:", arguments["text"])

    async def do_fail(self, _, __):
        return text("The wiki is closed on Sundays.", is_error=True)

    async def do_picture(self, _, __):
        picture = ImageContent(data=PNG, mime_type="image/png")
        return CallToolResult(content=[picture, AudioContent(data=PNG, mime_type="audio/wav")])

    async def do_links(self, _, __):
        link = ResourceLink(uri="https://wiki.example/ferry", name="ferry", title="The ferry")
        page = TextResourceContents(uri="wiki://ferry", text="It sails at noon.")
        blob = BlobResourceContents(uri="wiki://map", blob=PNG, mime_type="application/pdf")
        return CallToolResult(content=[link, EmbeddedResource(resource=page), EmbeddedResource(resource=blob)])

    async def do_numbers(self, _, __):
        return CallToolResult(content=[], structured_content={"sum": 7})

    async def do_hang(self, _, __):
        try:
            await asyncio.Event().wait()
        finally:
            self.was_cancelled.set()

    async def do_cancelled(self, _, __):
        await self.was_cancelled.wait()
        return text("It was cancelled.")

    async def do_grow(self, context, _):
        self.tools.append(Tool(name="late", input_schema=OBJECT))
        await self.bus.publish(ToolsListChanged())
        if context.protocol_version < "2026":
            await context.session.send_tool_list_changed()
        return text("grown")

    async def do_environment(self, _, __):
        return text(" ".join(sorted(os.environ)))

    async def do_header(self, context, __):
        return text(context.request.headers.get("x-wiki-key", "none"))

    async def do_big(self, _, __):
        return text("x" * 3_000_000, "y" * 3_000_000, "never seen")

    async def do_huge(self, _, __):
        return text("x" * 17 * 1024 * 1024)

    async def do_die(self, _, __):
        os._exit(1)

    async def do_break(self, _, __):
        raise MCPError(-32050, "The index is being built.")


async def refuse_discovery(context, call_next):
    """Servers before 2026 know nothing but the handshake."""
    if context.method == "server/discover":
        raise MCPError(METHOD_NOT_FOUND, "Method not found")
    return await call_next(context)


async def main(*, legacy: bool) -> None:
    wiki = Wiki(legacy=legacy)
    async with stdio_server() as (incoming, outgoing):
        if legacy:  # a server of 2026 would take the question for a promise
            sys.stdout.write("Wiki 0.9 greets everybody.\n")
            sys.stdout.flush()
            asked = await incoming.receive()
            fault = ErrorData(code=METHOD_NOT_FOUND, message="Method not found")
            await outgoing.send(SessionMessage(JSONRPCError(jsonrpc="2.0", id=asked.message.id, error=fault)))
        await wiki.server.run(incoming, outgoing, wiki.server.create_initialization_options())


if __name__ == "__main__":
    asyncio.run(main(legacy="legacy" in sys.argv))
