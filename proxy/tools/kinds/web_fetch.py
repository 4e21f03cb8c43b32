"""`type: web_fetch`: one web page as clean text, a part at a time."""

from proxy.config.model import Characters, HeaderValue, Text, ToolConfig
from proxy.config.rules import Faults
from proxy.loop.limits import Bytes, Count
from proxy.tools.tool import Tool
from proxy.tools.tool_type import Resources, ToolType
from proxy.tools.web.guard import UrlGuard
from proxy.tools.web.page import page_tool
from proxy.tools.web.reader import PageRules


class WebFetchConfig(ToolConfig, tag="web_fetch", frozen=True, kw_only=True):
    """`type: web_fetch`: one web page as text.

    Every public host is open at ports 80 and 443. `allow_hosts` opens more hosts, private addresses and other ports.
    `deny_hosts` closes hosts, and takes precedence. `deny_hosts: ["*"]` closes all hosts that `allow_hosts` does not
    name. An entry is `host`, `*.host`, an address, or a network such as 10.1.0.0/16. `host:port` is that port only.
    """

    # Calls at the same time, over all requests. Each may hold several times max_bytes.
    max_concurrent_calls: Count | None = 32
    allow_hosts: tuple[Text, ...] = ()  # Hosts that are opened in addition to public hosts.
    deny_hosts: tuple[Text, ...] = ()  # Hosts that are closed, even if allow_hosts has them.
    max_bytes: Bytes = 5 * 1024 * 1024  # Largest part of a page that is read, in bytes after decompression.
    # Characters of text in one result. At three bytes each, they fit into limits.max_result_bytes.
    max_characters: Characters = 20_000
    user_agent: HeaderValue | None = None  # User-Agent header. None: toolproxy's own.
    respect_robots: bool = True  # Obey the robots.txt of the page's site.


def web_fetch_tool(name: str, entry: WebFetchConfig, resources: Resources) -> Tool:
    """The tool of an entry whose `allow_hosts` and `deny_hosts` have no fault."""
    return page_tool(name, resources.page_reader(rules_of(entry)).page_at, most=entry.max_characters)


def rules_of(entry: WebFetchConfig) -> PageRules:
    """The pages that an entry may read."""
    return PageRules(**{name: getattr(entry, name) for name in PageRules.__struct_fields__})


def _faults(entry: WebFetchConfig) -> Faults:
    for option, allow, deny in (("allow_hosts", entry.allow_hosts, ()), ("deny_hosts", (), entry.deny_hosts)):
        try:
            UrlGuard(allow, deny)
        except ValueError as exc:
            yield option, str(exc)


KIND = ToolType(config=WebFetchConfig, make=web_fetch_tool, faults=_faults, judges_parts=True, page_rules=rules_of)
