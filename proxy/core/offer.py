"""Which tools a request offers the model, and whose they are.

A name in the request's own `tools` that is a server tool's name or alias is run by the proxy, under the name that the
client used. Every other function stays the client's. The server tools that are left are added where the client leaves
the choice to the model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from proxy.core.chat import Json, ToolSpec, name_of


@dataclass(frozen=True, slots=True)
class Offer:
    """The tools of one request.

    Attributes:
        tools: the request's `tools` as they go upstream.
        owned: every name under which a server tool may be called -> the tool.
        shown: the names of server tools that the model is told of.
        client_tools: the names of the functions that are the client's.
        tool_choice: of the first turn; None: the request has none.
    """

    tools: tuple[Json, ...] = ()
    owned: Mapping[str, ToolSpec] = field(default_factory=dict)
    shown: tuple[str, ...] = ()
    client_tools: frozenset[str] = frozenset()
    tool_choice: Any = None

    @property
    def in_play(self) -> bool:
        """Whether a server tool may be called at all. If not, the request is passed through."""
        return bool(self.shown)

    def schemas(self) -> dict[str, Json]:
        """Every name that may be called -> its JSON Schema."""
        owned = {name: spec.parameters for name, spec in self.owned.items()}
        functions = [tool["function"] for tool in self.tools if isinstance(tool.get("function"), dict)]
        clients = {function["name"]: function for function in functions if function.get("name") in self.client_tools}
        return owned | {name: _schema(function) for name, function in clients.items()}

    def without_server_tools(self) -> tuple[Json, ...]:
        """The client's own entries of `tools`."""
        return tuple(tool for tool in self.tools if name_of(tool) not in self.owned)


def make_offer(request: Json, server_tools: Sequence[ToolSpec]) -> Offer:
    """Decide which of the `server_tools` that this client may use are in play for `request`.

    Args:
        request: the client's body; its `tools` and `tool_choice` are read.
        server_tools: the whitelist, already narrowed to this client and model.
    """
    declared: Sequence[Json] = request.get("tools") or ()
    choice = request.get("tool_choice")
    names = dict.fromkeys(name for tool in declared if (name := name_of(tool)) is not None)
    # OpenAI runs one choice or several; a loop has room for one. Legacy `functions` exclude `tools`.
    if choice == "none" or (request.get("n") or 1) != 1 or request.get("functions"):
        return Offer(tools=tuple(declared), client_tools=frozenset(names), tool_choice=choice)
    by_name = {name: tool for tool in server_tools for name in (tool.name, *tool.aliases)}
    shown = {name: by_name[name] for name in names if name in by_name}
    added: list[ToolSpec] = []
    if choice in (None, "auto"):
        known = {tool.name for tool in shown.values()}
        added = [tool for tool in server_tools if tool.offered and tool.name not in known]
    shown |= {tool.name: tool for tool in added}
    # A model may use an alias that it was trained on instead of the name that it was offered, so aliases stay
    # callable, but only of tools that are in play.
    usable = {tool.name for tool in shown.values()}
    owned = {name: tool for name, tool in by_name.items() if tool.name in usable}
    return Offer(
        tools=(*declared, *(tool.definition() for tool in added)),
        owned=owned if shown else {},
        shown=tuple(shown),
        client_tools=frozenset(names.keys() - shown.keys()),
        tool_choice=choice,
    )


def freed(choice: Any, offer: Offer) -> Any:
    """The `tool_choice` after the first turn: one that makes the model call a server tool holds for that turn only."""
    if choice == "required":
        return "auto"
    if not isinstance(choice, dict):
        return choice
    if isinstance(allowed := choice.get("allowed_tools"), dict):
        return {**choice, "allowed_tools": {**allowed, "mode": "auto"}}
    return "auto" if name_of(choice) in offer.owned else choice


def _schema(function: Json) -> Json:
    parameters = function.get("parameters")
    return parameters if isinstance(parameters, dict) else {}
