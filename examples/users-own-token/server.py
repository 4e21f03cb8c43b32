"""An MCP server that knows its users by their tokens: `pip install mcp`."""

import socket

import uvicorn
from mcp.server import MCPServer
from mcp.server.mcpserver import Context

NOTES = {"token-of-ann": "Buy bread.", "token-of-bob": "Call the bank."}
server = MCPServer("notes")


@server.tool()
def latest(context: Context) -> str:
    """The user's latest note."""
    token = context.headers.get("authorization", "").removeprefix("Bearer ")
    return NOTES.get(token, "There is no such user.")


listener = socket.create_server(("127.0.0.1", 0))
print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
app = server.streamable_http_app(stateless_http=True, json_response=True)
uvicorn.Server(uvicorn.Config(app, log_level="warning")).run([listener])
