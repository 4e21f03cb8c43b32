"""The searches of a configuration by type, and the provider that each of them asks."""

from proxy.config import SearchConfig, SerperConfig, ToolConfig, ZaiSearchConfig
from proxy.tools.search import serper, tool, zai
from proxy.tools.search.provider import Provider


def provider_of(entry: ToolConfig) -> Provider | None:
    """The provider of a search; None: the entry is another tool."""
    match entry:
        case SearchConfig():
            return tool.provider_of(entry)
        case SerperConfig():
            return serper.provider_of(entry)
        case ZaiSearchConfig():
            return zai.provider_of(entry)
        case _:
            return None
