"""`GET /chat`: a small page to try the proxy with, where `server.chat_page` is set.

The page is open to everyone, as `/healthz` is, and holds no secrets. Its user types in a key, which stays in that
browser tab; the page sends it as any other client would.
"""

from pathlib import Path
from typing import Final

from starlette.types import Receive, Scope, Send

from proxy.api.debug.html import Html, document, headers_for, tag
from proxy.api.exchange import send_bytes

_HERE: Final = Path(__file__).parent
_STYLE: Final = (_HERE / "page.css").read_text(encoding="utf-8")
_SCRIPT: Final = (_HERE / "page.js").read_text(encoding="utf-8")
_HEADERS: Final = headers_for(_STYLE, _SCRIPT)


class ChatPage:
    """The page, the same for everyone."""

    def __init__(self) -> None:
        self._page = _page().encode()

    async def __call__(self, _: Scope, __: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        await send_bytes(send, 200, _HEADERS, self._page)


def _page() -> Html:
    settings = tag(
        "div",
        tag("strong", "toolproxy"),
        tag("label", tag("span", "model"), tag("select", id="model")),
        tag("label", tag("span", "key"), tag("input", id="key", type="password", placeholder="only if one is needed")),
        tag("button", "New chat", type="button", id="new"),
        class_="settings",
    )
    empty = tag("p", "Ask something that needs a search.", id="empty")
    question = tag("textarea", id="question", rows=2, placeholder="Ask …", aria_label="your message")
    send = tag("button", "Send", type="submit", id="send")
    form = tag("form", question, send, id="form")
    talk = tag("main", empty, id="talk", aria_live="polite")
    return document("Chat", tag("header", settings), talk, form, style=_STYLE, script=_SCRIPT)
