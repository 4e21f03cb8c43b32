"""A request of any API, resolved: its caller, its model, its tools and its limits."""

from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import orjson
from cachetools import LRUCache
from msgspec import Struct
from msgspec.structs import replace
from starlette.types import Scope

from proxy.api.access import (
    CALLER,
    TOOL_CALLS_LEFT,
    AccessPolicies,
    AccessPolicy,
    Caller,
    may_use_server,
    names_for_header,
)
from proxy.api.affinity import conversation_of
from proxy.api.asked import Asked
from proxy.api.body import header, list_header
from proxy.api.body_memory import SHARE
from proxy.api.credentials import RequestTools
from proxy.api.ports import Ports
from proxy.api.remembered import Remembered
from proxy.config.model import OfferConfig, ToolEvents
from proxy.kit import request_context
from proxy.kit.beside import beside, pause_in
from proxy.loop.continuation import CarriedTurns, Continuation, from_json, put_back, runs_in
from proxy.loop.limits import Limits
from proxy.loop.offer import Offer, is_side_request
from proxy.loop.pictures import without_pictures
from proxy.loop.prompts import PICTURES, WHERE, with_system_text
from proxy.ports import MayUse, Model, Toolset
from proxy.wire.chat import Json, ToolSpec, text_of
from proxy.wire.credentials import BOUND, Credentials
from proxy.wire.errors import ProxyError
from proxy.wire.search import NO_FILTERS, SearchFilters

_MOST_USERS = 256  # whose own toolsets are kept, with what they may use
_NO_SOURCES: Mapping[str, str] = MappingProxyType({})
# The values of the header `x-tool-events`. Any other value is ignored, and the configuration applies.
_TOOL_EVENTS: Mapping[str, ToolEvents] = {"true": "calls", "results": "results", "false": "none", "none": "none"}


class Access(Struct, frozen=True):
    """The model, limits and tools that a request may use. A dialect translates the tools of the request within them.

    Attributes:
        chat: the request as one of Chat Completions, with the messages that were hidden from this client put back.
        policy: the limits and tools of this client with this model.
        tools: the server tools that the request may use.
        tool_events: the progress events that the client is shown.
        body: `chat` as the client sent it, byte for byte; None if the two differ.
        sources: URL -> title of the pages that earlier calls of the conversation have found.
        conversation: the hash of the conversation; None: no upstream has several keys.
        own: the toolset of the request, and the credentials of its user.
    """

    chat: Json
    caller: Caller
    model: Model
    policy: AccessPolicy
    limits: Limits
    tools: tuple[ToolSpec, ...]
    tool_events: ToolEvents
    body: bytes | None
    sources: Mapping[str, str]
    conversation: bytes | None
    own: RequestTools

    @property
    def drops_unavailable_tools(self) -> bool:
        """Whether a selection or a limit narrows the server tools.

        If so, a tool that the client declares and cannot have is left out and named in `x-tools-ignored`; otherwise the
        request is refused.
        """
        return self.policy.selection.names is not None or not self.limits.allow_tools


class ResolvedRequest(Access, frozen=True):
    """A request with everything that is decided before its model is called.

    Attributes:
        ignored: the names of tools that the client selected or declared and cannot have, safe in a header.
    """

    offer: Offer = Offer()
    ignored: tuple[str, ...] = ()
    filters: SearchFilters = NO_FILTERS


class ToolsChosen(Struct, frozen=True, kw_only=True):
    """The tools of a request within its `Access`, as a dialect has translated them.

    Attributes:
        fields: the translated fields, instead of the request's own `tools` and `tool_choice`; None: these stay.
        tools: the server tools that the request may use, with its own limits; None: `Access.tools`.
        ignored: the names of declared tools that the request cannot have.
        filters: the filters of its searches; None: those of the declared search, even if it is not available.
        late: the names of tools that the conversation has added, in order.
        text: the declared tools and choice as JSON, by which the offer is remembered; None: it is not remembered.
    """

    fields: Json | None = None
    tools: tuple[ToolSpec, ...] | None = None
    ignored: Sequence[str] = ()
    filters: SearchFilters | None = None
    late: Sequence[str] = ()
    text: bytes | None = None


class RequestResolver:
    """Resolves requests: first `access`, then `finish` with the tools that the dialect has chosen."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._marks = ports.config.offer if ports.config.offers_on_request else None  # how requests ask for tools
        self._has_key_pools = ports.config.has_key_pools
        self._policies = AccessPolicies(ports, ports.toolset)
        self._policies_of_users: LRUCache[Toolset, AccessPolicies] = LRUCache(_MOST_USERS)
        self.remembered = Remembered()

    def may_use(self, scope: Scope, request: Json) -> MayUse | None:
        """Whether a `request`, as the client sent it, may use the tools of a server, for `CredentialReader.tools_of`.

        No server is asked for its list for a request that will be refused, or may not use the server's tools.
        """
        caller: Caller = scope[CALLER]
        name, _ = self._unmarked(str(request.get("model")))
        try:
            model = self._ports.router.resolve(name, client_key=caller.upstream_key, may_use=caller.may_use)
            selected, marked = list_header(scope, b"x-server-tools"), self._marks is not None
            policy = self._policies.of(caller, model, selected, frozenset(), on_request=marked)
        except ProxyError:  # raised again when the request is resolved
            return None
        if not policy.limits.allow_tools or 0 in (scope.get(TOOL_CALLS_LEFT), request.get("max_tool_calls")):
            return None
        return partial(may_use_server, allowed=(caller.tools, model.tools), selection=policy.selection, request=request)

    async def access(self, scope: Scope, asked: Asked, *, own: RequestTools) -> ResolvedRequest:
        """The access of a request; `own` are its tools, from `CredentialReader.tools_of`. The offer is still empty.

        Raises:
            ModelNotFound: the configuration has no such model.
            ModelNotAllowed: the client may not use the model.
        """
        caller: Caller = scope[CALLER]
        chat = given = asked.chat
        sources, conversation = asked.sources, asked.conversation
        if runs := runs_in(chat["messages"]):
            chat, restored = await self._restored(scope, asked, runs, own.credentials)
            sources = {**sources, **restored}
        name, on_request = chat["model"], False
        if self._marks is not None:
            chat, name, on_request = self._without_marks(chat, self._marks)
        if self._has_key_pools and conversation is None:  # before pictures are replaced, which depends on the turn
            conversation = conversation_of(scope, caller, given, model=name, named=asked.named)
        model = self._ports.router.resolve(
            name,
            client_key=caller.upstream_key,
            messages=chat["messages"],
            headers=scope["headers"],
            conversation=conversation,
            may_use=caller.may_use,
        )
        if model.hides_pictures and (messages := without_pictures(chat["messages"])) is not chat["messages"]:
            chat = {**chat, "messages": messages}
        selected, headers = list_header(scope, b"x-server-tools"), own.credentials.names
        policies = self._policies
        if own.toolset is not self._ports.toolset:  # a server has listed tools for the user
            policies = self._policies_of_users.setdefault(own.toolset, AccessPolicies(self._ports, own.toolset))
        policy = policies.of(caller, model, selected, headers, on_request=on_request)
        request_context.add({"model": model.name, "upstream": model.upstream.name, "stream": bool(chat.get("stream"))})
        limits, tools = policy.applied_to(chat, calls_left=scope.get(TOOL_CALLS_LEFT))
        if asked.max_output_tokens is not None:
            limits = replace(limits, max_output_tokens=asked.max_output_tokens)
        events = caller.tool_events or self._ports.config.offer.tool_events
        if (wanted := header(scope, b"x-tool-events")) is not None:
            events = _TOOL_EVENTS.get(wanted.strip().lower(), events)
        body = asked.body if chat is given else None
        return ResolvedRequest(chat, caller, model, policy, limits, tools, events, body, sources, conversation, own)

    def finish(self, access: ResolvedRequest, chosen: ToolsChosen) -> ResolvedRequest:
        """Decide the offer and the filters of a request. Raises `RequestError`: the filters are not well formed."""
        chat, policy = access.chat, access.policy
        if chosen.fields is not None:
            kept = {name: value for name, value in chat.items() if name not in ("tools", "tool_choice")}
            chat = kept | chosen.fields
        names = names_for_header((*policy.ignored, *chosen.ignored)) if chosen.ignored else policy.ignored
        if names:
            request_context.add({"tools_ignored": names})
        tools = access.tools if chosen.tools is None else chosen.tools
        declared = access.chat if chosen.filters is None else None
        if chosen.text is None:
            offer, filters = policy.offer_to(chat, tools, declared)
        else:
            make = partial(policy.offer_to, chat, tools, declared)
            owner, narrows, is_side = access.caller.scope, access.drops_unavailable_tools, is_side_request(chat)
            offer, filters = self.remembered.of(chosen.text, (policy, access.tools), (owner, narrows, is_side), make)
        if offer.not_described:
            request_context.add({"tools_not_described": offer.not_described})
        if chosen.late:
            offer = offer.with_last(chosen.late)
        filters = filters if chosen.filters is None else chosen.filters
        if filters is not None and filters.place:
            chat = {**chat, "messages": with_system_text(chat["messages"], WHERE.format(place=filters.place))}
        body = access.body if chat is access.chat else None
        access = replace(access, chat=chat, tools=tools, body=body)
        return replace(access, offer=offer, ignored=names, filters=filters or NO_FILTERS)

    async def _restored(
        self, scope: Scope, asked: Asked, runs: Mapping[str, bool], credentials: Credentials
    ) -> tuple[Json, Mapping[str, str]]:
        """The request with the hidden messages of earlier `runs` put back, and the pages that these runs found."""
        owner, share, chat = scope[CALLER].scope, scope.get(SHARE), asked.chat
        found: dict[str, Continuation | CarriedTurns] = {run: asked.hidden[run] for run in runs if run in asked.hidden}
        for at, run in enumerate(runs):
            await pause_in(at)
            stored = None if run in found else await self._ports.store.get(owner, run)
            if stored is not None:
                if share is not None:
                    share.count_parsed(stored)
                held = await beside(len(stored), partial(orjson.loads, stored))
                bound = held.get(BOUND) if isinstance(held, dict) else None
                restored = from_json(held) if credentials.opens(bound) else None
                if restored is not None:
                    found[run] = restored
        # A run without calls of the client's is stored only if its turns carry fields that clients cannot bring back.
        sought = sum(run in found or calls_client for run, calls_client in runs.items())
        if sought:
            self._ports.observe("continuation.sought", sought=sought, found=len(found))
        if not found:
            return chat, _NO_SOURCES
        parts = [hidden for hidden in found.values() if isinstance(hidden, Continuation)]
        sources = {url: title for part in parts for url, title in part.sources.items()}
        return {**chat, "messages": put_back(chat["messages"], found)}, sources

    def _unmarked(self, name: str) -> tuple[str, bool]:
        """A model's name without the suffix that asks for tools, and whether it had the suffix."""
        suffix = self._marks.model_suffix if self._marks is not None else None
        if suffix is None or not name.endswith(suffix) or name in self._ports.config.models:
            return name, False
        return name.removesuffix(suffix), True

    def _without_marks(self, chat: Json, marks: OfferConfig) -> tuple[Json, str, bool]:
        """The request without the prefix, its model's name without the suffix, and whether it has one of these marks.

        A suffix is not removed from a name that the configuration spells out.
        """
        name, has_suffix = self._unmarked(chat["model"])
        messages = take_prefix(chat["messages"], marks.prefix) if marks.prefix else None
        if messages is None:
            return chat, name, has_suffix
        return {**chat, "messages": messages}, name, True


def take_prefix(messages: Sequence[Json], prefix: str) -> list[Json] | None:
    """The messages without `prefix` at the beginning of the last user message; None if there is no such prefix."""
    for at in range(len(messages) - 1, -1, -1):
        if messages[at].get("role") == "user" and not _has_pictures_of_results(messages, at):
            content = _after_prefix(messages[at].get("content"), prefix)
            if content is None:
                return None
            return [*messages[:at], {**messages[at], "content": content}, *messages[at + 1 :]]
    return None


def _has_pictures_of_results(messages: Sequence[Json], at: int) -> bool:
    """Whether a message holds the pictures of tool results, which tool messages cannot hold, and is not a question."""
    if at == 0 or messages[at - 1].get("role") != "tool" or not isinstance(messages[at].get("content"), list):
        return False
    return text_of(messages[at]) in ("", PICTURES)


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
