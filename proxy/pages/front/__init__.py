"""`GET /` and `GET /v1`: what this is, and the address to put into an app; a page for a browser, JSON for others.

Where clients are configured, a request without a key learns only what this is.
"""

from pathlib import Path
from typing import Final

from starlette.types import Receive, Scope, Send

from proxy import __version__
from proxy.api.access import CALLER, Caller
from proxy.api.body import header
from proxy.api.exchange import send_bytes, send_json
from proxy.api.ports import Ports
from proxy.pages.chat import serves_chat
from proxy.pages.debug.endpoint import may_read
from proxy.pages.html import BASE_STYLE, ICON, Child, Html, document, look_of, tag
from proxy.wire.chat import Json

_LOOK: Final = look_of(Path(__file__).parent, "page.js", base=BASE_STYLE)
_ICON_HEADERS: Final = ((b"content-type", b"image/svg+xml"), (b"cache-control", b"max-age=86400"))
_WHAT: Final = "An OpenAI-compatible proxy that runs tools, such as web search, between an app and its model."
_EXAMPLE: Final = """\
from openai import OpenAI

client = OpenAI(base_url="{address}/v1", api_key="{key}")
question = "What is new in Python? Search the web."
answer = client.chat.completions.create(
    model="{model}",
    messages=[{{"role": "user", "content": question}}],
)
print(answer.choices[0].message.content)
"""


class Icon:
    """`GET /favicon.ico`: the icon, for which browsers also ask where they show JSON."""

    def __init__(self, _: Ports) -> None:
        pass

    async def __call__(self, _: Scope, __: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        await send_bytes(send, 200, _ICON_HEADERS, ICON.encode())


class FrontPage:
    """The page, as far as the caller may see what is on it."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports

    async def __call__(self, scope: Scope, _: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        facts = self._facts(scope)
        if "text/html" in (header(scope, b"accept") or ""):
            await send_bytes(send, 200, _LOOK.headers, _page(facts, needs_key=self._ports.needs_key).encode())
        else:
            await send_json(send, facts)

    def _facts(self, scope: Scope) -> Json:
        facts: Json = {"name": "toolproxy", "description": _WHAT}
        caller: Caller | None = scope.get(CALLER)
        if caller is not None:
            models = [name for name in self._ports.router.names() if caller.may_use(name)]
            facts |= {"version": __version__, "base_url": f"{_address(scope)}/v1", "models": models}
        if serves_chat(scope, self._ports):
            facts["chat"] = "/chat"
        if self._ports.recent_requests and may_read(scope, self._ports):
            facts["debug"] = "/debug"
        return facts


def _address(scope: Scope) -> str:
    """The address that the client asked, as its Host header has it, or the socket's own for a client of HTTP/1.0."""
    host, port = scope.get("server") or ("127.0.0.1", 80)
    forwarded = header(scope, b"x-forwarded-proto") or ""
    scheme = forwarded if forwarded in ("http", "https") else scope["scheme"]
    return f"{scheme}://{header(scope, b'host') or f'{host}:{port}'}"


def _page(facts: Json, *, needs_key: bool) -> Html:
    known: list[Child] = []
    if "base_url" in facts:
        address = facts["base_url"].removesuffix("/v1")
        models = facts["models"]
        code = _EXAMPLE.format(
            address=address, key="YOUR_KEY" if needs_key else "unused", model=models[0] if models else "MODEL"
        )
        known = [
            tag("h2", "Put this address into an app"),
            tag("dl", _row("OpenAI SDKs", address, "/v1"), _row("Anthropic SDKs", address, ""), class_="address"),
            tag("h2", "For example"),
            tag("pre", tag("code", code, data_address=address), tabindex="0"),
            tag("h2", "Models"),
            tag("ul", *(tag("li", tag("code", name)) for name in models), class_="models")
            if models
            else tag("p", "None is usable. ", tag("a", "/readyz", href="/readyz"), " says why."),
        ]
    elif needs_key:
        known = [tag("p", "Its address, its models and its pages are shown to clients, by their key.")]
    ways = [
        tag("a", tag("strong", title), tag("span", text), href=facts[key])
        for key, title, text in (
            ("chat", "Chat", "Ask something, and watch the searches"),
            ("debug", "Requests", "The last ones, each turn and tool on a time line"),
        )
        if key in facts
    ]
    return document(
        "An OpenAI-compatible proxy",
        tag("main", tag("h1", "toolproxy"), tag("p", _WHAT, class_="lead"), *known, tag("div", *ways, class_="ways")),
        look=_LOOK,
    )


def _row(label: str, address: str, path: str) -> Html:
    where = f"at-{label.split(maxsplit=1)[0].lower()}"
    shown = tag("code", f"{address}{path}", id=where, data_path=path)
    spoken = f"Copy the address for {label}"
    copy = tag("button", "Copy", type="button", class_="copy", data_of=where, aria_label=spoken)
    return tag("div", tag("dt", label), tag("dd", shown, copy))
