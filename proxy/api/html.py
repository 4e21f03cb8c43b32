"""HTML as values: whatever is not made here is escaped, so nothing that was sent in can become a tag."""

from html import escape
from typing import TypeAlias


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


Child: TypeAlias = "Html | str | int | float | None"

_EMPTY = frozenset({"meta"})


def tag(name: str, *children: Child, **attributes: object) -> Html:
    """One element. `class_` is the attribute `class`, `stroke_width` is `stroke-width`; None leaves one out."""
    said = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Html(f"<{name}{said}>" if name in _EMPTY else f"<{name}{said}>{join(*children)}</{name}>")


def join(*children: Child) -> Html:
    """Several, one after the other."""
    parts = (child if isinstance(child, Html) else escape(str(child)) for child in children if child is not None)
    return Html("".join(parts))
