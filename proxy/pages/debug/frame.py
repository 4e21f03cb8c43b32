"""What the pages of `/debug` share: their navigation, their style and their script."""

from pathlib import Path
from typing import Final

from proxy.pages.html import Child, Html, document, look_of, tag

LOOK: Final = look_of(Path(__file__).parent, "page.js")
_PATHS: Final = (("/debug", "Requests"), ("/debug/usage", "Usage"), ("/chat", "Chat"))


def page(title: str, *body: Child, current: str, has_chat: bool, is_live: bool = False) -> Html:
    """A page of `/debug`, with a link to the chat page if there is one for its reader."""
    links = [
        tag("a", name, href=path, aria_current="page" if path == current else None)
        for path, name in _PATHS[: None if has_chat else -1]
    ]
    navigation = tag("nav", tag("a", tag("strong", "toolproxy"), href="/"), *links, aria_label="Pages")
    main = tag("main", *body, data_live=is_live)
    return document(title, tag("header", navigation), main, look=LOOK)
