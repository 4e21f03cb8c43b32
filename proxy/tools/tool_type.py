"""What the program knows of one `type:` of tools: the keys of an entry, and what is done with an entry.

A type is a module in `tools/kinds/` that has the type's name and a `ToolType` called `KIND`; no other file names it.
"""

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import structs

from proxy.config.model import ToolConfig
from proxy.config.rules import Entry, ToolKind
from proxy.http.client import ServiceClient
from proxy.keys.pool import KeyPools
from proxy.ports import Caches, Clock, NoObserver, Observer
from proxy.tools.result_cache import local_caches
from proxy.tools.servers import ToolServer
from proxy.tools.tool import Tool

if TYPE_CHECKING:
    from proxy.tools.web.pages import PageCache
    from proxy.tools.web.reader import PageReader, PageRules


@dataclass(frozen=True, slots=True)
class Resources:
    """The resources that tools share, and the secrets of one of them.

    client       sends HTTP requests, without redirects, cookies and time limits
    clock        the time
    caches       makes the caches of results and pages; None: in this process
    observe      takes the events of tools themselves
    secrets      the values of the variables in the tool's entry: see `ToolKind.variables_are_secrets`; for a server,
                 those of all variables with a secret's name
    page_rules   which pages searches may read; None: all public ones
    key_pools    makes the pools of tools with several keys; None: a tool uses the first of its keys
    """

    client: ServiceClient
    clock: Clock
    caches: Caches | None = None
    observe: Observer = NoObserver()  # noqa: RUF009 - it has no state
    secrets: frozenset[str] = frozenset()
    page_rules: "PageRules | None" = None
    key_pools: KeyPools | None = None
    _pages: "list[PageCache]" = field(default_factory=list)  # one, when a tool has asked for it
    _readers: "dict[PageRules, PageReader]" = field(default_factory=dict)

    @property
    def pages(self) -> "PageCache":
        """The cache of the pages that tools have recently read or found, shared by all tools."""
        from proxy.tools.web.pages import PageCache  # noqa: PLC0415 - most tools read no pages

        if not self._pages:
            self._pages.append(PageCache(self.caches or local_caches(self.clock)))
        return self._pages[0]

    def page_reader(self, rules: "PageRules | None" = None, *, everywhere: bool = True) -> "PageReader":
        """The reader of pages with these rules, which all tools share.

        Args:
            rules: which pages may be read; None: those for the pages of searches.
            everywhere: whether hosts may be read that the rules open in addition to public ones.
        """
        from proxy.tools.web.reader import PageReader, PageRules  # noqa: PLC0415 - most tools read no pages

        rules = rules or self.page_rules or PageRules()
        if not everywhere:
            rules = structs.replace(rules, allow_hosts=())
        if rules not in self._readers:
            self._readers[rules] = PageReader(rules, self.clock, self.pages)
        return self._readers[rules]


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """The result of a probe: a message for people, whether it reports a fault, and whether anything was tried."""

    message: str
    is_fault: bool = False
    is_tried: bool = True


Make: TypeAlias = Callable[[str, Entry, Resources], Tool]
"""Takes the name of an entry, the entry and the resources. Raises `ConfigurationError`: the tool cannot be made."""

Serve: TypeAlias = Callable[[str, Entry, Callable[[Tool], Tool], Resources], ToolServer]
"""Takes the name of an entry, the entry, what applies the entry's settings to a tool, and the resources."""


def _describe(entry: ToolConfig, origin: str) -> Iterator[str]:
    yield f"{entry.type}, {origin}"


def _address(entry: ToolConfig) -> str | None:
    return getattr(entry, "url", None) or getattr(entry, "base_url", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolType(ToolKind[Entry]):
    """A `type:` of tools. Either `make` or `serve` is needed; all other parts may be left out.

    The parts that the reader of a configuration needs are those of `ToolKind`.

    Attributes:
        make: makes the tool of an entry.
        serve: makes the server of an entry that stands for several tools, which come and go.
        address: the URL of an entry's server, to which a forward proxy may lead; None: there is no such server.
        describe: the lines of `toolproxy check` about an entry, given the origin of its tool.
        page_rules: which pages an entry may read, for a type that fetches pages itself. The first such entry of a file
            has the rules for the pages that searches find.
        probe: uses an entry once, for `toolproxy check --probe`. None: there is nothing to be asked. Raises `ToolError`
            or `TimeoutError` if there is no answer.
    """

    make: Make[Entry] | None = None
    serve: Serve[Entry] | None = None
    address: Callable[[Entry], str | None] = _address
    describe: Callable[[Entry, str], Iterator[str]] = _describe
    page_rules: "Callable[[Entry], PageRules] | None" = None
    probe: Callable[[str, Entry, Resources], Awaitable[ProbeResult]] | None = None


AnyToolType: TypeAlias = ToolType[Any]
