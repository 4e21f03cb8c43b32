"""What it saves that a search reads the pages it finds: turns and tokens of a model that looks for an answer.

    python -m bench.reading

The sixty pages of `tests/reading` are served on loopback. For each of their questions a scripted search finds five
pages, of which the one with the answer is the first, second or third; no snippet has the answer. A scripted model
searches once, then opens the pages that were found, one after the other, until it has read the answer. Printed are the
questions whose answer the model has read after its search, and the medians of turns, tokens and seconds, without and
with `read: 3`. Tokens are those of all turns, a quarter of the characters.
"""

import asyncio
import re
import statistics
import time
from collections.abc import Iterator
from typing import Any

import httpx
import orjson
from starlette.types import Receive, Scope, Send

from proxy.app import configuration, create_app
from proxy.server.serving import serving
from proxy.telemetry import log
from tests.reading.pages import Page, corpus

_FOUND = 5  # pages of a search
_RANKS = 3  # the page with the answer is among the first so many
_CONFIG = """
upstreams: {{model: {{base_url: "{url}/v1", api_key: bench}}}}
models: {{m: {{upstream: model}}}}
limits: {{max_turns: 10, max_tool_calls: 10}}
telemetry: {{log_level: error}}
tools:
  web_search: {{type: search, provider: searxng, base_url: "{url}", read: {read}}}
  fetch_page: {{type: web_fetch, allow_hosts: [127.0.0.1], respect_robots: false}}
"""
_URL = re.compile(r"^http://\S+$", re.MULTILINE)


class Web:
    """The pages, the search and the model, as one ASGI application.

    Attributes:
        url: its own address.
        tokens: how many the model has read and written.
        turns: how often it was asked.
        is_found: whether it had read the answer when its search came back.
    """

    def __init__(self) -> None:
        self.url = ""
        self.start(corpus()[0])

    def start(self, page: Page) -> None:
        """Begin a conversation about the question of a page."""
        self._page, self.tokens, self.turns, self.is_found = page, 0, 0, False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        path, kind = scope["path"], "application/json"
        if path == "/search":
            answer = orjson.dumps({"results": [self._hit(page) for page in self._found()]})
        elif path == "/v1/chat/completions":
            answer = orjson.dumps(self._turn(orjson.loads(body)))
        else:
            names = {page.name: page for page in corpus()}
            kind, answer = "text/html; charset=utf-8", names[path.removeprefix("/pages/")].html.encode()
        head = [(b"content-type", kind.encode())]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        await send({"type": "http.response.body", "body": answer})

    def _found(self) -> list[Page]:
        """The page with the answer among others, at a place that differs between questions."""
        pages = corpus()
        at = pages.index(self._page)
        others = [pages[(at + step) % len(pages)] for step in range(7, 7 + _FOUND - 1)]
        return [*others[: at % _RANKS], self._page, *others[at % _RANKS :]]

    def _hit(self, page: Page) -> dict[str, str]:
        return {"url": f"{self.url}/pages/{page.name}", "title": page.title, "content": page.snippet}

    def _turn(self, request: dict[str, Any]) -> dict[str, Any]:
        """The model's next turn: a search, a page that it has not opened, or the answer."""
        results = [str(one["content"]) for one in request["messages"] if one["role"] == "tool"]
        has_read = any(self._page.is_answered_by(result) for result in results)
        self.turns += 1
        if len(results) == 1:
            self.is_found = has_read
        if has_read:
            message: dict[str, Any] = {"content": self._page.answer}
        elif not results:
            message = _calling("web_search", query=self._page.question)
        else:
            message = _calling("fetch_page", url=_URL.findall(results[0])[len(results) - 1])
        self.tokens += (len(orjson.dumps(request).decode()) + len(orjson.dumps(message).decode())) // 4
        reason = "tool_calls" if "tool_calls" in message else "stop"
        choice = {"index": 0, "message": {"role": "assistant", "content": None, **message}, "finish_reason": reason}
        return {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}


def _calling(name: str, **arguments: str) -> dict[str, Any]:
    function = {"name": name, "arguments": orjson.dumps(arguments).decode()}
    return {"tool_calls": [{"id": "1", "type": "function", "function": function}]}


async def measure(read: int) -> tuple[int, Iterator[float]]:
    """How many questions were answered by the search, and the medians of turns, tokens and seconds."""
    web, rows = Web(), []
    async with serving(web, lifespan="off") as web.url:
        loaded = configuration.parse(_CONFIG.format(url=web.url, read=read), {})
        log.configure(loaded.config.telemetry)
        async with serving(create_app(loaded), lifespan="on") as url, httpx.AsyncClient(timeout=60) as client:
            for page in corpus():
                web.start(page)
                asked = {"model": "m", "messages": [{"role": "user", "content": page.question}]}
                began = time.monotonic()
                (await client.post(f"{url}/v1/chat/completions", json=asked)).raise_for_status()
                rows.append((web.is_found, web.turns, web.tokens, time.monotonic() - began))
    found, *columns = zip(*rows, strict=True)
    return sum(found), map(statistics.median, columns)


def main() -> None:
    """Print a line without, and one with pages that are read."""
    print("read  answered by the search  turns  tokens  seconds")
    for read in (0, 3):
        found, (turns, tokens, seconds) = asyncio.run(measure(read))
        print(f"{read:4}  {found:10} of {len(corpus())}         {turns:5g}  {tokens:6g}  {seconds:7.2f}")


if __name__ == "__main__":
    main()
