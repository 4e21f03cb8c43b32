"""What a client may use: its identity, and the tools and limits of one client, one model and one selection of tools."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from hashlib import sha256

from cachetools import LRUCache
from msgspec import Struct
from msgspec.structs import replace

from proxy.api.ports import Ports
from proxy.api.search_filters import FILTER_FIELDS, filters_of
from proxy.config.model import ToolEvents
from proxy.loop.actions import Stop
from proxy.loop.limits import LimitOverrides, Limits
from proxy.loop.offer import EVERY_TOOL, OFFER_FIELDS, Offer, ToolSelection, is_side_request, make_offer
from proxy.ports import Model, Toolset
from proxy.wire.chat import Json, ToolSpec
from proxy.wire.errors import ModelNotAllowed
from proxy.wire.search import SearchFilters

# Clients choose the names of models and tools, so the cache is bounded, and long headers are not cached.
_MAX_POLICIES = 5000
_MAX_CACHED_HEADER = 256
_TOOL_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")  # what may stand in a header
_MAX_IGNORED = 32

CALLER = "toolproxy.caller"
"""The key of the `Caller` in an ASGI scope, where `middleware.clients.Auth` puts it."""

TOOL_CALLS_LEFT = "toolproxy.tool_calls_left"
"""The key of the tool calls that are left of the client's budget; absent where it has no budget of tool calls."""

BUDGET_REFUSAL = "toolproxy.budget_refusal"
"""The key of the `BudgetExceeded` that a call of a tool raises on `/mcp`; absent where the budget is not used up."""


@dataclass(frozen=True, slots=True)
class Caller:
    """An authenticated client, or anyone where no clients are configured.

    Attributes:
        name: for logs; None: anonymous.
        models: glob patterns of the models that it may use.
        tools: the server tools that it may use; None: all.
        limits: the client's own `limits:`.
        admin: whether it may read /debug.
        tool_events: the progress events for its requests without an `x-tool-events`; None: as in `offer.tool_events`.
        upstream_key: the key that it sent; None where no upstream has `api_key: from_client`.
        scope: the owner under which data is kept between this caller's requests; no other caller may see it.
    """

    name: str | None = None
    models: tuple[str, ...] = ("*",)
    tools: frozenset[str] | None = None
    limits: LimitOverrides | None = None
    admin: bool = False
    tool_events: ToolEvents | None = None
    upstream_key: str | None = field(default=None, repr=False)
    scope: str = field(init=False)

    def __post_init__(self) -> None:
        scope = "anyone" if self.name is None else f"client:{self.name}"
        if self.name is None and self.upstream_key:
            scope = f"key:{sha256(self.upstream_key.encode()).hexdigest()}"
        object.__setattr__(self, "scope", scope)  # because the instance is frozen

    def may_use(self, model: str) -> bool:
        """Whether one of the caller's patterns matches the model's name."""
        return any(fnmatchcase(model, pattern) for pattern in self.models)


class AccessPolicy(Struct, frozen=True):
    """Limits and tools for one client, one model and one selection of tools; many requests share it.

    Attributes:
        limits: those of the configuration, overlaid with the model's and then with the client's.
        tools: the selected server tools that both the client and the model may use.
        selection: how the request selects tools, beside those that it declares.
        ignored: the selected names that no tool has, fit for a header.
        offer: the tools of a request that has none of the `OFFER_FIELDS`.
        search_above: `offer.search_above` of the configuration.
    """

    limits: Limits
    tools: tuple[ToolSpec, ...]
    selection: ToolSelection
    ignored: tuple[str, ...]
    offer: Offer
    search_above: int | None = None

    def applied_to(self, chat: Json, *, calls_left: int | None) -> tuple[Limits, tuple[ToolSpec, ...]]:
        """The limits and the usable server tools of one request, which may lower limits.

        `calls_left` is the number of tool calls that the client's budget permits; None: any number.
        """
        limits, tools = self.limits, self.tools
        if calls_left is not None:
            limits = limits.with_calls_at_most(calls_left // (chat.get("n") or 1), Stop.BUDGET)
        if (max_tool_calls := chat.get("max_tool_calls")) is not None:
            limits = limits.with_calls_at_most(max_tool_calls)
            tools = tools if limits.allow_tools else ()
        if chat.get("parallel_tool_calls") is False:
            limits = replace(limits, max_parallel_tools=1)
        return limits, tools

    def offer_to(
        self, chat: Json, tools: tuple[ToolSpec, ...], declared: Json | None
    ) -> tuple[Offer, SearchFilters | None]:
        """The offer of one request, and the filters of the search that it declares, if it declares one.

        The filters are read from `declared`, the request as it was sent; None: they are read elsewhere. Raises
        `RequestError`: the filters are not well formed.
        """
        if tools is self.tools and OFFER_FIELDS.isdisjoint(chat) and not is_side_request(chat):
            offer = self.offer
        else:
            offer = make_offer(chat, tools, self.selection, search_above=self.search_above)
        if declared is None or not offer.offered or FILTER_FIELDS.isdisjoint(declared):
            return offer, None
        return offer, filters_of(declared, native_search=self.selection.native_search)


class AccessPolicies:
    """The policies of one configuration for the tools of a `toolset`, each made once."""

    def __init__(self, ports: Ports, toolset: Toolset) -> None:
        self._limits = ports.config.limits
        self._search_above = ports.config.offer.search_above
        self._only_beside_own = ports.for_agent
        self._toolset = toolset
        self._specs: Mapping[str, ToolSpec] = {}
        self._policies: LRUCache[tuple[object, ...], AccessPolicy] = LRUCache(_MAX_POLICIES)

    def of(
        self, caller: Caller, model: Model, selected: str | None, headers: frozenset[str], *, on_request: bool
    ) -> AccessPolicy:
        """The policy of a request. Raises `ModelNotAllowed`.

        Args:
            caller: the client that sent the request.
            model: the model that answers it.
            selected: the value of the header `x-server-tools`, if there is one.
            headers: the names of the headers that hold credentials for tools.
            on_request: whether the request asks for tools with the prefix or the suffix of `offer:`.
        """
        specs = self._toolset.specs
        if specs is not self._specs:  # tools of MCP servers come and go
            self._specs, self._policies = specs, LRUCache(_MAX_POLICIES)
        native_search = model.upstream.traits.native_search
        key = (caller.name, model.name, selected, headers, on_request, native_search)
        policy = self._policies.get(key)
        if policy is None:
            if not caller.may_use(model.name):
                raise ModelNotAllowed(model.name)
            names, beside = _names_in(selected), self._only_beside_own
            selection = ToolSelection(on_request, names, native_search, headers, only_beside_own=beside)
            policy = self._made(caller, model, selection)
            if selected is None or len(selected) <= _MAX_CACHED_HEADER:
                self._policies[key] = policy
        return policy

    def _made(self, caller: Caller, model: Model, selection: ToolSelection) -> AccessPolicy:
        """The policy for a caller, a model and a selection of a request."""
        limits = self._limits.overlaid(model.limits, caller.limits)
        tools, unlisted = [*self._specs.values()], [*self._toolset.unlisted.values()]
        for allowed in (caller.tools, model.tools):
            tools = tools if allowed is None else [tool for tool in tools if tool.is_among(allowed)]
            unlisted = [one for one in unlisted if allowed is None or may_have_tools(one, allowed)]
        ignored: tuple[str, ...] = ()
        if (names := selection.names) is not None:
            selectable = [tool for tool in tools if tool.offer != "never" and tool.needs <= selection.headers]
            known = {name for tool in selectable for name in (*tool.names, tool.group)}
            ignored = names_for_header(sorted(names - {EVERY_TOOL} - known))
            tools = tools if EVERY_TOOL in names else [tool for tool in tools if tool.is_among(names)]
        usable = tuple(tools) if limits.allow_tools else ()
        if lacking := [one for one in unlisted if limits.allow_tools and selection.lacks_headers_for(one)]:
            lacks = tuple(replace(one, needs=one.needs - selection.headers) for one in lacking)
            selection = replace(selection, unlisted=lacks)
        offer = make_offer({}, usable, selection, search_above=self._search_above)
        return AccessPolicy(limits, usable, selection, ignored, offer, self._search_above)


def may_have_tools(server: ToolSpec, allowed: Collection[str]) -> bool:
    """Whether a selection by names may include tools of a server that has not listed them."""
    return server.is_among(allowed) or any(name.startswith(server.name) for name in allowed)


def may_use_server(
    server: ToolSpec, allowed: Iterable[Collection[str] | None], selection: ToolSelection, request: Json
) -> bool:
    """Whether a request may use tools of a server that has not listed them yet.

    Args:
        server: the placeholder for the tools of the server.
        allowed: the tools that the client may use, and the tools that the model may use; None: all.
        selection: how the request selects tools.
        request: the request as its client sent it, to any API; `tools` and `tool_choice` are read.
    """
    choice = request.get("tool_choice")
    kind = choice.get("type") if isinstance(choice, dict) else choice
    is_permitted = all(one is None or may_have_tools(server, one) for one in allowed)
    if kind == "none" or request.get("functions") or not is_permitted:
        return False
    names = selection.names
    if names is not None:
        return EVERY_TOOL in names or may_have_tools(server, names)
    if kind in (None, "auto") and (server.offer == "always" or (server.offer == "on_request" and selection.on_request)):
        return True
    # A hosted tool of the server's is declared by its type, which is no name.
    return server.serves is not None or any(name.startswith(server.name) for name in _declared_in(request))


def _declared_in(request: Json) -> Iterator[str]:
    """The names of the tools that a request declares or chooses, in the form of any surface."""
    choice, tools = request.get("tool_choice"), request.get("tools")
    entries = [*(tools if isinstance(tools, list) else ()), choice]
    if isinstance(choice, dict):
        for listed in (choice, choice.get("allowed_tools")):
            chosen = listed.get("tools") if isinstance(listed, dict) else None
            entries += chosen if isinstance(chosen, list) else ()
    for entry in entries:
        for held in (entry, entry.get("function")) if isinstance(entry, dict) else ():
            if isinstance(held, dict) and isinstance(name := held.get("name"), str):
                yield name


def _names_in(selected: str | None) -> frozenset[str] | None:
    """The names in `x-server-tools`, possibly with `EVERY_TOOL` among them; None without such a header."""
    if selected is None:
        return None
    if selected.strip().lower() in ("none", EVERY_TOOL):  # as people write them
        selected = selected.strip().lower()
    return frozenset(name.strip() for name in selected.split(",")) - {"none", ""}


def names_for_header(names: Iterable[str]) -> tuple[str, ...]:
    """At most 32 names of tools, without duplicates, each fit for a header and the log."""
    return tuple(dict.fromkeys(name if _TOOL_NAME.fullmatch(name) else "unknown" for name in names))[:_MAX_IGNORED]
