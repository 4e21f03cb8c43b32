"""`toolproxy demo --serve`: a chat page over the proxy, with a scripted model and a scripted search behind it."""

import asyncio
import re
import signal
import sys
from collections.abc import Sequence

from proxy.app import configuration, create_app
from proxy.mock.demo import DEMO, search_answer
from proxy.mock.script import Script, ScriptedCall, ScriptedTurn
from proxy.mock.server import MockUpstream
from proxy.server.serving import serving
from proxy.telemetry import log
from proxy.wire.chat import Json

_PACE = 0.03  # seconds between two words
_SEARCH_SECONDS = 0.8
_LONGEST_QUERY = 80
_URL = re.compile(r"https?://[^\s\"<>)]+")

_FOUND = """I am a **scripted model** and know nothing, but the proxy has searched for your words and found

{pages}

With a real key, a real model answers from real pages."""
_CONFIG = """
server: {{chat_page: true}}
upstreams: {{model: {{base_url: "{mock}/v1", api_key: demo, profile: glm}}}}
models: {{glm-4.7: {{upstream: model}}}}
tools: {{web_search: {{type: serper, api_key: demo, base_url: "{mock}"}}}}
telemetry: {{log_level: error, log_content: true}}
"""


class Searching(Script, frozen=True, kw_only=True):
    """The demo's conversations; for any other question, its own words are searched, and the answer names the pages."""

    def steps(self, request: Json) -> tuple[int, Sequence[ScriptedTurn]]:
        """The model's answer to a request."""
        messages = request.get("messages") or [{}]
        question = next((str(one.get("content")) for one in reversed(messages) if one.get("role") == "user"), "")
        if any(re.search(one.when, question, re.IGNORECASE) for one in self.conversations):
            return super().steps(request)
        if messages[-1].get("role") != "tool":
            call = ScriptedCall(name="web_search", arguments={"query": question[:_LONGEST_QUERY], "num_results": 3})
            return 0, [ScriptedTurn(reasoning="I should look that up.", calls=(call,))]
        found = list(dict.fromkeys(_URL.findall(str(messages[-1].get("content")))))
        pages = "\n".join(f"- {url}" for url in found[:2]) or "- nothing"
        return 1, [ScriptedTurn(text=_FOUND.format(pages=pages))]


def search_anything(request: Json) -> Json:
    """The demo's scripted search, which makes up two pages for words that it does not know."""
    answer = search_answer(request)
    if not answer["organic"]:
        words = str(request.get("q", ""))
        links = {"Encyclopedia": "https://pages.example/1", "News": "https://news.example/2"}
        answer["organic"] = [
            {"title": f"{kind}: {words}", "link": link, "snippet": f"A page about {words}."}
            for kind, link in links.items()
        ]
    return answer


def main(*, port: int) -> None:
    """Serve until a signal, such as Ctrl-C."""
    asyncio.run(_serve(port))


async def _serve(port: int) -> None:
    script = Searching(conversations=DEMO.conversations[:1], pace=_PACE)
    mock = MockUpstream(script, search_seconds=_SEARCH_SECONDS, answer_search=search_anything)
    async with serving(mock, lifespan="off") as mock_url:
        loaded = configuration.parse(_CONFIG.format(mock=mock_url), {})
        log.configure(loaded.config.telemetry)
        async with serving(create_app(loaded), lifespan="on", port=port) as url:
            stopped = asyncio.Event()
            for number in (signal.SIGINT, signal.SIGTERM):  # instead of the servers' own handlers
                asyncio.get_running_loop().add_signal_handler(number, stopped.set)
            sys.stdout.write(f"toolproxy demo: chat at {url}/chat, requests at {url}/debug; Ctrl-C ends it\n")
            sys.stdout.flush()
            await stopped.wait()
