"""The tools that a request offers to the model, and which of them the proxy runs.

If a function in the request's `tools` has a server tool's name or alias, the proxy runs it, under the name that the
client used. Every other tool belongs to the client. If the client leaves the choice to the model, the other server
tools are added, each by its own mode:

    always       to every request except side requests
    on_request   if the request asks for them: by prefix, by the model's suffix, by header
    declared     only if the client itself declares them, or names them in the header
    never        only if the client itself declares them; they serve as fallbacks of other tools

A hosted search declares the server's `web_search`: `{"type": "web_search"}` and its variants, `web_search_options`, or
OpenRouter's `plugins: [{"id": "web"}]`. A server tool that `tool_choice` names is offered in any mode.

A side request is one by which an app asks a model for a title, a label or a probe of its quota, not for an answer: it
has no tools of its own, and asks for JSON, for very few tokens, or for an end at a stop sequence.

Of many tools, the model sees some and finds the rest (`many_tools`).
"""

from collections.abc import Collection, Iterable, KeysView, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from proxy.loop import many_tools
from proxy.turn.json_mode import demands_json
from proxy.wire.chat import Json, ToolSpec, choice_of, drop_tools, name_of

SEARCH = "web_search"
# Upstreams may refuse fields that they do not know, and a run is one choice of `n`.
_NOT_FOR_UPSTREAM = frozenset({"max_tool_calls", "n"})
_SEARCH_FIELDS = frozenset({"web_search_options", "plugins"})
EVERY_TOOL = "all"
"""The value of the header `x-server-tools` that selects every tool that may be selected."""
MOST_TOOLS = 128
"""The tools of one request that OpenAI accepts. The client's own are always sent, whatever their number."""
# Claude Code asks for 1 token to see whether a key works; safety classifiers of agents ask for a word.
_FEW_TOKENS = 16
HOSTED_SEARCHES = ("web_search", "web_search_preview", "web_search_2025_08_26", "web_search_preview_2025_03_11")


class ToolSelection(Struct, frozen=True):
    """The selection of server tools by a request, in addition to the tools that it declares.

    Attributes:
        on_request: whether the prefix or the model's suffix asks for the tools of the mode `on_request`.
        names: the names of tools in the header, or `EVERY_TOOL`; None: there is no such header.
        native_search: whether the upstream has its own web search; the declaration of it is passed on.
        headers: the headers of the request that hold credentials for tools.
        unlisted: the servers that list their tools by headers of the request, if it lacks some of these headers: the
            prefix of the tools' names, and the headers.
        only_beside_own: whether tools are added only to requests with the client's own functions. An agent's requests
            without functions ask for a title or one search, and a model would search for the title.
    """

    on_request: bool = False
    names: frozenset[str] | None = None
    native_search: bool = False
    headers: frozenset[str] = frozenset()
    unlisted: tuple[ToolSpec, ...] = ()
    only_beside_own: bool = False

    def beside(self, client_tools: Collection[str], request: Json) -> "ToolSelection":
        """The selection for a request with these functions of the client's own."""
        is_alone = not client_tools and (self.only_beside_own or is_side_request(request))
        return self if is_alone is self.only_beside_own else replace(self, only_beside_own=is_alone)

    def wants(self, tool: ToolSpec) -> bool:
        """Whether a tool that the client did not declare is to be added."""
        return tool.needs <= self.headers and self._chooses(tool)

    def lacks_headers_for(self, tool: ToolSpec) -> bool:
        """Whether a tool would be added if the request had the headers that the tool needs."""
        return not tool.needs <= self.headers and self._chooses(tool)

    def _chooses(self, tool: ToolSpec) -> bool:
        if self.names is not None:
            return tool.offer != "never" and (EVERY_TOOL in self.names or tool.is_among(self.names))
        if self.on_request and tool.offer == "on_request":
            return True
        return tool.offer == "always" and not self.only_beside_own


NO_SELECTION = ToolSelection()

OFFER_FIELDS = frozenset({"tools", "tool_choice", "functions", "web_search_options", "plugins"})
"""The fields of a request that `make_offer` reads."""


class Offer(Struct, frozen=True):
    """The tools of one request.

    Attributes:
        tools: the `tools` that are sent to the upstream.
        server_tools: every name under which a server tool may be called -> the tool.
        offered: the names of the server tools among `tools`; empty if the model can call none.
        client_tools: the names of the client's functions.
        tool_choice: the choice for the first turn; None if the request has none.
        schemas: every name that may be called, of a server tool or of a client's function -> its JSON Schema.
        dropped: the fields of the request that are not for the upstream.
        searchable: the tools in play by their own names, if there are many and the model has to find them.
        unlisted: see `ToolSelection`.
        not_described: the number of server tools that are left out of `tools` because they are too many.
    """

    tools: tuple[Json, ...] = ()
    server_tools: Mapping[str, ToolSpec] = {}
    offered: tuple[str, ...] = ()
    client_tools: frozenset[str] = frozenset()
    tool_choice: Any = None
    schemas: Mapping[str, Json] = {}
    dropped: frozenset[str] = frozenset()
    searchable: Mapping[str, ToolSpec] = {}
    unlisted: tuple[ToolSpec, ...] = ()
    not_described: int = 0

    @property
    def answers_calls(self) -> bool:
        """Whether the proxy answers any call, if only with a missing header; otherwise requests pass through."""
        return bool(self.server_tools or self.unlisted)

    @property
    def client_entries(self) -> tuple[Json, ...]:
        """The client's own entries of `tools`."""
        return tuple(tool for tool in self.tools if name_of(tool) not in self.server_tools)

    def with_last(self, names: Iterable[str]) -> "Offer":
        """The offer with these tools at the end, in this order: an upstream may have cached the tools before them."""
        last = dict.fromkeys(names)
        by_name = {name: tool for tool in self.tools if (name := name_of(tool)) in last}
        others = [tool for tool in self.tools if name_of(tool) not in by_name]
        return replace(self, tools=(*others, *(by_name[name] for name in last if name in by_name)))


def make_offer(
    request: Json,
    server_tools: Sequence[ToolSpec],
    selection: ToolSelection = NO_SELECTION,
    *,
    search_above: int | None = None,
) -> Offer:
    """Decide which server tools are in play for a request.

    Args:
        request: the client's body; its `OFFER_FIELDS` are read.
        server_tools: the tools that this client may use with this model.
        selection: the tools that the request selects in other ways.
        search_above: the number of tools in play above which the model finds tools; None if all tools are described.
    """
    declared: Sequence[Json] = request.get("tools") or ()
    choice = request.get("tool_choice")
    if choice == "none" or request.get("functions"):  # the legacy field excludes `tools`
        client_tools = frozenset(_names_in(declared))
        schemas = _schemas(declared, {}, client_tools)
        return Offer(tools=tuple(declared), client_tools=client_tools, tool_choice=choice, schemas=schemas)
    by_name = {name: tool for tool in server_tools for name in tool.names}
    wanted = _wanted_by(request, by_name, selection)
    names = _names_in(wanted.own)
    client_tools = frozenset(names - wanted.declared.keys())
    selection = selection.beside(client_tools, request)
    added = _added_to(wanted, names, server_tools, selection)
    in_play = {tool.name: tool for tool in (*wanted.declared.values(), *added)}
    callable_tools = _callable(by_name, in_play, selection, client_tools)
    shown: Sequence[ToolSpec] = added
    finding: Sequence[ToolSpec] = ()
    if search_above is not None and len(in_play) > search_above and many_tools.NAMES.isdisjoint(names):
        shown, finding = _searchable(wanted, added, server_tools, selection, search_above)
        callable_tools |= {tool.name: tool for tool in finding}
    fitting = _fitting(shown, finding, room=MOST_TOOLS - len(wanted.own))
    return Offer(
        tools=(*wanted.own, *(tool.definition() for tool in fitting)),
        server_tools=callable_tools,
        offered=tuple(wanted.declared | {tool.name: tool for tool in fitting}),
        client_tools=client_tools,
        tool_choice=wanted.choice,
        schemas=_schemas(wanted.own, callable_tools, client_tools),
        dropped=_SEARCH_FIELDS if wanted.has_search else frozenset(),
        searchable=in_play if finding else {},
        unlisted=selection.unlisted,
        not_described=len(shown) - len(fitting),
    )


class _Wanted(Struct, frozen=True):
    """The wishes of a request for the server's tools."""

    own: Sequence[Json]  # its own entries of `tools`, without hosted searches that are the server's
    choice: Any  # its `tool_choice`, in a form for any upstream
    allows_more: bool  # whether it leaves room for tools that it does not name
    declared: dict[str, ToolSpec]  # the server tools among `own`, by the names that the client uses
    demanded: Sequence[ToolSpec]  # further server tools that it asks for, which are added to its own
    has_search: bool  # whether the server's search is available to it


def _wanted_by(request: Json, by_name: Mapping[str, ToolSpec], selection: ToolSelection) -> _Wanted:
    """What a request wants of the server tools, which are given by every name that they have."""
    declared: Sequence[Json] = request.get("tools") or ()
    choice = request.get("tool_choice")
    search = by_name.get(SEARCH)
    if search is not None and not search.needs <= selection.headers:
        search = None
    wants_search = search is not None and _asks_for_search(request, selection)
    if search is not None:
        declared = [tool for tool in declared if not is_hosted_search(tool, native=selection.native_search)]
    own, choice, allowed = narrowed(declared, choice)
    if search is not None and _chooses_hosted_search(choice, own):
        choice = choice_of(SEARCH)
    names = _names_in(own)
    named = {name: by_name[name] for name in _names_in(filter(_is_function, own)) if name in by_name}
    demanded = [by_name[name] for name in _named_by(choice, allowed) if name in by_name and name not in names]
    if isinstance(choice, dict) and demanded:  # it may have an alias, and the tool is offered under its own name
        choice = choice_of(demanded[0].name)
    if search is not None and wants_search:
        demanded.append(search)
    allows_more = allowed is None and (choice in (None, "auto") or selection.names is not None)
    return _Wanted(own, choice, allows_more, named, demanded, search is not None)


def _added_to(
    wanted: _Wanted, names: Collection[str], server_tools: Iterable[ToolSpec], selection: ToolSelection
) -> list[ToolSpec]:
    """The server tools that are added to a request's own entries, which have these names; each of them once."""
    chosen = {tool.name: tool for tool in wanted.demanded}
    if wanted.allows_more:
        chosen |= {tool.name: tool for tool in server_tools if selection.wants(tool)}
    known = {tool.name for tool in wanted.declared.values()}.union(names)
    return [tool for name, tool in chosen.items() if name not in known]


def _callable(
    by_name: Mapping[str, ToolSpec], in_play: Collection[str], selection: ToolSelection, client_tools: Collection[str]
) -> dict[str, ToolSpec]:
    """The tools whose calls are the proxy's to answer, by every name that is not one of the client's own.

    A model may call a tool in play by an alias that it was trained on; and a call of a tool whose headers the request
    lacks is answered with what is missing.
    """
    return {
        name: tool
        for name, tool in by_name.items()
        if name not in client_tools and (tool.name in in_play or selection.lacks_headers_for(tool))
    }


def _searchable(
    wanted: _Wanted,
    added: Sequence[ToolSpec],
    server_tools: Iterable[ToolSpec],
    selection: ToolSelection,
    most: int,
) -> tuple[Sequence[ToolSpec], Sequence[ToolSpec]]:
    """The tools that are described, and those among them that find the others; none if there are no others.

    Described are the first tools of the configuration in play, and what the request has asked for by its name.
    """
    in_play = {tool.name for tool in (*wanted.declared.values(), *added)}
    first = [tool.name for tool in server_tools if tool.group is None and tool.name in in_play][:most]
    described = {*first, *(tool.name for tool in wanted.demanded)}
    named = selection.names or frozenset()  # a group's name in the header describes none of its tools
    described.update(tool.name for tool in added if not named.isdisjoint(tool.names))
    hidden = [tool for tool in added if tool.name not in described]
    if not hidden:
        return added, ()
    finding = many_tools.finding_tools(hidden)
    return [*(tool for tool in added if tool.name in described), *finding], finding


def _fitting(shown: Sequence[ToolSpec], finding: Sequence[ToolSpec], *, room: int) -> Sequence[ToolSpec]:
    """The tools that have room: the first ones, and the tools at the end that find the rest."""
    if len(shown) <= room:
        return shown
    room -= len(finding)
    return [*shown[: -len(finding) or None][:room], *finding] if room >= 0 else []


def is_side_request(request: Json) -> bool:
    """Whether a request without tools is a side request of an app."""
    few = (request.get(name) for name in ("max_tokens", "max_completion_tokens"))
    return (
        any(isinstance(most, int) and most <= _FEW_TOKENS for most in few)
        or bool(request.get("stop"))
        or demands_json(request)
    )


def web_plugins_in(request: Json) -> list[Json]:
    """The plugins in an OpenRouter request that ask for a web search."""
    return [plugin for plugin in _plugins(request) if _is_web_plugin(plugin) and plugin.get("enabled") is not False]


def _plugins(request: Json) -> list[Any]:
    listed = request.get("plugins")
    return listed if isinstance(listed, list) else []


def _is_web_plugin(plugin: Any) -> bool:
    return isinstance(plugin, dict) and plugin.get("id") == "web"


def _asks_for_search(request: Json, selection: ToolSelection) -> bool:
    """Whether a request declares the server's search in any form, and its `tool_choice` permits a search."""
    declared: Sequence[Json] = request.get("tools") or ()
    is_declared = any(is_hosted_search(tool, native=selection.native_search) for tool in declared)
    has_options = request.get("web_search_options") is not None or bool(web_plugins_in(request))
    allowed = _allowed_in(request.get("tool_choice"))
    is_left = allowed is None or any(one.get("type") in HOSTED_SEARCHES or name_of(one) == SEARCH for one in allowed)
    return (is_declared or has_options) and is_left


def _allowed_in(choice: Any) -> list[Json] | None:
    """The entries of `tool_choice: allowed_tools`; None: the choice has another form."""
    detail = choice.get("allowed_tools") if isinstance(choice, dict) else None
    if not isinstance(detail, dict):
        return None
    return [tool for tool in detail.get("tools") or () if isinstance(tool, dict)]


def _chooses_hosted_search(choice: Any, own: Iterable[Json]) -> bool:
    """Whether `tool_choice` demands a hosted search, and no hosted search is left for the upstream."""
    is_hosted = isinstance(choice, dict) and choice.get("type") in HOSTED_SEARCHES
    return is_hosted and not any(tool.get("type") in HOSTED_SEARCHES for tool in own)


def _is_function(tool: Json) -> bool:
    """Whether an entry of `tools` is a function; custom tools are always the client's."""
    return bool(tool.get("type", "function") == "function")


def _named_by(choice: Any, allowed: Iterable[str] | None) -> Iterable[str]:
    """The names of the functions in a `tool_choice`, which is one function or `allowed_tools`."""
    if allowed is not None:
        return allowed
    name = name_of(choice) if isinstance(choice, dict) and _is_function(choice) else None
    return () if name is None else (name,)


def _names_in(tools: Iterable[Json]) -> KeysView[str]:
    """The names in `tools`, in order."""
    return dict.fromkeys(name for tool in tools if (name := name_of(tool)) is not None).keys()


def is_hosted_search(tool: Json, *, native: bool) -> bool:
    """Whether a tool is a search by the server. With `native`, GLM's own form does not count."""
    return tool.get("type") in HOSTED_SEARCHES and not (native and is_native_search(tool))


def is_native_search(tool: Json) -> bool:
    """Whether a tool is GLM's own form of a search, which has settings and is refused by other upstreams."""
    return "web_search" in tool and tool.get("type") in HOSTED_SEARCHES and isinstance(tool["web_search"], dict)


def narrowed(tools: Sequence[Json], choice: Any) -> tuple[Sequence[Json], Any, Collection[str] | None]:
    """Tools and choice for servers without `allowed_tools`, and the allowed names; None if the request has none."""
    allowed = _allowed_in(choice)
    if allowed is None:
        return tools, choice, None
    names = _names_in(allowed)
    types = {tool.get("type") for tool in allowed if name_of(tool) is None}
    remaining = [
        tool for tool in tools if name_of(tool) in names or (name_of(tool) is None and tool.get("type") in types)
    ]
    return remaining, choice["allowed_tools"].get("mode") or "auto", names


def upstream_request(request: Json, offer: Offer) -> Json:
    """The client's request with the tools of the offer instead of its own. The run replaces the messages."""
    body = {**request}
    for name in _NOT_FOR_UPSTREAM | offer.dropped:
        body.pop(name, None)
    plugins = _plugins(request) if "plugins" in offer.dropped and "plugins" in request else ()
    if others := [plugin for plugin in plugins if not _is_web_plugin(plugin)]:
        body["plugins"] = others
    if offer.tools:
        body["tools"] = offer.tools
        body["tool_choice"] = offer.tool_choice
        if not offer.tool_choice:
            del body["tool_choice"]
    else:
        drop_tools(body)  # vLLM refuses an empty `tools`
    return body


def choice_after_first_turn(choice: Any, offer: Offer) -> Any:
    """The `tool_choice` of later turns: `required` and the choice of a server tool apply to the first turn only."""
    if choice == "required":
        return "auto"
    if not isinstance(choice, dict):
        return choice
    return "auto" if name_of(choice) in offer.server_tools else choice


def _schemas(
    declared: Iterable[Json], server_tools: Mapping[str, ToolSpec], client_tools: Collection[str]
) -> dict[str, Json]:
    """Every name that may be called -> its JSON Schema, `{}` for a client's function without one."""
    schemas = {name: tool.alias_parameters.get(name, tool.parameters) for name, tool in server_tools.items()}
    for tool in declared:
        function = tool.get("function")
        if isinstance(function, dict) and function.get("name") in client_tools:
            parameters = function.get("parameters")
            schemas[function["name"]] = parameters if isinstance(parameters, dict) else {}
    return schemas
