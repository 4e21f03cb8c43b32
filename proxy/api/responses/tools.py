"""`tools` and `tool_choice` of a Responses request as those of a chat request, and the way back from the names.

function     a function; flat here, nested there
custom       a function with one string, `input`; a call comes back as `custom_tool_call`
namespace    its functions, each as `NAMESPACE__NAME`; a call comes back with `name` and `namespace`
             (both are the client's: where a server tool has such a name, the model knows them under another one)
web_search   the server's search, with its settings
the others   hosted tools that we do not have: left out, and named
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NoReturn

from proxy.api.responses.search import SearchSettings, read_settings
from proxy.loop.chat import Json, name_of
from proxy.loop.errors import RequestError
from proxy.loop.offer import HOSTED_SEARCHES, SEARCH
from proxy.loop.prompts import GRAMMAR, RAW_INPUT

# What may stand in a header.
_TYPE = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_SECRETS = ("authorization", "headers")  # of an `mcp` tool
_MODES = ("auto", "none", "required")
_LONGEST_NAME = 128  # OpenAI's own limit for some of its tools; upstreams get at most 64
_MOST_NAMED = 32  # hosted tools; there are not so many


@dataclass(frozen=True, slots=True)
class Face:
    """How a tool of the client looks to the client: the model knows it under one flat name."""

    kind: Literal["function", "custom"]
    name: str
    namespace: str | None = None

    @property
    def is_plain(self) -> bool:
        """Whether it is a function in no namespace, which is the server's if it has the name of a server tool."""
        return self.kind == "function" and self.namespace is None


@dataclass(frozen=True, slots=True)
class Tools:
    """The tools of one request.

    Attributes:
        functions: the client's own, in the words of Chat Completions.
        faces: the names in `functions` -> how the client knows them.
        names: the same the other way round: name and namespace -> the flat name.
        search: the settings of the hosted search, where it is declared.
        offline: the client wants no search that fetches, and that is the only kind there is.
        ignored: the types of declared tools that we do not have.
        choice: `tool_choice` in the words of Chat Completions.
    """

    functions: tuple[Json, ...] = ()
    faces: Mapping[str, Face] = field(default_factory=dict)
    names: Mapping[tuple[str, str | None], str] = field(default_factory=dict)
    search: SearchSettings | None = None
    offline: bool = False
    ignored: tuple[str, ...] = ()
    choice: Any = None

    def for_chat(self) -> tuple[Json, ...]:
        """The `tools` of the chat request."""
        return (*self.functions, {"type": SEARCH}) if self.search else self.functions

    def name_of(self, item: Json) -> str:
        """The flat name that the model knows for the tool of a call in the client's history."""
        name, given = item["name"], item.get("namespace")
        namespace = given if isinstance(given, str) else None
        return self.names.get((name, namespace)) or _flat(name, namespace)

    def face_of(self, flat: str) -> Face:
        """How the client knows a tool that the model called."""
        return self.faces.get(flat) or Face("function", flat)

    def within(self, callable_names: Collection[str], *, withdrawn: bool) -> "Tools":
        """The same without the server tools that are asked for and cannot be called; itself where there are none.

        Args:
            callable_names: the names of the server tools that this request may call.
            withdrawn: the client itself has ruled others out, by `max_tool_calls: 0` or a header.

        Raises:
            RequestError: such a tool is all that the client wants.
        """
        tools = self
        if tools.search and SEARCH not in callable_names:
            tools = tools.without_search(withdrawn=withdrawn)
        chosen = name_of(tools.choice) if isinstance(tools.choice, dict) else None
        if chosen is None or chosen in tools.faces or chosen in callable_names:
            return tools
        if not withdrawn:
            _refuse(chosen, "tool_choice")
        return replace(tools, choice=None)

    def without_search(self, *, withdrawn: bool) -> "Tools":
        """The same, where there is no search for this request.

        Args:
            withdrawn: the client itself has ruled it out, by `max_tool_calls: 0` or a header.

        Raises:
            RequestError: a search is all that it wants, and there is none.
        """
        forced = self.choice == _one(SEARCH)
        if not withdrawn and (forced or not self.functions):
            _refuse(SEARCH, "tool_choice" if forced else "tools")
        choice = None if forced else self.choice
        return replace(self, search=None, ignored=(*self.ignored, SEARCH), choice=choice)


def read_tools(declared: Sequence[Json], choice: Any, server_names: Collection[str] = ()) -> Tools:
    """The tools of a request.

    Args:
        declared: its `tools`, and those of its `additional_tools` items.
        choice: its `tool_choice`.
        server_names: the names and aliases of the server tools.

    Raises:
        RequestError: they are not well formed, or demand a hosted tool that we do not have.
    """
    functions: list[Json] = []
    faces: dict[str, Face] = {}
    names: dict[tuple[str, str | None], str] = {}
    # Of two with the same name the later counts: an `additional_tools` item may come again in a longer history.
    for tool, face in {face: (tool, face) for tool, face in _own(declared)}.values():
        taken = faces.keys() if face.is_plain else faces.keys() | server_names
        flat = _unused(_flat(face.name, face.namespace), taken)
        faces[flat], names[face.name, face.namespace] = face, flat
        functions.append(_function(tool, flat, custom=face.kind == "custom"))
    hosted = [tool for tool in declared if tool["type"] not in ("function", "custom", "namespace")]
    searches = [tool for tool in hosted if _is_live_search(tool)]
    ignored = tuple(dict.fromkeys(_named(tool) for tool in hosted if not _is_live_search(tool)))[:_MOST_NAMED]
    settings = read_settings(searches[0]) if searches else None
    offline = not searches and any(_named(tool) == SEARCH for tool in hosted)
    tools = Tools(tuple(functions), faces, names, settings, offline, ignored)
    if ignored and not functions and not searches:
        _refuse(ignored[0], "tools")
    return _chosen(tools, choice, server_names)


def _own(declared: Iterable[Json]) -> Iterator[tuple[Json, Face]]:
    """The client's own tools, those in namespaces among them."""
    for tool in declared:
        match tool["type"]:
            case "function" | "custom":
                yield tool, _face(tool, None)
            case "namespace":
                for inner in _listed(tool, "tools", "tools"):
                    if inner["type"] in ("function", "custom"):
                        yield inner, _face(inner, _name(tool))


def _face(tool: Json, namespace: str | None) -> Face:
    return Face("custom" if tool["type"] == "custom" else "function", _name(tool), namespace)


def _name(tool: Json) -> str:
    name = tool.get("name")
    if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_NAME:
        told = f"A tool of type {tool['type'][:_LONGEST_NAME]!r} needs a name of at most {_LONGEST_NAME} characters."
        raise RequestError(told, param="tools")
    return name


def _listed(holder: Json, key: str, param: str) -> list[Json]:
    """A list of objects with a type."""
    listed = [] if holder.get(key) is None else holder[key]
    if not isinstance(listed, list) or not all(
        isinstance(tool, dict) and isinstance(tool.get("type"), str) for tool in listed
    ):
        raise RequestError(f"'{param}' must be a list of objects, each with a type.", param=param)
    return listed


def declared_in(request: Json, items: Iterable[Json]) -> list[Json]:
    """The `tools` of a request and those that its items add. Raises `RequestError`."""
    declared = list(_listed(request, "tools", "tools"))
    for item in items:
        if item["type"] == "additional_tools":
            declared += _listed(item, "tools", "input")
    return declared


def without_secrets(tools: Any) -> Any:
    """A list of tools as it may be kept and echoed: without what opens the MCP servers that it declares."""
    return [_without_secrets(tool) for tool in tools] if isinstance(tools, list) else tools


def _without_secrets(tool: Any) -> Any:
    if not isinstance(tool, dict):
        return tool
    if tool.get("type") == "mcp":
        return {key: value for key, value in tool.items() if key not in _SECRETS}
    return {**tool, "tools": without_secrets(tool["tools"])} if "tools" in tool else tool


def _flat(name: str, namespace: str | None) -> str:
    return f"{namespace}__{name}" if namespace else name


def _unused(name: str, taken: Collection[str]) -> str:
    candidate, number = name, 2
    while candidate in taken:
        candidate, number = f"{name}_{number}", number + 1
    return candidate


def _function(tool: Json, flat: str, *, custom: bool) -> Json:
    if custom:
        parameters: Json = {"type": "object", "properties": {"input": {"type": "string", "description": RAW_INPUT}}}
        parameters |= {"required": ["input"], "additionalProperties": False}
        described = [tool.get("description"), _grammar(tool.get("format"))]
        told = "\n\n".join(text for text in described if isinstance(text, str) and text)
        return {"type": "function", "function": {"name": flat, "description": told, "parameters": parameters}}
    said = {key: tool[key] for key in ("description", "parameters", "strict") if tool.get(key) is not None}
    return {"type": "function", "function": {"name": flat, **said}}


def _grammar(form: Any) -> str | None:
    """A custom tool's grammar in words: nothing here can enforce it."""
    if not isinstance(form, dict) or form.get("type") != "grammar":
        return None
    return GRAMMAR.format(syntax=form.get("syntax") or "", definition=form.get("definition") or "")


def _is_live_search(tool: Json) -> bool:
    """Whether it is a search that may fetch: one that may not is none that we have."""
    return tool["type"] in HOSTED_SEARCHES and tool.get("external_web_access") is not False


def _named(tool: Json) -> str:
    """A tool's type as it may stand in a header and in the log."""
    if tool["type"] in HOSTED_SEARCHES:
        return SEARCH
    return tool["type"] if _TYPE.fullmatch(tool["type"]) else "unknown"


# -- tool_choice --


def _chosen(tools: Tools, choice: Any, server_names: Collection[str]) -> Tools:
    """The tools with what `tool_choice` makes of them."""
    if choice is None:
        return tools
    if isinstance(choice, str):
        if choice not in _MODES:
            raise RequestError(f"'tool_choice' must be one of {', '.join(_MODES)}, or an object.", param="tool_choice")
        return replace(tools, choice=choice, search=None if choice == "none" else tools.search)
    if not isinstance(choice, dict) or not isinstance(choice.get("type"), str):
        raise RequestError("'tool_choice' must be a string, or an object with a type.", param="tool_choice")
    if choice["type"] == "allowed_tools":
        return _narrowed(tools, choice, server_names)
    search = tools.search or (SearchSettings() if choice["type"] in HOSTED_SEARCHES else None)
    return replace(tools, choice=_one(_pick(tools, choice, server_names)), search=search)


def _narrowed(tools: Tools, choice: Json, server_names: Collection[str]) -> Tools:
    """`allowed_tools`: those only, and its mode as the choice."""
    listed = [entry for entry in _listed(choice, "tools", "tool_choice") if not _is_lost(entry)]
    allowed = dict.fromkeys(_pick(tools, entry, server_names) for entry in listed)
    mode = choice.get("mode") or "auto"
    if mode not in _MODES:
        raise RequestError(f"'tool_choice.mode' must be one of {', '.join(_MODES)}.", param="tool_choice")
    hosted = any(entry["type"] in HOSTED_SEARCHES for entry in listed)
    named = [_one(flat) for flat in allowed if flat != SEARCH or not hosted]
    narrowed: Json = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": named}}
    if not hosted:
        return replace(tools, choice=narrowed, search=None)
    named.append({"type": SEARCH})
    return replace(tools, choice=narrowed, search=tools.search or SearchSettings())


def _is_lost(entry: Json) -> bool:
    """Whether a choice names a hosted tool that we do not have."""
    return entry["type"] not in ("function", "custom", *HOSTED_SEARCHES)


def _pick(tools: Tools, choice: Json, server_names: Collection[str]) -> str:
    """The flat name of the one tool that a choice names. Raises `RequestError` where there is none.

    A server tool may be chosen without being declared.
    """
    if choice["type"] in HOSTED_SEARCHES and not tools.offline and (tools.search or SEARCH in server_names):
        return SEARCH
    if _is_lost(choice) or choice["type"] in HOSTED_SEARCHES:
        _refuse(_named(choice), "tool_choice")
    name, namespace = choice.get("name"), choice.get("namespace")
    flat = tools.names.get((name, namespace)) if isinstance(name, str) and isinstance(namespace, str | None) else None
    if flat is None and name in server_names and _face(choice, namespace).is_plain:
        return str(name)
    if flat is None:
        raise RequestError(f"'tool_choice' names {name!r}, which is not among 'tools'.", param="tool_choice")
    return flat


def _one(flat: str) -> Json:
    return {"type": "function", "function": {"name": flat}}


def _refuse(kind: str, param: str) -> NoReturn:
    raise RequestError(f"The tool {kind!r} is not available here.", param=param)
