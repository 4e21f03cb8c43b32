"""The options and values that an earlier version had and this one has not, with what replaces each.

A configuration that still has one starts with a warning, for one minor version, if the proxy is as safe without it;
otherwise the option is a fault. To remove an option, delete it from `model` and add a row here and to docs/upgrades.md.
"""

import re
from typing import Final, Literal

from msgspec import Struct


class Removed(Struct, frozen=True):
    """An option that is gone.

    Attributes:
        path: its path, where `*` is any name and `[]` any item of a list.
        level: `fault` if a configuration that relies on it must not start.
        sentence: what happens instead, and what to write.
        harmless: values of a text with which a `fault` is a warning.
        values: the values that are gone of an option that is still there; empty: the option itself is gone.
    """

    path: str
    level: Literal["warning", "fault"]
    sentence: str
    harmless: tuple[str, ...] = ()
    values: tuple[str, ...] = ()


_KEY_OPTIONS: Final = (
    "`max_concurrent` and `weight` of a key are gone: write the key itself; a key that is too busy is refused by its"
    " provider, and the next one answers"
)

_DEFINITIONS: Final = (
    "`definitions` is gone: tools are offered as their server lists them, and the log says what has changed; remove the"
    " key, and pin the version of the server itself"
)
_SESSIONS: Final = (
    "`max_sessions` is gone: a session with a user's credential lives as long as its request; remove the key"
)
_CHECK: Final = (
    "a check by a server is gone, and no result would be checked: name a function, `check: module:function`, which may"
    " ask the server"
)
_SCRAPE: Final = "`serper_scrape` is gone: write `type: web_fetch`, which reads pages itself and needs no `api_key`"
_ENDPOINTS: Final = (
    "images, places and shopping are gone: leave `endpoint` out, for a search of the web, or describe the service as a"
    " tool of `type: http`"
)
_OF_SERVER: Final = ("url", "headers")

REMOVED: Final = (
    Removed("upstreams.*.api_key[]", "warning", _KEY_OPTIONS),
    Removed("tools.*.api_key[]", "warning", _KEY_OPTIONS),
    Removed("tools.*.definitions", "fault", _DEFINITIONS, harmless=("accepted",)),
    Removed("tools.*.max_sessions", "warning", _SESSIONS),
    *(Removed(f"{check}.{key}", "fault", _CHECK) for check in ("tools.*.check", "tools_check") for key in _OF_SERVER),
    Removed("tools.*.type", "fault", _SCRAPE, values=("serper_scrape",)),
    Removed("tools.*.endpoint", "fault", _ENDPOINTS, values=("images", "places", "shopping")),
)


def removed_at(path: str, value: str | None = None) -> Removed | None:
    """The row for an option, such as `tools.web_search.api_key[0]`, or for one `value` of it.

    Returns None if no version has had it.
    """
    pattern = re.sub(r"\[\d+\]", "[]", path).split(".")
    rows = (row for row in REMOVED if (not row.values if value is None else value in row.values))
    return next((row for row in rows if _fits(row.path.split("."), pattern)), None)


def _fits(row: list[str], path: list[str]) -> bool:
    return len(row) == len(path) and all(own in ("*", given) for own, given in zip(row, path, strict=True))
