"""A request of any surface, resolved: whose it is, which model answers it, with which tools, within which limits."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from hashlib import sha256
from types import MappingProxyType
from typing import Any

import orjson
from msgspec import Struct
from msgspec.structs import replace
from starlette.types import Scope

from proxy import request_context
from proxy.api.body import header
from proxy.api.body_memory import Share, share_of
from proxy.api.search_filters import FILTER_FIELDS, filters_of
from proxy.api.tool_events import wanted_events
from proxy.config import ToolEvents
from proxy.loop.actions import Stop
from proxy.loop.chat import Json, ToolSpec
from proxy.loop.continuation import Continuation, put_back, runs_in
from proxy.loop.errors import ModelNotAllowed, ModelNotFound
from proxy.loop.limits import LimitOverrides, Limits
from proxy.loop.offer import EVERY_TOOL, TOOL_FIELDS, Offer, ToolSelection, make_offer
from proxy.loop.prompts import WHERE, with_guidance
from proxy.loop.search import NO_FILTERS, SearchFilters
from proxy.ports import Model, Ports

# Clients choose the names of models and tools, so the cache is bounded, and long headers are not cached.
_MAX_POLICIES = 5000
_MAX_CACHED_HEADER = 256
_TOOL_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")  # what may stand in a header
_MAX_IGNORED = 32
_LONGEST_LOGGED = 100  # characters of a name that there is not

_NO_SOURCES: Mapping[str, str] = MappingProxyType({})

CALLER = "toolproxy.caller"
"""The key of the `Caller` in an ASGI scope, where the auth middleware puts it."""

TOOL_CALLS_LEFT = "toolproxy.tool_calls_left"
"""The key of the tool calls that are left of the client's budget; absent where it has no budget of tool calls."""


@dataclass(frozen=True, slots=True)
class Caller:
    """An authenticated client, or anyone where no clients are configured.

    Attributes:
        name: for logs; None: anonymous.
        models: glob patterns of the models that it may use.
        tools: the server tools that it may use; None: all.
        limits: those of its own `limits:`.
        admin: whether it may read /debug.
        tool_events: the progress events that its requests are told if they do not say; None: as for everybody.
        upstream_key: the key that it sent, for upstreams with `api_key: from_client`.
        scope: the owner of the data between this caller's requests, which no other caller may see.
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
        object.__setattr__(self, "scope", scope)  # of a frozen instance

    def may_use(self, model: str) -> bool:
        """Whether one of its patterns matches the model's name."""
        return any(fnmatchcase(model, pattern) for pattern in self.models)


class AccessPolicy(Struct, frozen=True):
    """Limits and tools for one client, one model and one selection of tools; many requests share it.

    Attributes:
        permitted: whether the client may use the model.
        limits: of the configuration, overlaid with the model's and then the client's own.
        tools: the server tools that client and model both may use, among those selected.
        selection: how the request selects tools, beside those that it declares.
        ignored: the selected names that no tool has, fit for a header.
        offer: the tools of a request that has none of the `TOOL_FIELDS`.
    """

    permitted: bool
    limits: Limits
    tools: tuple[ToolSpec, ...]
    selection: ToolSelection
    ignored: tuple[str, ...]
    offer: Offer

    def applied_to(self, chat: Json, *, calls_left: int | None) -> tuple[Limits, tuple[ToolSpec, ...], Offer]:
        """The limits, the usable server tools and the offer of one request, which may lower limits and name tools.

        Args:
            chat: the request.
            calls_left: the tool calls that the client's budget permits; None: any number.
        """
        limits, tools, offer = self.limits, self.tools, self.offer
        if calls_left is not None:
            limits = limits.with_calls_at_most(calls_left // (chat.get("n") or 1), Stop.BUDGET)
        if (max_tool_calls := chat.get("max_tool_calls")) is not None:
            limits = limits.with_calls_at_most(max_tool_calls)
            tools = tools if limits.allow_tools else ()
        if chat.get("parallel_tool_calls") is False:
            limits = replace(limits, max_parallel_tools=1)
        if tools is not self.tools or not TOOL_FIELDS.isdisjoint(chat):
            offer = make_offer(chat, tools, self.selection)
        return limits, tools, offer


class ResolvedRequest(Struct, frozen=True):
    """One request with all that is decided before its model is asked.

    Attributes:
        chat: the request in the words of Chat Completions, with what was hidden from this client put back.
        caller: the client that sent it.
        model: the model that answers it.
        limits: how far it may go.
        tools: the server tools that it may use.
        selection: how it selects server tools, beside those that it declares.
        offer: the tools that the model is shown.
        tool_events: the progress events that the client is told.
        body: `chat` as the client sent it, byte for byte; None where the two differ.
        ignored: tools that the client selects by name and cannot have, fit for a header.
        filters: of its searches.
        sources: URL -> title of the pages that hidden calls earlier in the conversation have found.
    """

    chat: Json
    caller: Caller
    model: Model
    limits: Limits
    tools: tuple[ToolSpec, ...] = ()
    selection: ToolSelection = ToolSelection()
    offer: Offer = Offer()
    tool_events: ToolEvents = "none"
    body: bytes | None = None
    ignored: tuple[str, ...] = ()
    filters: SearchFilters = NO_FILTERS
    sources: Mapping[str, str] = _NO_SOURCES


class RequestResolver:
    """Resolves the requests of a surface."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._policies: dict[tuple[object, ...], AccessPolicy] = {}
        self._specs: Mapping[str, ToolSpec] = {}

    async def resolve(
        self,
        scope: Scope,
        chat: Json,
        *,
        body: bytes | None = None,
        hidden: Mapping[str, Continuation] | None = None,
    ) -> ResolvedRequest:
        """Resolve a chat request.

        Args:
            scope: has the caller, and the headers that select tools.
            chat: the request, checked by `parse_chat_request` or made by a surface.
            body: the bytes that it was read from.
            hidden: by run, what the client was not shown of earlier runs and has brought back itself.

        Raises:
            ModelNotFound: there is no such model here.
            ModelNotAllowed: the client may not use it.
            RequestError: the settings of its searches are not well formed.
        """
        caller: Caller = scope[CALLER]
        given, sources = chat, _NO_SOURCES
        if runs := runs_in(chat["messages"]):
            chat, sources = await self._restored(caller.scope, share_of(scope), chat, runs, hidden or {})
        chat, name, on_request = self._without_request_marks(chat)
        try:
            model = self._ports.router.resolve(
                name, client_key=caller.upstream_key, messages=chat["messages"], headers=scope["headers"]
            )
        except ModelNotFound:
            request_context.add({"unknown_model": name[:_LONGEST_LOGGED]})
            raise
        policy = self._policy(caller, model, header(scope, b"x-server-tools"), on_request=on_request)
        if not policy.permitted:
            raise ModelNotAllowed(model.name)
        request_context.add({"model": model.name, "upstream": model.upstream.name, "stream": bool(chat.get("stream"))})
        if policy.ignored:
            request_context.add({"tools_ignored": policy.ignored})
        limits, tools, offer = policy.applied_to(chat, calls_left=scope.get(TOOL_CALLS_LEFT))
        filters = NO_FILTERS
        if offer.in_play and not FILTER_FIELDS.isdisjoint(chat):
            filters = filters_of(chat, native_search=policy.selection.native_search)
            if filters.place:
                chat = {**chat, "messages": with_guidance(chat["messages"], WHERE.format(place=filters.place))}
        otherwise = caller.tool_events or self._ports.config.offer.tool_events
        events = wanted_events(header(scope, b"x-tool-events"), otherwise=otherwise)
        decided = (limits, tools, policy.selection, offer, events, body if chat is given else None)
        return ResolvedRequest(chat, caller, model, *decided, policy.ignored, filters, sources)

    async def _restored(
        self, owner: str, share: Share | None, chat: Json, runs: Sequence[str], brought: Mapping[str, Continuation]
    ) -> tuple[Json, Mapping[str, str]]:
        """The request with what this client was not shown of earlier `runs`, and the pages that those have found."""
        found = {run: brought[run] for run in runs if run in brought}
        for run in runs:
            stored = None if run in found else await self._ports.store.get(owner, run)
            if stored is not None:
                if share is not None:
                    share.count_parsed(stored)
                found[run] = Continuation.from_json(orjson.loads(stored))
        self._ports.observe("continuation.sought", sought=len(runs), found=len(found))
        if not found:
            return chat, _NO_SOURCES
        sources = {url: title for one in found.values() for url, title in one.sources.items()}
        return {**chat, "messages": put_back(chat["messages"], found)}, sources

    def _without_request_marks(self, chat: Json) -> tuple[Json, str, bool]:
        """The request and its model's name without the marks that ask for tools, and whether there was one."""
        offer, name = self._ports.config.offer, chat["model"]
        has_suffix = bool(offer.model_suffix) and name.endswith(offer.model_suffix)
        name = name.removesuffix(offer.model_suffix) if has_suffix else name
        messages = take_prefix(chat["messages"], offer.prefix) if offer.prefix else None
        if messages is None:
            return chat, name, has_suffix
        return {**chat, "messages": messages}, name, True

    def _policy(self, caller: Caller, model: Model, selected: str | None, *, on_request: bool) -> AccessPolicy:
        """The `access_policy` of a request, from the cache if it is there; other tools empty the cache."""
        specs = self._ports.toolset.specs
        if specs is not self._specs or len(self._policies) >= _MAX_POLICIES:  # tools of MCP servers come and go
            self._specs, self._policies = specs, {}
        native_search = model.upstream.native_search
        key = (caller.name, model.name, selected, on_request, native_search)
        policy = self._policies.get(key)
        if policy is None:
            selection = ToolSelection(on_request, _names_in(selected), native_search)
            policy = access_policy(self._ports.config.limits, caller, model, specs.values(), selection)
            if selected is None or len(selected) <= _MAX_CACHED_HEADER:
                self._policies[key] = policy
        return policy


def access_policy(
    limits: Limits, caller: Caller, model: Model, specs: Iterable[ToolSpec], selection: ToolSelection
) -> AccessPolicy:
    """The policy for a caller, a model and a selection.

    Args:
        limits: of the configuration.
        caller: with limits and tools of its own, perhaps.
        model: the same.
        specs: every server tool that there is.
        selection: of the request.
    """
    limits = limits.overlaid(model.limits, caller.limits)
    tools = list(specs)
    for allowed in (caller.tools, model.tools):
        tools = tools if allowed is None else [tool for tool in tools if tool.is_among(allowed)]
    ignored: tuple[str, ...] = ()
    if (names := selection.names) is not None:
        selectable = [tool for tool in tools if tool.offer != "never"]
        unknown = [one for one in names - {EVERY_TOOL} if not any(tool.is_among({one}) for tool in selectable)]
        ignored = names_for_header(sorted(unknown))
        tools = tools if EVERY_TOOL in names else [tool for tool in tools if tool.is_among(names)]
    usable = tuple(tools) if limits.allow_tools else ()
    offer = make_offer({}, usable, selection)
    return AccessPolicy(caller.may_use(model.name), limits, usable, selection, ignored, offer)


def _names_in(selected: str | None) -> frozenset[str] | None:
    """The names in `x-server-tools`, `EVERY_TOOL` perhaps among them; None where there is no such header."""
    if selected is None:
        return None
    if selected.strip().lower() in ("none", EVERY_TOOL):  # as people write them
        selected = selected.strip().lower()
    return frozenset(name.strip() for name in selected.split(",")) - {"none", ""}


def names_for_header(names: Iterable[str]) -> tuple[str, ...]:
    """The names of tools, each once and at most 32 of them, as they may stand in a header and in the log."""
    return tuple(dict.fromkeys(name if _TOOL_NAME.fullmatch(name) else "unknown" for name in names))[:_MAX_IGNORED]


def take_prefix(messages: Sequence[Json], prefix: str) -> list[Json] | None:
    """The messages without `prefix` at the beginning of the last user message; None where it is not there."""
    for at in range(len(messages) - 1, -1, -1):
        if messages[at].get("role") == "user":
            content = _after_prefix(messages[at].get("content"), prefix)
            if content is None:
                return None
            return [*messages[:at], {**messages[at], "content": content}, *messages[at + 1 :]]
    return None


def _after_prefix(content: Any, prefix: str) -> Any:
    if isinstance(content, str):
        text = content.lstrip()
        return text.removeprefix(prefix).lstrip() if text.startswith(prefix) else None
    if isinstance(content, list):
        for at, part in enumerate(content):
            if isinstance(part.get("text"), str):
                text = _after_prefix(part["text"], prefix)
                return None if text is None else [*content[:at], {**part, "text": text}, *content[at + 1 :]]
    return None
