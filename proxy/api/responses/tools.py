"""`tools` and `tool_choice` of a Responses request as those of a chat request, and the names translated back.

function          a function: flat in this API, nested in a chat request
custom            a function with one string, `input`; its calls are returned as `custom_tool_call`
namespace         its functions, each as `NAMESPACE__NAME`; their calls are returned with `name` and `namespace`
                  (custom tools and namespaces are always the client's: if a server tool has the same name, the model
                  is given another one)
tool_search       with `execution: client`, a function that searches the client's further tools; its calls are returned
                  as `tool_search_call`, and what the client finds is declared from there on, at the end and in the
                  order found: an upstream may have cached the others
web_search        the server's search, with its settings
code_interpreter  the server's tool that serves it, if there is one
the others        hosted tools that are not available here: left out, and named in `x-tools-ignored`
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NoReturn, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from proxy.api.fields import refuse
from proxy.api.hosted import hosted_within
from proxy.loop.offer import HOSTED_SEARCHES, SEARCH
from proxy.loop.prompts import GRAMMAR, RAW_INPUT, SEARCH_TOOLS
from proxy.wire.chat import Json, ToolSpec, choice_of, name_of
from proxy.wire.code import CODE_INTERPRETER
from proxy.wire.errors import RequestError

_OWN = ("function", "custom", "namespace")
_MODES = ("auto", "none", "required")
ADDITIONAL, FOUND = "additional_tools", "tool_search_output"
WITH_TOOLS = (ADDITIONAL, FOUND)
"""The types of items that declare tools."""
_LONGEST_NAME = 128  # OpenAI's own limit for some of its tools; upstreams get at most 64
_LONGEST_QUOTED = 128  # characters of the name of an unknown tool
_ANY_SEARCH: Json = {"type": SEARCH}


Kind: TypeAlias = Literal["function", "custom", "tool_search"]
TOOL_SEARCH: Final = "tool_search"
TYPES_OF_CALLS: Mapping[Kind, str] = {
    "function": "function_call",
    "custom": "custom_tool_call",
    TOOL_SEARCH: "tool_search_call",
}
_KINDS_OF_CALLS = {kind_of_call: kind for kind, kind_of_call in TYPES_OF_CALLS.items()}
_SEARCHED: Json = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}


class ClientToolName(Struct, frozen=True):
    """The client's name for one of its own tools, for which the model has a single flat name."""

    kind: Kind
    name: str
    namespace: str | None = None

    @property
    def is_plain(self) -> bool:
        """Whether this is a function without a namespace, which is the server's if a server tool has its name."""
        return self.kind == "function" and self.namespace is None


_SEARCH_OF_CLIENT = ClientToolName(TOOL_SEARCH, TOOL_SEARCH)


class ResponseTools(Struct, frozen=True):
    """The tools of one request.

    Attributes:
        functions: the client's own tools, in the form of Chat Completions.
        client_names: the names in `functions` -> the client's names.
        flat_names: the client's names -> the names in `functions`.
        search: the declared search with its settings; None: no search is declared.
        offline: whether the declared search must not use the web; such a search is not available here.
        code_interpreter: the server's tool that serves `code_interpreter`; None: there is none.
        wants_code: whether that is declared.
        ignored: the types of declared tools that are not available here.
        choice: `tool_choice` in the form of Chat Completions.
        declared_as: the field that declares the tools, for errors.
    """

    functions: tuple[Json, ...] = ()
    client_names: Mapping[str, ClientToolName] = {}
    flat_names: Mapping[ClientToolName, str] = {}
    search: Json | None = None
    offline: bool = False
    code_interpreter: ToolSpec | None = None
    wants_code: bool = False
    ignored: tuple[str, ...] = ()
    choice: Any = None
    declared_as: str = "tools"

    @property
    def code_tool(self) -> str | None:
        """The name of the server's tool that stands for the declared `code_interpreter`; None: none does."""
        return self.code_interpreter.name if self.code_interpreter is not None and self.wants_code else None

    def for_chat(self) -> tuple[Json, ...]:
        """The `tools` of the chat request."""
        tools = (*self.functions, self.search) if self.search else self.functions
        if self.code_interpreter is None or not self.wants_code or self.code_interpreter.name in self.client_names:
            return tools
        return (*tools, self.code_interpreter.definition())

    def fields(self) -> Json:
        """The fields of the chat request."""
        fields = {"tools": list(self.for_chat()), "tool_choice": self.choice}
        return {name: value for name, value in fields.items() if value}

    def name_of(self, item: Json) -> str:
        """The flat name of the tool in a call of the client's history."""
        if item["type"] == "code_interpreter_call":
            return CODE_INTERPRETER if self.code_interpreter is None else self.code_interpreter.name
        given = item.get("namespace")
        kind = _KINDS_OF_CALLS.get(item["type"], "function")
        name = ClientToolName(kind, item.get("name") or kind, given if isinstance(given, str) else None)
        return self.flat_name_of(name) or _flat(name)

    def flat_name_of(self, name: ClientToolName) -> str | None:
        """The flat name of a tool of this kind, or else of the other kind; None: there is no such tool."""
        other: Kind = "function" if name.kind == "custom" else "custom"
        return self.flat_names.get(name) or self.flat_names.get(replace(name, kind=other))

    def client_name_of(self, flat: str) -> ClientToolName:
        """The client's name for a tool that the model called."""
        return self.client_names.get(flat) or ClientToolName("function", flat)

    def within(self, callable_names: Collection[str], *, drop: bool) -> "ResponseTools":
        """These tools without declared server tools that cannot be called; the same object if there are none.

        Args:
            callable_names: the names of the server tools that this request may call.
            drop: whether such a tool is left out even if the request depends on it: see `drops_unavailable_tools`.

        Raises:
            RequestError: the request depends on a tool that cannot be called.
        """
        if not drop:
            self._expect_an_allowed_one(callable_names)
        own = {SEARCH: SEARCH, CODE_INTERPRETER: self.code_tool}
        kinds = [kind for kind, there in ((SEARCH, self.search), (CODE_INTERPRETER, self.code_tool)) if there]
        chosen = name_of(self.choice) if isinstance(self.choice, dict) else None
        demanded = next((kind for kind in kinds if own[kind] == chosen), None)
        found = hosted_within(
            {kind: own[kind] for kind in kinds},
            callable_names,
            chosen=demanded,
            has_functions=bool(self.functions),
            drop=drop,
            refuse=lambda kind, where: _refuse_tool(kind, self.declared_as if where == "tools" else where),
        )
        keeps_choice = found.keeps_choice
        if demanded is None and chosen is not None and chosen not in self.client_names:
            keeps_choice = chosen in callable_names
            if not (keeps_choice or drop):
                _refuse_tool(chosen, "tool_choice")
        if keeps_choice and not found.missing:
            return self
        return replace(
            self,
            search=self.search if SEARCH in found.available else None,
            wants_code=CODE_INTERPRETER in found.available,
            ignored=(*self.ignored, *found.missing),
            choice=self.choice if keeps_choice else None,
        )

    def _expect_an_allowed_one(self, callable_names: Collection[str]) -> None:
        """Refuse a choice that requires one of the allowed tools if none can be called. Raises `RequestError`."""
        detail = self.choice.get("allowed_tools") if isinstance(self.choice, dict) else None
        if not detail or detail["mode"] != "required":
            return
        names = [name_of(entry) or SEARCH for entry in detail["tools"]]
        if names and not any(name in self.client_names or name in callable_names for name in names):
            _refuse_tool(names[0], "tool_choice")


def declared_in(request: Json, *, before: Iterable[Json], own: Iterable[Json]) -> list[Json]:
    """All declared tools of a request, the latest last; of two with the same name, the later one counts.

    Args:
        request: the fields of the request.
        before: the items of the conversation that the request continues.
        own: the items of the request.

    Raises:
        RequestError: the `tools` of the request are not well formed. (Items are checked when they are read.)
    """
    items = [*before], [*own]
    found = [tool for listed in items for tool in _in_items(listed, FOUND)]
    added = [_in_items(listed, ADDITIONAL) for listed in items]
    return [*added[0], *checked_tools(request, "tools"), *added[1], *found]


def late_names(tools: ResponseTools, request: Json, items: Iterable[Json]) -> list[str]:
    """The flat names of the tools that items of the conversation have added, in the order of their coming.

    Args:
        tools: the tools of the request.
        request: the fields of the request.
        items: the items of the conversation, its own last.
    """
    declared = {name for _, name in _own(request.get("tools") or ())}
    added = [tool for item in items if item["type"] in WITH_TOOLS for tool in item.get("tools") or ()]
    names = dict.fromkeys(name for _, name in _own(added) if name not in declared)
    return [tools.flat_names[name] for name in names]


def _in_items(items: Iterable[Json], kind: str) -> list[Json]:
    return [tool for item in items if item["type"] == kind for tool in item.get("tools") or ()]


def flat_names_of(tools: Iterable[Json]) -> list[str]:
    """The names of the client's own tools as a model has them, those in namespaces included."""
    names: list[str] = []
    for tool in tools:
        match tool["type"]:
            case "function" | "custom":
                names.append(tool["name"])
            case "namespace":
                names += [flat_name(name, tool["name"]) for name in flat_names_of(tool.get("tools") or ())]
    return names


def flat_name(name: str, namespace: str | None) -> str:
    """The name of a tool for a model, which knows no namespaces."""
    return f"{namespace}__{name}" if namespace else name


def checked_tools(holder: Json, where: str) -> Sequence[Json]:
    """The `tools` of a request, of an item or of a namespace.

    Args:
        holder: the request, item or namespace.
        where: the place of the tools in the request, for errors.

    Raises:
        RequestError: a tool has no type, or needs a name and has none.
    """
    tools = objects_with_types(holder.get("tools"), where)
    for tool in tools:
        if tool["type"] in ("function", "custom", "namespace"):
            _check_name(tool, where)
        if tool["type"] == "namespace":
            checked_tools(tool, where)
    return tools


def _check_name(tool: Json, where: str) -> None:
    name = tool.get("name")
    if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_NAME:
        message = f"A tool of type {tool['type']!r} needs a name of at most {_LONGEST_NAME} characters."
        raise RequestError(message, param=where)


def objects_with_types(listed: Any, where: str) -> Sequence[Json]:
    """A list of objects that have a type; None is an empty list. Raises `RequestError`."""
    listed = [] if listed is None else listed
    if not isinstance(listed, list) or not all(
        isinstance(one, dict) and isinstance(one.get("type"), str) for one in listed
    ):
        refuse(where, "must be a list of objects, each with a type")
    return listed


def read_tools(
    declared: Sequence[Json],
    choice: Any,
    server_names: Collection[str] = (),
    *,
    code_interpreter: ToolSpec | None = None,
    where: str = "tools",
) -> ResponseTools:
    """The tools of a request.

    Args:
        declared: the declared tools, from `declared_in`.
        choice: the `tool_choice` of the request.
        server_names: the names and aliases of the server tools.
        code_interpreter: the server's tool that serves `code_interpreter`; None: there is none.
        where: the field that declares the tools, for errors.

    Raises:
        RequestError: the choice is not well formed, or all declared tools are hosted tools that are not available here.
    """
    functions: list[Json] = []
    client_names: dict[str, ClientToolName] = {}
    flat_names: dict[ClientToolName, str] = {}
    for name, tool in {name: tool for tool, name in _own(declared)}.items():
        taken = client_names.keys() if name.is_plain else client_names.keys() | server_names
        flat, number = _flat(name), 2
        while flat in taken:
            flat, number = f"{flat}_{number}", number + 1
        client_names[flat], flat_names[name] = name, flat
        functions.append(_function(tool, flat, name.kind))
    hosted = [tool for tool in declared if tool["type"] not in _OWN and not _is_search_of_client(tool)]
    newest = next((tool for tool in reversed(hosted) if _named(tool) == SEARCH), None)
    search = _search(newest) if newest and _is_live_search(newest) else None
    wants_code = code_interpreter is not None and any(tool["type"] == CODE_INTERPRETER for tool in hosted)
    available = {*([SEARCH] if search is not None else []), *([CODE_INTERPRETER] if wants_code else [])}
    tools = ResponseTools(
        tuple(functions),
        client_names,
        flat_names,
        search,
        offline=newest is not None and search is None,
        code_interpreter=code_interpreter,
        wants_code=wants_code,
        ignored=tuple(dict.fromkeys(kind for tool in hosted if (kind := _named(tool)) not in available)),
        declared_as=where,
    )
    if tools.ignored and not tools.for_chat():
        _refuse_tool(tools.ignored[0], where)
    return _chosen(tools, choice, server_names)


def _own(declared: Iterable[Json]) -> Iterator[tuple[Json, ClientToolName]]:
    """The client's own tools, including those in namespaces."""
    for tool in declared:
        match tool["type"]:
            case "function" | "custom":
                yield tool, _client_name(tool, None)
            case _ if _is_search_of_client(tool):
                yield tool, _SEARCH_OF_CLIENT
            case "namespace":
                for inner in tool.get("tools") or ():
                    if inner["type"] in ("function", "custom"):
                        yield inner, _client_name(inner, tool["name"])


def _is_search_of_client(tool: Json) -> bool:
    return tool["type"] == TOOL_SEARCH and tool.get("execution") == "client"


def _client_name(tool: Json, namespace: str | None) -> ClientToolName:
    return ClientToolName("custom" if tool["type"] == "custom" else "function", tool["name"], namespace)


def _flat(name: ClientToolName) -> str:
    return flat_name(name.name, name.namespace)


def _function(tool: Json, flat: str, kind: Kind) -> Json:
    if kind == "custom":
        parameters: Json = {"type": "object", "properties": {"input": {"type": "string", "description": RAW_INPUT}}}
        parameters |= {"required": ["input"], "additionalProperties": False}
        described = [tool.get("description"), _grammar(tool.get("format"))]
        description = "\n\n".join(text for text in described if isinstance(text, str) and text)
        return {"type": "function", "function": {"name": flat, "description": description, "parameters": parameters}}
    fields = {key: tool[key] for key in ("description", "parameters", "strict") if tool.get(key) is not None}
    if kind == TOOL_SEARCH:
        fields = {"description": SEARCH_TOOLS, "parameters": _SEARCHED, **fields}
    return {"type": "function", "function": {"name": flat, **fields}}


def _grammar(form: Any) -> str | None:
    """A custom tool's grammar as a description for the model, because the proxy cannot enforce it."""
    if not isinstance(form, dict) or form.get("type") != "grammar":
        return None
    return GRAMMAR.format(syntax=form.get("syntax") or "", definition=form.get("definition") or "")


def _is_live_search(tool: Json) -> bool:
    """Whether a tool is a search that may use the web; no other search is available here."""
    return tool["type"] in HOSTED_SEARCHES and tool.get("external_web_access") is not False


def _search(tool: Json) -> Json:
    """A declared search for the chat request, without `web_search`, which would be settings of GLM's own search."""
    return {**{key: value for key, value in tool.items() if key != SEARCH}, "type": SEARCH}


def _named(tool: Json) -> str:
    """The type of a hosted tool, which is the same for all variants of a search."""
    return SEARCH if tool["type"] in HOSTED_SEARCHES else tool["type"]


# -- tool_choice --


def _chosen(tools: ResponseTools, choice: Any, server_names: Collection[str]) -> ResponseTools:
    """The tools with the `tool_choice` of the request."""
    if choice is None:
        return tools
    if isinstance(choice, str):
        if choice not in _MODES:
            refuse("tool_choice", f"must be one of {', '.join(_MODES)}, or an object")
        tools = replace(tools, search=None, wants_code=False) if choice == "none" else tools
        return replace(tools, choice=choice)
    if not isinstance(choice, dict) or not isinstance(choice.get("type"), str):
        refuse("tool_choice", "must be a string, or an object with a type")
    if choice["type"] == "allowed_tools":
        return _narrowed(tools, choice, server_names)
    search = tools.search or (_ANY_SEARCH if choice["type"] in HOSTED_SEARCHES else None)
    wants_code = tools.wants_code or choice["type"] == CODE_INTERPRETER
    chosen = choice_of(_pick(tools, choice, server_names))
    return replace(tools, choice=chosen, search=search, wants_code=wants_code)


def _narrowed(tools: ResponseTools, choice: Json, server_names: Collection[str]) -> ResponseTools:
    """The tools with `tool_choice: allowed_tools`: only the listed tools are allowed, with its mode as the choice."""
    mode = choice.get("mode") or "auto"
    if mode not in _MODES:
        raise RequestError(f"'tool_choice.mode' must be one of {', '.join(_MODES)}.", param="tool_choice")
    entries = objects_with_types(choice.get("tools"), "tool_choice")
    listed = [entry for entry in entries if entry["type"] == "namespace" or _is_available(entry, tools, server_names)]
    missing = [_named(entry) for entry in entries if entry not in listed]
    if mode == "required" and missing and not listed:
        _refuse_tool(missing[0], "tool_choice")
    tools = replace(tools, ignored=tuple(dict.fromkeys((*tools.ignored, *missing))))
    allowed = dict.fromkeys(flat for entry in listed for flat in _picked(tools, entry, server_names))
    hosted = any(entry["type"] in HOSTED_SEARCHES for entry in listed)
    named = [choice_of(flat) for flat in allowed if flat != SEARCH or not hosted]
    narrowed: Json = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": named}}
    tools = replace(tools, wants_code=any(entry["type"] == CODE_INTERPRETER for entry in listed))
    if not hosted:
        return replace(tools, choice=narrowed, search=None)
    named.append({"type": SEARCH})
    return replace(tools, choice=narrowed, search=tools.search or _ANY_SEARCH)


def _is_available(entry: Json, tools: ResponseTools, server_names: Collection[str]) -> bool:
    """Whether the tool in a choice is not hosted, or is hosted and available here."""
    if entry["type"] in HOSTED_SEARCHES:
        return not tools.offline and (tools.search is not None or SEARCH in server_names)
    if entry["type"] == CODE_INTERPRETER:
        return tools.code_interpreter is not None
    if entry["type"] == TOOL_SEARCH:
        return _SEARCH_OF_CLIENT in tools.flat_names
    return entry["type"] in ("function", "custom")


def _picked(tools: ResponseTools, entry: Json, server_names: Collection[str]) -> Sequence[str]:
    """The flat names of the tools in an entry of `allowed_tools`: one tool, or all tools of a namespace."""
    if entry["type"] != "namespace":
        return [_pick(tools, entry, server_names)]
    flats = [
        flat for flat, name in tools.client_names.items() if name.namespace and name.namespace == entry.get("name")
    ]
    if not flats:
        _refuse_unknown(entry.get("name"))
    return flats


def _pick(tools: ResponseTools, choice: Json, server_names: Collection[str]) -> str:
    """The flat name of the tool in a choice. Raises `RequestError` if there is no such tool.

    A server tool may be chosen without being declared.
    """
    if not _is_available(choice, tools, server_names):
        _refuse_tool(_named(choice), "tool_choice")
    if choice["type"] in HOSTED_SEARCHES:
        return SEARCH
    if choice["type"] == CODE_INTERPRETER and tools.code_interpreter is not None:
        return tools.code_interpreter.name
    if choice["type"] == TOOL_SEARCH:
        return tools.flat_names[_SEARCH_OF_CLIENT]
    name, namespace = choice.get("name"), choice.get("namespace")
    if not isinstance(name, str) or not isinstance(namespace, str | None):
        _refuse_unknown(name)
    wanted = ClientToolName(choice["type"], name, namespace)
    if wanted.is_plain and wanted not in tools.flat_names and name in server_names:
        return name
    return tools.flat_name_of(wanted) or _refuse_unknown(name)


def _refuse_unknown(name: Any) -> NoReturn:
    refuse("tool_choice", f"names {name!r}, which is not among 'tools'")


def _refuse_tool(kind: str, param: str) -> NoReturn:
    raise RequestError(f"The tool {kind[:_LONGEST_QUOTED]!r} is not available here.", param=param)
