"""An MCP server of the user's, as an agent starts it: it keeps notes for as long as it runs."""

from mcp.server import MCPServer

server = MCPServer("notes")
_NOTES: list[str] = []


@server.tool()
def add_note(text: str) -> str:
    """Keep a note."""
    _NOTES.append(text)
    return f"There are {len(_NOTES)} notes."


@server.tool()
def list_notes() -> str:
    """All notes."""
    return "\n".join(_NOTES) or "none"


if __name__ == "__main__":
    server.run()
