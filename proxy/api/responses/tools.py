"""`tools` and `tool_choice` of a Responses request as those of a chat request, and the names translated back.

function          a function: flat in this API, nested in a chat request
custom            a function with one string, `input`; its calls are returned as `custom_tool_call`
namespace         its functions, each as `NAMESPACE__NAME`; their calls are returned with `name` and `namespace`
                  (custom tools and namespaces are always the client's: if a server tool has the same name, the model
                  is given another one)
tool_search       with `execution: client`, a function that searches the client's further tools; its calls are returned
                  as `tool_search_call`, and what the client finds is declared from there on, at the end and in the
                  order found: an upstream may have cached the earlier ones
web_search        the server's search, with its settings
code_interpreter  the server's tool that serves it, if there is one
other types       hosted tools that are not available here: left out, and named in `x-tools-ignored`
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NoReturn, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from proxy.api.fields import refuse
from proxy.api.hosted import hosted_within
from proxy.loop.offer import HOSTED_SEARCHES, SEARCH
from proxy.loop.prompts import FOUND_NO_TOOLS, FOUND_TOOLS, GRAMMAR, RAW_INPUT, SEARCH_TOOLS
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

    @property
    def flat(self) -> str:
        """The name for a model, which knows no namespaces."""
        return f"{self.namespace}__{self.name}" if self.namespace else self.name


_SEARCH_OF_CLIENT = ClientToolName(TOOL_SEARCH, TOOL_SEARCH)


class ResponseTools(Struct, frozen=True):
    """The tools of one request.

    Attributes:
        functions: the client's own tools, in the form of Chat Completions.
        client_names: the names in `functions` -> the client's names.
        flat_names: the client's names -> the names in `functions`.
        served: the types of the hosted tools that may be offered -> their entries in the `tools` of the chat request.
        hosted: the types of those that the request declares or chooses -> the names of the server's tools.
        ignored: the types of declared tools that are not available here, such as a search that must not use the web.
        choice: `tool_choice` in the form of Chat Completions.
        declared_as: the field that declares the tools, for errors.
    """

    functions: tuple[Json, ...] = ()
    client_names: Mapping[str, ClientToolName] = {}
    flat_names: Mapping[ClientToolName, str] = {}
    served: Mapping[str, Json] = {}
    hosted: Mapping[str, str] = {}
    ignored: tuple[str, ...] = ()
    choice: Any = None
    declared_as: str = "tools"

    def fields(self) -> Json:
        """The fields of the chat request."""
        hosted = [self.served[kind] for kind in self.hosted]
        tools = [*self.functions, *(entry for entry in hosted if name_of(entry) not in self.client_names)]
        fields = {"tools": tools, "tool_choice": self.choice}
        return {name: value for name, value in fields.items() if value}

    def name_of(self, item: Json) -> str:
        """The flat name of the tool in a call of the client's history."""
        if item["type"] == "code_interpreter_call":
            return _own_name(self.served[CODE_INTERPRETER]) if CODE_INTERPRETER in self.served else CODE_INTERPRETER
        given = item.get("namespace")
        kind = _KINDS_OF_CALLS.get(item["type"], "function")
        name = ClientToolName(kind, item.get("name") or kind, given if isinstance(given, str) else None)
        return self.flat_name_of(name) or name.flat

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
        chosen = name_of(self.choice) if isinstance(self.choice, dict) else None
        demanded = next((kind for kind, own in self.hosted.items() if own == chosen), None)
        found = hosted_within(
            self.hosted,
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
        ignored, choice = (*self.ignored, *found.missing), self.choice if keeps_choice else None
        return replace(self, hosted=found.available, ignored=ignored, choice=choice)

    def _expect_an_allowed_one(self, callable_names: Collection[str]) -> None:
        """Refuse a choice that requires one of the allowed tools if none can be called. Raises `RequestError`."""
        detail = self.choice.get("allowed_tools") if isinstance(self.choice, dict) else None
        if not detail or detail["mode"] != "required":
            return
        names = [name_of(entry) or SEARCH for entry in detail["tools"]]
        if names and not any(name in self.client_names or name in callable_names for name in names):
            _refuse_tool(names[0], "tool_choice")


def _own_name(entry: Json) -> str:
    """The name of the server's tool in an entry of the `tools` of a chat request."""
    return name_of(entry) or SEARCH


def declared_in(request: Json, *, before: Sequence[Json], own: Sequence[Json]) -> list[Json]:
    """All declared tools of a request, the latest last; of two with the same name, the later one counts.

    The items `before` are those of the conversation that the request continues. Raises `RequestError` if the `tools` of
    the request are not well formed. (Items are checked when they are read.)
    """
    found = _tools_in([*before, *own], FOUND)
    return [*_tools_in(before, ADDITIONAL), *checked_tools(request, "tools"), *_tools_in(own, ADDITIONAL), *found]


def late_names(tools: ResponseTools, request: Json, items: Iterable[Json]) -> list[str]:
    """The flat names of the tools that items of the whole conversation have added, in the order of their coming."""
    declared = dict(_own(request.get("tools") or ()))
    added = dict(_own(_tools_in(items, *WITH_TOOLS)))
    return [tools.flat_names[name] for name in added if name not in declared]


def _tools_in(items: Iterable[Json], *kinds: str) -> list[Json]:
    return [tool for item in items if item["type"] in kinds for tool in item.get("tools") or ()]


def names_found(item: Json) -> str:
    """The result of a search for tools as the model reads it; the tools themselves are offered."""
    names = dict.fromkeys([name.flat for name, _ in _own(item.get("tools") or ())])
    return FOUND_TOOLS.format(names=", ".join(names)) if names else FOUND_NO_TOOLS


def checked_tools(holder: Json, where: str) -> Sequence[Json]:
    """The `tools` of a request, of an item or of a namespace; `where` is their place in the request, for errors.

    Raises:
        RequestError: a tool has no type, or needs a name and has none.
    """
    tools = objects_with_types(holder.get("tools"), where)
    for tool in tools:
        kind, name = tool["type"], tool.get("name")
        if kind in _OWN and not (isinstance(name, str) and 0 < len(name) <= _LONGEST_NAME):
            message = f"A tool of type {kind!r} needs a name of at most {_LONGEST_NAME} characters."
            raise RequestError(message, param=where)
        if kind == "namespace":
            checked_tools(tool, where)
    return tools


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
    """The tools of a request: those `declared`, and its `tool_choice`.

    Args:
        declared: the tools from `declared_in`.
        choice: the `tool_choice`.
        server_names: the names and aliases of the server tools.
        code_interpreter: the server's tool that serves `code_interpreter`.
        where: the field that declares the tools, for errors.

    Raises:
        RequestError: the choice is not well formed, or all declared tools are hosted tools that are not available here.
    """
    own = dict(_own(declared))
    client_names = _client_names(own, server_names)
    hosted = [tool for tool in declared if tool["type"] not in _OWN and not _is_search_of_client(tool)]
    kinds = dict.fromkeys(map(_named, hosted))
    any_search = _ANY_SEARCH if SEARCH in server_names else None
    search = next((tool for tool in reversed(hosted) if _named(tool) == SEARCH), any_search)
    is_offline = search is not None and search.get("external_web_access") is False
    served: dict[str, Json] = {}
    if search is not None and not is_offline:
        # Without `web_search`, which would be settings of GLM's own search.
        served[SEARCH] = {**{key: value for key, value in search.items() if key != SEARCH}, "type": SEARCH}
    if code_interpreter is not None:
        served[CODE_INTERPRETER] = code_interpreter.definition()
    tools = ResponseTools(
        tuple([_function(own[name], flat, name.kind) for flat, name in client_names.items()]),
        client_names,
        {name: flat for flat, name in client_names.items()},
        served,
        hosted={kind: _own_name(entry) for kind, entry in served.items() if kind in kinds},
        ignored=tuple([kind for kind in kinds if kind not in served]),
        declared_as=where,
    )
    if tools.ignored and not (tools.functions or tools.hosted):
        _refuse_tool(tools.ignored[0], where)
    return _chosen(tools, choice, server_names)


def _own(declared: Iterable[Json]) -> Iterator[tuple[ClientToolName, Json]]:
    """The client's own tools, including those in namespaces."""
    for tool in declared:
        match tool["type"]:
            case "function" | "custom" as kind:
                yield ClientToolName(kind, tool["name"]), tool
            case "namespace":
                for inner in tool.get("tools") or ():
                    if inner["type"] in ("function", "custom"):
                        yield ClientToolName(inner["type"], inner["name"], tool["name"]), inner
            case _ if _is_search_of_client(tool):
                yield _SEARCH_OF_CLIENT, tool


def _client_names(names: Iterable[ClientToolName], server_names: Collection[str]) -> dict[str, ClientToolName]:
    """The names that the model is given for the client's own tools, all of them different -> the client's names."""
    client_names: dict[str, ClientToolName] = {}
    for name in names:
        taken = client_names.keys() if name.is_plain else client_names.keys() | server_names
        flat, number = name.flat, 2
        while flat in taken:
            flat, number = f"{flat}_{number}", number + 1
        client_names[flat] = name
    return client_names


def _is_search_of_client(tool: Json) -> bool:
    return tool["type"] == TOOL_SEARCH and tool.get("execution") == "client"


def _named(tool: Json) -> str:
    """The type of a tool, which is the same for all variants of a search."""
    return SEARCH if tool["type"] in HOSTED_SEARCHES else tool["type"]


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


# -- tool_choice --


def _chosen(tools: ResponseTools, choice: Any, server_names: Collection[str]) -> ResponseTools:
    """The tools with the `tool_choice` of the request."""
    if choice is None:
        return tools
    if isinstance(choice, str):
        if choice not in _MODES:
            refuse("tool_choice", f"must be one of {', '.join(_MODES)}, or an object")
        return replace(tools, choice=choice, hosted={} if choice == "none" else tools.hosted)
    if not isinstance(choice, dict) or not isinstance(choice.get("type"), str):
        refuse("tool_choice", "must be a string, or an object with a type")
    if choice["type"] == "allowed_tools":
        return _narrowed(tools, choice, server_names)
    names = _picked(tools, choice, server_names) if choice["type"] != "namespace" else ()
    if not names:
        _refuse_tool(_named(choice), "tool_choice")
    chosen = {_named(choice): names[0]} if _named(choice) in tools.served else {}
    return replace(tools, choice=choice_of(names[0]), hosted={**tools.hosted, **chosen})


def _narrowed(tools: ResponseTools, choice: Json, server_names: Collection[str]) -> ResponseTools:
    """The tools with `tool_choice: allowed_tools`: only the listed tools are allowed, with its mode as the choice."""
    mode = choice.get("mode") or "auto"
    if mode not in _MODES:
        raise RequestError(f"'tool_choice.mode' must be one of {', '.join(_MODES)}.", param="tool_choice")
    allowed: dict[str, None] = {}
    missing: dict[str, None] = {}
    hosted: dict[str, str] = {}
    for entry in objects_with_types(choice.get("tools"), "tool_choice"):
        kind, names = _named(entry), _picked(tools, entry, server_names)
        allowed |= dict.fromkeys(names)
        if not names:
            missing[kind] = None
        elif kind in tools.served:
            hosted[kind] = names[0]
    if mode == "required" and missing and not allowed:
        _refuse_tool(next(iter(missing)), "tool_choice")
    named = [choice_of(flat) for flat in allowed if flat != SEARCH or SEARCH not in hosted]
    named += [_ANY_SEARCH] if SEARCH in hosted else []
    narrowed: Json = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": named}}
    return replace(tools, choice=narrowed, hosted=hosted, ignored=tuple(dict.fromkeys((*tools.ignored, *missing))))


def _picked(tools: ResponseTools, choice: Json, server_names: Collection[str]) -> Sequence[str]:
    """The flat names of the tools that a choice names; empty: it names a hosted tool that is not available here.

    A server tool may be chosen without being declared.

    Raises:
        RequestError: there is no such function, custom tool or namespace.
    """
    kind, name, namespace = _named(choice), choice.get("name"), choice.get("namespace")
    if kind in tools.served:
        return [_own_name(tools.served[kind])]
    if kind == TOOL_SEARCH:
        return [tools.flat_names[_SEARCH_OF_CLIENT]] if _SEARCH_OF_CLIENT in tools.flat_names else []
    if kind == "namespace":
        names = [flat for flat, own in tools.client_names.items() if own.namespace and own.namespace == name]
        return names or _refuse_unknown(name)
    if kind not in ("function", "custom"):
        return []
    if not isinstance(name, str) or not isinstance(namespace, str | None):
        _refuse_unknown(name)
    wanted = ClientToolName(choice["type"], name, namespace)
    if wanted.is_plain and wanted not in tools.flat_names and name in server_names:
        return [name]
    return [tools.flat_name_of(wanted) or _refuse_unknown(name)]


def _refuse_unknown(name: Any) -> NoReturn:
    refuse("tool_choice", f"names {name!r}, which is not among 'tools'")


def _refuse_tool(kind: str, param: str) -> NoReturn:
    raise RequestError(f"The tool {kind[:_LONGEST_QUOTED]!r} is not available here.", param=param)
