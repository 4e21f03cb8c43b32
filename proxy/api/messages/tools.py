"""`tools` and `tool_choice` of a Messages request as those of a chat request.

custom            one of the client's own functions, unless it has the name or an alias of a server tool
web_search_*      the server's `web_search`, whose calls and results the client is shown
web_fetch_*       the server's first tool of `type: web_fetch`, likewise
code_execution_*  the server's tool that serves `code_interpreter`, likewise
the others        tools that are not available here: left out, and named in `x-tools-ignored`

System messages of the history may have changed them (`history`).
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, NoReturn

from msgspec import Struct
from msgspec.structs import replace

from proxy.api.credentials import RequestTools
from proxy.api.fields import is_integer, whole
from proxy.api.hosted import hosted_within
from proxy.api.messages.history import ToolChange, offered_tools
from proxy.api.messages.parts import named, refuse
from proxy.api.parsing import MOST_TOOLS
from proxy.api.search_filters import filters_of_tool, merged
from proxy.loop.call_context import CallContext
from proxy.loop.offer import SEARCH
from proxy.loop.prompts import RESULT_CUT
from proxy.loop.results import ToolOutput
from proxy.ports import ExecuteTool
from proxy.wire.chat import Json, ToolCall, ToolSpec, choice_of, name_of
from proxy.wire.search import SearchFilters

FETCH = "web_fetch"
CODE = "code_execution"
TOOL_FIELDS = frozenset({"tools", "tool_choice", "mcp_servers"})
"""The fields of a request that `read_tools` reads."""

_CHARACTERS_PER_TOKEN = 4  # of English text; a page is cut by its length and not by its tokens
_VERSION = re.compile(r"(web_search|web_fetch|code_execution)(_[0-9]+)?")
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_KINDS = {"auto": "auto", "any": "required", "none": "none"}


class HostedTool(Struct, frozen=True):
    """A server tool that a client has declared by its type, with its settings.

    Attributes:
        type: the type as the client wrote it.
        max_uses: the number of calls that the client permits; None: as many as the server permits.
        filters: which pages may reach the model and the client, and where the user is.
        max_characters: of a page; None: as many as the tool gives.
    """

    type: str
    max_uses: int | None
    filters: SearchFilters
    max_characters: int | None


class MessageTools(Struct, frozen=True, dict=True):  # `dict` for the cached properties
    """The tools of one request.

    Attributes:
        own_names: the client's name of each hosted tool that the server has -> the name of the server's tool.
        functions: the client's own tools, in the form of Chat Completions; `within` adds the hosted ones.
        hosted: `web_search`, `web_fetch` and `code_execution`, if they are declared.
        ignored: the types of declared tools that are not available here.
        choice: `tool_choice` in the form of Chat Completions; `within` puts the own name of a hosted tool into it.
        parallel: whether the model may call several of the client's tools in one turn.
        server_tools: the usable server tools, with the client's limits and names; None: nothing is changed in them.
        shown: the server tools whose calls the client is shown: own name -> the client's name.
        late: the names of the tools that came in later, in the order of their coming.
    """

    own_names: Mapping[str, str]
    functions: tuple[Json, ...] = ()
    hosted: Mapping[str, HostedTool] = {}
    ignored: tuple[str, ...] = ()
    choice: Any = None
    parallel: bool = True
    server_tools: tuple[ToolSpec, ...] | None = None
    shown: Mapping[str, str] = {}
    late: tuple[str, ...] = ()

    @cached_property
    def filters(self) -> SearchFilters:
        """The filters of the searches, which apply to undeclared server tools as well."""
        return merged([self.hosted[name].filters for name in self.shown.values()])

    @cached_property
    def for_chat(self) -> Json:
        """The fields of the chat request."""
        fields: Json = {"tools": list(self.functions)} if self.functions else {}
        # Without tools, a choice still says that the client wants none added; `auto` leaves that open.
        if self.choice is not None and (self.functions or self.hosted or self.choice != "auto"):
            fields["tool_choice"] = self.choice
        if not self.parallel and (self.functions or self.hosted):
            fields["parallel_tool_calls"] = False
        return fields

    def within(self, usable: Iterable[ToolSpec], *, drop: bool) -> "MessageTools":
        """These tools, with those of the declared hosted tools that are among the `usable` server tools.

        With `drop`, a hosted tool is left out even if the request depends on it: see `Access.drops_unavailable_tools`.

        Raises:
            RequestError: the client requires a tool that it may not use, or declares no others.
        """
        if not self.hosted or self.choice == "none":
            return self
        specs = {spec.name: spec for spec in usable}
        chosen = name_of(self.choice) if isinstance(self.choice, dict) else None
        found = hosted_within(
            {name: self.own_names.get(name) for name in self.hosted},
            specs,
            chosen=chosen if chosen in self.hosted else None,
            has_functions=bool(self.functions),
            drop=drop,
            refuse=lambda name, where: _refuse_tool(self.hosted[name].type, where=where),
        )
        available, choice = found.available, self.choice if found.keeps_choice else None
        if chosen is not None and chosen in available:
            choice = choice_of(available[chosen])
        declared = {entry["function"]["name"] for entry in self.functions}
        for name, own in available.items():
            spec = specs[own]
            bounds = [most for most in (spec.max_calls, self.hosted[name].max_uses) if most is not None]
            # A prompt may mention the tool by the client's name for it.
            is_free = name not in declared and not any(name in other.names for other in specs.values())
            aliases = (*spec.aliases, name) if is_free else spec.aliases
            specs[own] = replace(spec, max_calls=min(bounds, default=None), aliases=aliases)
        entries = [
            {"type": SEARCH} if own == SEARCH else specs[own].definition()
            for own in available.values()
            if own not in declared
        ]
        return replace(
            self,
            functions=(*self.functions, *entries),
            ignored=(*self.ignored, *(self.hosted[name].type for name in found.missing)),
            choice=choice,
            server_tools=tuple(specs.values()),
            shown={own: name for name, own in available.items()},
            late=tuple([available.get(name, name) for name in self.late]),
        )


def read_tools(fields: Json, own: RequestTools, changes: Sequence[ToolChange] = ()) -> MessageTools:
    """The tools of a request with these `fields`, as its history has changed them.

    Raises:
        RequestError: they are not well formed, or require a tool that is not available here.
    """
    own_names = _hosted_names(own)
    if not changes and TOOL_FIELDS.isdisjoint(fields):
        return MessageTools(own_names)
    listed = [] if fields.get("tools") is None else fields["tools"]
    if not isinstance(listed, list) or len(listed) > MOST_TOOLS:
        refuse("tools", f"must be a list of at most {MOST_TOOLS} tools")
    offered = offered_tools(listed, changes)
    declared = (*offered.declared, *offered.late)
    if len(declared) > MOST_TOOLS:
        refuse("tools", f"must be at most {MOST_TOOLS} with those of the history")
    functions: dict[str, Json] = {}
    hosted: dict[str, HostedTool] = {}
    ignored: dict[str, str] = {}  # by name
    for where, tool in declared:
        kind, name = _kind(tool, where), _client_name(tool)
        if kind == "custom":
            functions[name] = _function(tool, where)
        elif not _VERSION.fullmatch(kind):
            ignored[name or kind] = kind
        elif name in hosted:  # it would be unclear whose settings apply
            refuse(where, f"there are two tools named {name!r}")
        else:
            hosted[name] = _hosted(tool, kind, where)
    if fields.get("mcp_servers"):
        ignored["mcp_servers"] = "mcp_servers"
    kinds = tuple(dict.fromkeys(ignored.values()))
    if ignored and not functions and not hosted:
        _refuse_tool(kinds[0], where="tools")
    choice, parallel = _choice(fields.get("tool_choice"), {*functions, *hosted, *own.toolset.names}, ignored)
    late = tuple([_client_name(tool) for _, tool in offered.late])
    return MessageTools(own_names, tuple(functions.values()), hosted, kinds, choice, parallel, late=late)


async def execute_within(execute: ExecuteTool, tools: MessageTools, call: ToolCall, context: CallContext) -> ToolOutput:
    """Run a call as `execute` does, within the client's settings of its hosted tools."""
    if call.name not in tools.shown:
        return await execute(call, context)
    own = tools.hosted[tools.shown[call.name]]
    # The tool's own filters come first, then those of the request; the blocked domains of both add up.
    output = await execute(call, replace(context, filters=merged([own.filters, context.filters])))
    text, most = output.text, own.max_characters
    if most is None or len(text) <= most:
        return output
    return replace(output, text=text[:most] + RESULT_CUT.format(total=len(text), shown=most))


def _kind(tool: Any, where: str) -> str:
    kind = tool.get("type") if isinstance(tool, dict) else 0
    if not isinstance(kind, str | None):
        refuse(where, "must be an object; its `type` must be a string")
    return kind or "custom"


def _client_name(tool: Json) -> str:
    """The name of a tool in `tool_choice`; empty: it has none, or not a text."""
    match = _VERSION.fullmatch(tool.get("type") or "")
    name = match[1] if match else tool.get("name")
    return name if isinstance(name, str) else ""


def _function(tool: Json, where: str) -> Json:
    name, schema = tool.get("name"), tool.get("input_schema")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        refuse(f"{where}.name", "must be 1 to 128 letters, digits, '_', '-' and '.'")
    if not isinstance(schema, dict):
        refuse(f"{where}.input_schema", "must be an object")
    function = {"name": name, "parameters": schema}
    if isinstance(tool.get("description"), str):
        function["description"] = tool["description"]
    return {"type": "function", "function": function}


def _hosted(tool: Json, kind: str, where: str) -> HostedTool:
    """A declared hosted tool, in which everything but its type may be null or empty."""
    filters = filters_of_tool(tool, where)
    if filters.allow and filters.block:
        refuse(where, "may have `allowed_domains` or `blocked_domains`, not both")
    uses, tokens = whole(tool.get("max_uses")), whole(tool.get("max_content_tokens"))
    for name, most in (("max_uses", uses), ("max_content_tokens", tokens)):
        if most is not None and not is_integer(most, 1):
            refuse(f"{where}.{name}", "must be an integer of at least 1")
    return HostedTool(kind, uses, filters, None if tokens is None else tokens * _CHARACTERS_PER_TOKEN)


def _choice(choice: Any, known: Collection[str], ignored: Mapping[str, str]) -> tuple[Any, bool]:
    """The chat request's `tool_choice`, and whether several tools may be called at once."""
    if choice is None:
        return None, True
    if not isinstance(choice, dict):
        refuse("tool_choice", "must be an object with a `type`")
    parallel = choice.get("disable_parallel_tool_use") is not True
    kind, name = choice.get("type"), choice.get("name")
    if isinstance(kind, str) and kind in _KINDS:
        return _KINDS[kind], parallel
    if kind != "tool":
        refuse("tool_choice.type", "must be `auto`, `any`, `tool` or `none`")
    if isinstance(name, str) and name in ignored:
        _refuse_tool(ignored[name], where="tool_choice")
    if not isinstance(name, str) or name not in known:
        refuse("tool_choice.name", f"{named(name)} is not among `tools`")
    return choice_of(name), parallel


def _refuse_tool(kind: str, *, where: str) -> NoReturn:
    refuse(where, f"the tool {kind[:128]!r} is not available here")


def _hosted_names(tools: RequestTools) -> dict[str, str]:
    """The client's name of each hosted tool that the server has -> the name of the server's tool."""
    fetch = next((name for name, spec in tools.toolset.specs.items() if spec.fetches), None)
    code = tools.code_interpreter
    names = {SEARCH: SEARCH if tools.has(SEARCH) else None, FETCH: fetch, CODE: code.name if code else None}
    return {name: own for name, own in names.items() if own is not None}
