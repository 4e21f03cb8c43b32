"""`GET /chat`: a small page to try the proxy with, where `server.chat_page` is set, or on loopback without clients.

The page is open to everyone who may see it at all, and holds no secrets. Its user types in a key, which stays in that
browser tab; the page sends it as any other client would.
"""

from pathlib import Path
from typing import Final

from starlette.types import Receive, Scope, Send

from proxy.api.exchange import send_bytes
from proxy.api.local import is_local
from proxy.api.ports import Ports
from proxy.pages.html import BASE_STYLE, Html, document, headers_for, tag
from proxy.wire.errors import NotFound

_HERE: Final = Path(__file__).parent
_STYLE: Final = BASE_STYLE + (_HERE / "page.css").read_text(encoding="utf-8")
_SCRIPT: Final = (_HERE / "page.js").read_text(encoding="utf-8")
_HEADERS: Final = headers_for(_STYLE, _SCRIPT)
_QUESTIONS: Final = (
    "What is new in the latest Python? Search the web.",
    "Compare two electric bicycles that came out this year.",
    "What time is it, and what is in the news today?",
)


class ChatPage:
    """The page, the same for everyone."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._page = _page().encode()

    async def __call__(self, scope: Scope, _: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        if not serves_chat(scope, self._ports):
            raise NotFound("There is no /chat here: server.chat_page is off.")
        await send_bytes(send, 200, _HEADERS, self._page)


def serves_chat(scope: Scope, ports: Ports) -> bool:
    """Whether the sender of a request may see the page."""
    server = ports.config.server
    if server.chat_page is None:
        return not ports.needs_key and not server.allow_anonymous and is_local(scope)
    return server.chat_page


def _page() -> Html:
    settings = tag(
        "div",
        tag("a", "toolproxy", href="/"),
        tag("label", tag("span", "model"), tag("select", id="model")),
        tag("label", tag("span", "key"), tag("input", id="key", type="password", placeholder="only if one is needed")),
        tag("button", "New chat", type="button", id="new"),
        class_="settings",
    )
    examples = [tag("li", tag("button", question, type="button", class_="example")) for question in _QUESTIONS]
    empty = tag("div", tag("h1", "Ask something that needs a search"), tag("ul", *examples), id="empty")
    question = tag("textarea", id="question", rows=1, placeholder="Ask …", aria_label="your message")
    send = tag("button", "Send", type="submit", id="send")
    form = tag("form", question, send, id="form")
    talk = tag("main", empty, id="talk", aria_live="polite")
    return document("Chat", tag("header", settings), talk, form, style=_STYLE, script=_SCRIPT)
