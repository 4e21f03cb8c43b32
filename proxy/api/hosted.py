"""Hosted tools: the ones that a request declares and may use, and the treatment of the rest.

A client declares a hosted tool by its type, and a server tool serves it. A tool that is not available is left out, and
named to the client. But a request that depends on it is refused, unless a selection or a
limit has narrowed the tools (`Access.drops_unavailable_tools`).
"""

from collections.abc import Collection, Mapping
from typing import Literal, NoReturn, Protocol, TypeAlias

from msgspec import Struct

Where: TypeAlias = Literal["tools", "tool_choice"]


class RefuseHosted(Protocol):
    """Refuses a request because of a hosted tool, in the words of its API."""

    def __call__(self, name: str, where: Where) -> NoReturn:
        """Raise the `RequestError` that names the tool and the field that asks for it."""
        ...


class Hosted(Struct, frozen=True):
    """The hosted tools that are available to a request.

    Attributes:
        available: the client's name of each -> the name of the server's tool in its place.
        missing: the client's names of the unavailable ones, in the order of the declaration.
        keeps_choice: whether the `tool_choice` of the request can be met.
    """

    available: Mapping[str, str]
    missing: tuple[str, ...]
    keeps_choice: bool


def hosted_within(
    declared: Mapping[str, str | None],
    usable: Collection[str],
    *,
    chosen: str | None,
    has_functions: bool,
    drop: bool,
    refuse: RefuseHosted,
) -> Hosted:
    """Decide which of the declared hosted tools a request may have.

    Args:
        declared: the client's name of each -> the name of the server's tool in its place; None: there is none.
        usable: the names of the server tools that the request may use.
        chosen: the client's name of the hosted tool that `tool_choice` demands, if it demands one.
        has_functions: whether the request declares tools of its own.
        drop: whether a tool is left out even if the request depends on it.
        refuse: refuses the request.
    """
    available = {name: own for name, own in declared.items() if own is not None and own in usable}
    missing = tuple([name for name in declared if name not in available])
    is_unmet = chosen is not None and chosen not in available
    if is_unmet and not drop:
        refuse(str(chosen), "tool_choice")
    is_bare = bool(missing) and not available and not has_functions
    if is_bare and not drop:
        refuse(missing[0], "tools")
    return Hosted(available, missing, keeps_choice=not (is_unmet or is_bare))
