"""A fake MCP server: over HTTP with sessions that it can forget, or as a process over stdio that ends.

    python proxy/cases/mcp_server.py call     # ends after its first call; a number: after so many seconds

It knows nothing but tools, and the handshake of 2025: the proxy's client is what is tried, not this. It imports nothing
of the proxy, because its process has to start quickly.
"""

import json
import os
import sys
import threading
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

Json = dict[str, Any]
Call = Callable[[str, Any], Json]

SEEK = {"name": "seek", "description": "Seeks.", "inputSchema": {"type": "object"}}
HELLO = {
    "protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "player", "version": "1"}
}  # fmt: skip
UNKNOWN = {"code": -32601, "message": "Method not found"}


class McpPlayer:
    """An MCP server over HTTP as a case scripts it: `tools` are those that it lists."""

    def __init__(self, tools: list[Json] | None = None) -> None:
        self.tools = tools or [SEEK]
        self.sessions_opened = 0
        self._sessions: set[str] = set()
        self._numbers = count(1)

    def forget(self) -> None:
        """Lose all sessions, as a server does that is started again."""
        self._sessions.clear()

    def over_http(
        self, scope: Mapping[str, Any], body: bytes, call: Call
    ) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
        """Status, headers and body of the answer to a request of the streamable HTTP transport."""
        headers = dict(scope["headers"])
        session = headers.get(b"mcp-session-id", b"").decode()
        if scope["method"] != "POST":
            return 405, [], b""
        message = json.loads(body)
        if message.get("method") == "initialize":
            session = f"session-{next(self._numbers)}"
            self._sessions.add(session)
            self.sessions_opened += 1
        elif message.get("method") != "server/discover" and session not in self._sessions:
            return 404, [(b"content-type", b"application/json")], b'{"error": "no such session"}'
        answer = self.answer(message, call)
        if answer is None:
            return 202, [], b""
        kind = [(b"content-type", b"application/json"), (b"mcp-session-id", session.encode())]
        return 200, kind if session else kind[:1], json.dumps(answer).encode()

    def answer(self, message: Json, call: Call) -> Json | None:
        """The answer to a message; none to a notification."""
        if "id" not in message:
            return None
        method, results = message["method"], {"initialize": HELLO, "tools/list": {"tools": self.tools}, "ping": {}}
        if method == "tools/call":
            results[method] = call(message["params"]["name"], message["params"].get("arguments"))
        outcome = {"result": results[method]} if method in results else {"error": UNKNOWN}
        return {"jsonrpc": "2.0", "id": message["id"], **outcome}


def main(ends: str) -> None:
    """Serve on standard input and output until its end."""
    player = McpPlayer()
    if ends != "call":
        timer = threading.Timer(float(ends), os._exit, (0,))
        timer.daemon = True
        timer.start()

    numbers = count(1)

    def call(name: str, arguments: Any) -> Json:
        return {"content": [{"type": "text", "text": f"{name} received {arguments} in call {next(numbers)}"}]}

    for line in sys.stdin:
        message = json.loads(line)
        answer = player.answer(message, call)
        if answer is not None:
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()
        if ends == "call" and message.get("method") == "tools/call":
            return


if __name__ == "__main__":
    main(sys.argv[1])
