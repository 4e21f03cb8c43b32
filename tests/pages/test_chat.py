"""The chat page, and the demo that keeps running with it."""

import asyncio
import os
import re
import subprocess
import sys
from base64 import b64encode
from hashlib import sha256
from pathlib import Path

import httpx
import openai
import orjson
import pytest

from tests.browser import CHROMIUM, browsing
from tests.fakes import FakeUpstream, Reply, chunk, stream, streamed, turn
from tests.serving import CONFIG, proxy_of

ROOT = Path(__file__).parent.parent.parent
CLIENTS = "clients: [{name: a, key: the-key-of-a}]"


@pytest.mark.parametrize(
    ("more", "headers"),
    [
        (CLIENTS, {}),
        ("server: {chat_page: false}", {}),
        ("server: {allow_anonymous: true}", {}),
        ("", {"host": "rebound.example"}),
        ("", {"x-forwarded-for": "203.0.113.9"}),
    ],
)
async def test_the_page_is_not_there_unless_it_is_switched_on_or_the_machine_is_the_callers_own(more, headers):
    async with proxy_of(FakeUpstream([]), more=more) as url, httpx.AsyncClient() as client:
        answer = await client.get(f"{url}/chat", headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")


async def test_the_page_is_there_by_default_on_loopback_without_clients():
    async with proxy_of(FakeUpstream([])) as url, httpx.AsyncClient() as client:
        assert (await client.get(f"{url}/chat")).headers["content-type"] == "text/html; charset=utf-8"


async def test_the_page_is_open_to_all_and_permits_its_own_script_only():
    config = f"server: {{chat_page: true}}\n{CLIENTS}"
    async with proxy_of(FakeUpstream([]), more=config) as url, httpx.AsyncClient() as client:
        page = await client.get(f"{url}/chat")
        posted = await client.post(f"{url}/chat")
        models = await client.get(f"{url}/v1/models")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    scripts = re.findall(r"<script>(.*?)</script>", page.text, re.DOTALL)
    policy = page.headers["content-security-policy"]
    permitted = re.search(r"script-src ([^;]*);", policy)[1].split()
    assert permitted == [f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'" for script in scripts]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert [script for script in scripts if re.search("innerHTML|outerHTML|insertAdjacent", script)] == []
    assert (posted.status_code, models.status_code) == (405, 401)


def test_the_demo_keeps_running_and_searches_for_whatever_it_is_asked():
    command = [sys.executable, "-m", "proxy", "demo", "--serve", "--port", "0"]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ
    )
    try:
        url = re.search(r"chat at (http://[0-9.:]+)/chat", process.stdout.readline())[1]
        assert httpx.get(f"{url}/chat").status_code == 200
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0)
        question = [{"role": "user", "content": "Who invented the bicycle?"}]
        answer = client.chat.completions.create(model="glm-4.7", messages=question)
        requests = httpx.get(f"{url}/debug?format=json").json()["requests"]
    finally:
        process.terminate()
        process.communicate(timeout=20)
    (citation, *_) = answer.choices[0].message.annotations
    assert citation.url_citation.url in answer.choices[0].message.content
    assert answer.usage.server_tool_use["web_search_requests"] == 1
    assert [step["kind"] for step in requests[0]["steps"]] == ["turn", "tool", "turn"]


HOSTILE = "<img src=x onerror=\"document.title='pwned'\">"
SEARCH = [("c1", "web_search", {"query": HOSTILE})]
FOUND = {"organic": [{"title": f"Ferries {HOSTILE}", "link": "https://ferries.example/now", "snippet": "On time."}]}


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here")
async def test_a_person_types_a_key_and_a_question_and_sees_searches_sources_and_the_trace():
    upstream = FakeUpstream(
        [
            streamed(calls=SEARCH),
            streamed(f"Yes. {HOSTILE} https://ferries.example/now"),
            Reply([b"{}"], status=400),
            streamed("3.15."),
        ],
        search=Reply([orjson.dumps(FOUND)]),
    )
    config = f"server: {{chat_page: true}}\n{CLIENTS.replace('}', ', admin: true}')}"
    async with asyncio.timeout(60), proxy_of(upstream, more=config) as url, browsing(f"{url}/chat") as page:
        assert await page.evaluate("document.querySelectorAll('#model option').length") == 0
        await page.write("#key", "the-key-of-a", key="Enter")
        await page.until("document.querySelectorAll('#model option').length > 0")
        await page.write("#question", "Is the ferry running?", key="Enter")
        await page.until("document.querySelector('.about a')")
        shown = await page.evaluate("document.getElementById('talk').innerText")
        links = await page.evaluate("[...document.querySelectorAll('#talk a')].map((link) => link.href)")
        assert await page.evaluate("document.querySelectorAll('#talk img').length") == 0
        assert await page.evaluate("document.title") == "Chat - toolproxy"
        await page.write("#question", "And tomorrow?", key="Enter")
        await page.until("document.querySelector('.turn .bad')")
        said = [message["content"] for message in upstream.requests[-1]["messages"] if message["role"] == "user"]
        await page.evaluate("document.getElementById('new').click()")
        await page.evaluate("document.querySelector('.example').focus()")
        await page.evaluate("document.activeElement.click()")  # the example goes, and must not take the focus with it
        assert await page.evaluate("document.activeElement.id") == "question"
    assert "Is the ferry running?" in shown
    assert f"Searched for “{HOSTILE}”" in shown
    assert f"Yes.{HOSTILE}https://ferries.example/now".replace(" ", "") in shown.replace(" ", "")
    found, written, cited, trace = links
    assert found == written == cited == "https://ferries.example/now"
    assert trace.startswith(f"{url}/debug/requests/")
    assert said == ["Is the ferry running?", "And tomorrow?"]


MARKDOWN = f"""### Times

The **15:20** sails by main.py, see [the page](https://ferries.example/now), <{HOSTILE[1:-1]}> &amp; [no](javascript:alert(1)).

| From | Full |
|---|---:|
| 15:20 | 38 % |

- one ![picture](https://elsewhere.example/p.png)

```python
print("<b>")
```
"""


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here")
async def test_markdown_of_an_answer_is_shown_as_elements_in_the_order_of_events_and_survives_a_reload():
    upstream = FakeUpstream(
        [
            turn("Let me *check*.", thoughts="I should look.", calls=SEARCH),
            turn(MARKDOWN, thoughts="Now I know."),
        ],
        search=Reply([orjson.dumps(FOUND)]),
    )
    async with asyncio.timeout(60), proxy_of(upstream) as url, browsing(f"{url}/chat") as page:
        await page.until("document.querySelectorAll('#model option').length > 0")
        assert await page.evaluate("document.getElementById('key')") is None
        await page.write("#question", "Is the ferry running?", key="Enter")
        await page.until("document.querySelector('.about')")
        seen = set()
        for _ in range(2):
            shown = await page.evaluate("document.querySelector('.parts').innerHTML")
            parts = await page.evaluate("[...document.querySelector('.parts').children].map((part) => part.className)")
            links = await page.evaluate(
                "[...document.querySelectorAll('.answer a')].map(({href, target, rel}) => [href, target, rel])"
            )
            assert parts == ["thoughts", "answer", "steps", "thoughts", "answer"]
            assert "<p>Let me <em>check</em>.</p>" in shown
            assert "<h2>Times</h2>" in shown
            assert '<td style="text-align: right;">38 %</td>' in shown
            assert '<code>print("&lt;b&gt;")\n</code></pre>' in shown
            assert "[no](javascript:alert(1))" in shown
            assert links == [
                [f"https://{host}", "_blank", "noopener noreferrer"]
                for host in ("ferries.example/now", "elsewhere.example/p.png")
            ]
            assert await page.evaluate("document.querySelectorAll('#talk img, #talk script').length") == 0
            assert await page.evaluate("document.title") == "Chat - toolproxy"
            seen.add(shown)
            await page.reload()
        assert len(seen) == 1  # in pieces of a few letters, and at once
        await page.evaluate("document.getElementById('new').click()")
        await page.reload()
        assert await page.evaluate("document.querySelector('.turn')") is None


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here")
async def test_after_an_error_the_question_is_asked_again_with_a_button_and_the_trace_is_linked():
    upstream = FakeUpstream([Reply([b"{}"], status=400), turn("It runs.")])
    async with asyncio.timeout(60), proxy_of(upstream) as url, browsing(f"{url}/chat") as page:
        await page.until("document.querySelectorAll('#model option').length > 0")
        await page.write("#question", "Is the ferry running?", key="Enter")
        await page.until("document.querySelector('.turn .bad')")
        assert await page.evaluate("document.querySelector('.about a').pathname.startsWith('/debug/requests/')")
        await page.evaluate("document.querySelector('.about button').click()")
        await page.until("document.querySelector('.answer')?.innerText === 'It runs.'")
        await page.until("document.querySelector('.about')")
        assert await page.evaluate("document.querySelectorAll('.turn').length") == 1
        assert await page.evaluate("document.activeElement.id") == "question"
    assert [[message["content"] for message in request["messages"] if message["role"] == "user"]
            for request in upstream.requests] == [["Is the ferry running?"]] * 2  # fmt: skip


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here")
async def test_a_stopped_answer_stays_with_its_text_and_something_moves_until_then():
    is_open = asyncio.Event()
    upstream = FakeUpstream([stream(chunk({"content": "It ru"}), is_open)])
    async with asyncio.timeout(60), proxy_of(upstream) as url, browsing(f"{url}/chat") as page:
        await page.until("document.querySelectorAll('#model option').length > 0")
        await page.write("#question", "Is the ferry running?", key="Enter")
        await page.until("document.querySelector('.answer')")
        await page.until("document.querySelector('.now .seconds')?.textContent === '1 s'")
        moving = await page.evaluate("document.querySelector('.now').getAnimations({subtree: true}).length")
        await page.write("#question", "", key="Escape")
        await page.until("document.querySelector('.about')")
        about = await page.evaluate("[...document.querySelector('.about').children].map((one) => one.innerText)")
        text = await page.evaluate("document.querySelector('.answer').innerText")
        is_set = await page.evaluate("document.querySelector('.now')")
        is_open.set()
    assert (moving, text, is_set) == (1, "It ru", None)
    assert about[:4] == ["stopped", "Copy", "Try again", "trace"]


@pytest.mark.parametrize(
    ("more", "needs"),
    [
        ("server: {chat_page: true}", False),
        (f"server: {{chat_page: true}}\n{CLIENTS}", True),
        ("server: {chat_page: true}\n# api_key: from_client", True),
    ],
)
async def test_the_key_box_is_there_only_where_requests_take_a_key(more, needs):
    config = CONFIG.replace("upstream-secret", "from_client") if "from_client" in more else CONFIG
    async with proxy_of(FakeUpstream([]), more=more, config=config) as url, httpx.AsyncClient() as client:
        page = (await client.get(f"{url}/chat")).text
    assert ('id="key"' in page) is needs


async def test_browsers_get_an_icon():
    async with proxy_of(FakeUpstream([])) as url, httpx.AsyncClient() as client:
        icon = await client.get(f"{url}/favicon.ico")
        page = (await client.get(f"{url}/chat")).text
    assert (icon.status_code, icon.headers["content-type"]) == (200, "image/svg+xml")
    assert f'href="data:image/svg+xml;base64,{b64encode(icon.content).decode()}"' in page
