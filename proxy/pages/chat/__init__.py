"""`GET /chat`: a small page to try the proxy with, where `server.chat_page` is set, or on loopback without clients.

The page is open to everyone who may see it at all, and holds no secrets. Where requests need a key, its user types it;
key and conversation stay in that browser tab, and the page sends them as any other client would.
"""

from pathlib import Path
from typing import Final

from starlette.types import Receive, Scope, Send

from proxy.api.exchange import send_bytes
from proxy.api.local import is_local
from proxy.api.ports import Ports
from proxy.pages.html import BASE_STYLE, Html, document, look_of, tag
from proxy.wire.errors import NotFound

_SCRIPTS: Final = ("markdown-it.js", "prose.js", "answer.js", "page.js")
_LOOK: Final = look_of(Path(__file__).parent, *_SCRIPTS, base=BASE_STYLE)
_QUESTIONS: Final = (
    "What is new in the latest Python? Search the web.",
    "Compare two electric bicycles that came out this year.",
    "What time is it, and what is in the news today?",
)


class ChatPage:
    """The page, the same for everyone."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        has_debug = ports.recent_requests is not None and not ports.config.server.allow_anonymous
        takes_key = ports.needs_key or ports.config.forwards_client_keys
        self._page = _page(takes_key=takes_key, has_debug=has_debug).encode()

    async def __call__(self, scope: Scope, _: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        if not serves_chat(scope, self._ports):
            raise NotFound("There is no /chat here: server.chat_page is off.")
        await send_bytes(send, 200, _LOOK.headers, self._page)


def serves_chat(scope: Scope, ports: Ports) -> bool:
    """Whether the sender of a request may see the page."""
    server = ports.config.server
    if server.chat_page is None:
        return not ports.needs_key and not server.allow_anonymous and is_local(scope)
    return server.chat_page


def _page(*, takes_key: bool, has_debug: bool) -> Html:
    key = tag("input", id="key", type="password", autocomplete="off")
    settings = tag(
        "nav",
        tag("a", "toolproxy", href="/", class_="home"),
        tag("a", "Requests", href="/debug") if has_debug else None,
        tag("label", tag("span", "model"), tag("select", id="model")),
        tag("label", tag("span", "key"), key) if takes_key else None,
        tag("button", "New chat", type="button", id="new"),
        tag("span", id="refused", class_="bad", role="status"),
        class_="settings",
        aria_label="Chat",
    )
    examples = [tag("li", tag("button", question, type="button", class_="example")) for question in _QUESTIONS]
    empty = tag("div", tag("h2", "Ask something that needs a search"), tag("ul", *examples), id="empty")
    talk = tag("div", empty, id="talk", tabindex=0, role="log", aria_label="Conversation", data_debug=has_debug)
    question = tag("textarea", id="question", rows=1, placeholder="Ask …", aria_label="your message")
    form = tag("form", question, tag("button", "Send", type="submit", id="send"), id="form")
    note = tag("p", "Kept in this browser tab only. “New chat” forgets it.", class_="note")
    main = tag("main", tag("h1", "Chat", class_="unseen"), talk, form, note)
    return document("Chat", tag("header", settings), main, look=_LOOK)
