"""HTML as values: all text that is not made by `tag` is escaped, so nothing in a request can become a tag.

A page is one response: it contains its style and its scripts, and its policy permits these and nothing else.
"""

from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from html import escape
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from proxy.wire.relayed import Headers

BASE_STYLE: Final = (Path(__file__).parent / "base.css").read_text(encoding="utf-8")
"""What the pages have in common: colours for light and dark, and form elements."""
ICON: Final = (Path(__file__).parent / "icon.svg").read_text(encoding="utf-8")
"""The icon of the pages, an SVG picture."""
_ICON_ADDRESS: Final = f"data:image/svg+xml;base64,{b64encode(ICON.encode()).decode()}"
_EMPTY: Final = frozenset({"meta", "link", "input"})


class Html(str):
    """Text that is HTML already, so it must not be escaped."""

    __slots__ = ()


Child: TypeAlias = "Html | str | int | float | None"


def tag(name: str, /, *children: Child, **attributes: object) -> Html:
    """An element with its children and attributes.

    `class_` is the attribute `class`, `stroke_width` is `stroke-width`. An attribute that is None or False is left out;
    of one that is True, only the name is written.
    """
    written = "".join(
        _attribute(key, value) for key, value in attributes.items() if value is not None and value is not False
    )
    return Html(f"<{name}{written}>" if name in _EMPTY else f"<{name}{written}>{join(*children)}</{name}>")


def _attribute(key: str, value: object) -> str:
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{escape(str(value))}"'


def join(*children: Child) -> Html:
    """Elements and texts, one after the other."""
    parts = (child if isinstance(child, Html) else escape(str(child)) for child in children if child is not None)
    return Html("".join(parts))


class Look(NamedTuple):
    """The style of a page, its scripts in the order in which they run, and the headers that permit both."""

    style: str
    scripts: Sequence[str]
    headers: Headers


def look_of(folder: Path, *scripts: str, base: str = "") -> Look:
    """The look of a page: `page.css` after the style `base`, and scripts, from files of a folder."""
    style = base + (folder / "page.css").read_text(encoding="utf-8")
    texts = [(folder / name).read_text(encoding="utf-8") for name in scripts]
    return Look(style, texts, _headers_for(style, texts))


def document(title: str, *body: Child, look: Look) -> Html:
    """A whole page, with its style and its scripts."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("link", rel="icon", href=_ICON_ADDRESS),
        tag("title", f"{title} - toolproxy"),
        tag("style", Html(look.style)),
    )
    end = [tag("script", Html(script)) for script in look.scripts]
    return join(Html("<!doctype html>"), tag("html", head, tag("body", *body, *end), lang="en"))


def _source_of(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def _headers_for(style: str, scripts: Sequence[str]) -> Headers:
    """The headers of a page; their policy permits its style, its scripts, and requests to this server."""
    permitted = " ".join(map(_source_of, scripts))
    policy = (
        f"default-src 'none'; style-src {_source_of(style)}; script-src {permitted}; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    )
    return (
        (b"content-type", b"text/html; charset=utf-8"),
        (b"content-security-policy", policy.encode()),
        (b"x-content-type-options", b"nosniff"),
        (b"x-frame-options", b"DENY"),
        (b"referrer-policy", b"no-referrer"),
        (b"cache-control", b"no-store"),
    )
