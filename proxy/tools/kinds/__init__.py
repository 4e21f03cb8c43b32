"""Every `type:` of tools, each a module or package with the type's name, which has a `Kind` called `KIND`.

A module is imported when the first entry of its type is read: importing all of them takes a quarter of a second.
"""

from collections.abc import Iterator, Mapping
from importlib import import_module
from pkgutil import iter_modules
from typing import Final

from proxy.config.model import ToolConfig
from proxy.tools.tool_type import AnyToolType


class _Kinds(Mapping[str, AnyToolType]):
    """The kinds by their types, in alphabetical order."""

    def __init__(self) -> None:
        self._types = sorted(module.name for module in iter_modules(__path__))

    def __getitem__(self, type_: str) -> AnyToolType:
        if type_ not in self._types:
            raise KeyError(type_)
        kind: AnyToolType = import_module(f"{__name__}.{type_}").KIND
        return kind

    def __iter__(self) -> Iterator[str]:
        return iter(self._types)

    def __len__(self) -> int:
        return len(self._types)


KINDS: Final[Mapping[str, AnyToolType]] = _Kinds()


def kind_of(entry: ToolConfig) -> AnyToolType:
    """The kind of an entry."""
    return KINDS[entry.type]
