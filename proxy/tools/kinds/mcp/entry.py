"""The keys of an entry of `type: mcp`."""

from typing import Annotated

from msgspec import Meta

from proxy.config.model import HeaderName, Served, Text, ToolConfig, ToolHeaderValue, Url
from proxy.wire.credentials import headers_in


class McpConfig(ToolConfig, tag="mcp", frozen=True, kw_only=True):
    """`type: mcp`: the tools of an MCP server, at a URL or started by a command."""

    url: Url | None = None  # URL of the server. Set either this or command.
    # Command that starts the server, which uses standard input and output.
    command: tuple[Text, ...] | None = None
    headers: dict[HeaderName, ToolHeaderValue] = {}  # Headers for the url.
    env: dict[str, str] = {}  # Environment of the command.
    allow: tuple[Text, ...] = ("*",)  # Glob patterns of the server's tools that are used.
    # Prefix of the names of the server's tools. None: the entry's name and '_'.
    prefix: Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_-]{0,64}\Z")] | None = None

    # Hosted tool -> the server's name of the tool that replaces it in requests that declare it.
    serves: dict[Served, Text] = {}

    @property
    def user_headers(self) -> frozenset[str]:
        """See `ToolConfig.user_headers`."""
        return headers_in(self.headers.values())

    @property
    def served(self) -> tuple[str, ...]:
        """See `ToolConfig.served`."""
        return tuple(self.serves)

    def prefix_of(self, name: str) -> str:
        """See `ToolConfig.prefix_of`."""
        return f"{name}_" if self.prefix is None else self.prefix
