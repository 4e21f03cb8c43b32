"""The options that an earlier version had and this one has not, with what replaces each.

A configuration that still has one starts with a warning, for one minor version, if the proxy is as safe without it;
otherwise the option is a fault. To remove an option, delete it from `model` and add a row here and to docs/upgrades.md.
"""

import re
from typing import Final, Literal

from msgspec import Struct

Level = Literal["warning", "fault"]


class Removed(Struct, frozen=True):
    """An option that is gone.

    Attributes:
        path: its path, where `*` is any name and `[]` any item of a list.
        level: `fault` if a configuration that relies on it must not start.
        sentence: what happens instead, and what to write.
    """

    path: str
    level: Level
    sentence: str


_KEY_OPTIONS: Final = (
    "`max_concurrent` and `weight` of a key are gone: write the key itself; a key that is too busy is refused by its"
    " provider, and the next one answers"
)

REMOVED: Final = (
    Removed("upstreams.*.api_key[]", "warning", _KEY_OPTIONS),
    Removed("tools.*.api_key[]", "warning", _KEY_OPTIONS),
)


def removed_at(path: str) -> Removed | None:
    """The row for the option at a path, such as `tools.web_search.api_key[0]`; None: no version has had it."""
    pattern = re.sub(r"\[\d+\]", "[]", path).split(".")
    return next((row for row in REMOVED if _fits(row.path.split("."), pattern)), None)


def _fits(row: list[str], path: list[str]) -> bool:
    return len(row) == len(path) and all(own in ("*", given) for own, given in zip(row, path, strict=True))
