"""The debug pages over real sockets, and in a real browser."""

import asyncio
import re
import subprocess
from base64 import b64encode
from hashlib import sha256

import httpx
import openai
import pytest

from tests.browser import CHROMIUM
from tests.fakes import FakeUpstream, Reply, chunk, stream, streamed, whole
from tests.serving import CONFIG, proxy_of

CLIENTS = "clients: [{name: boss, key: boss-key, admin: true}, {name: app, key: app-key}]"
ANY_MODEL = "  '*': {{upstream: up}}\n"
SEARCH = [("c1", "web_search", {"query": "one"}), ("c2", "web_search", {"query": "two"})]


def bearer(key):
    return {"authorization": f"Bearer {key}"}


async def get(url, path="/debug", **headers):
    async with httpx.AsyncClient() as client:
        return await client.get(
            f"{url}{path}", headers={name.replace("_", "-"): value for name, value in headers.items()}
        )


async def ask(sdk, url, *, request_id, key="app-key", **body):
    body = {"model": "m", "messages": [{"role": "user", "content": "a question"}], **body}
    async with sdk(url, api_key=key) as client:
        await client.chat.completions.create(**body, extra_headers={"x-request-id": request_id})


async def test_an_administrator_sees_the_last_requests_and_one_as_a_waterfall(sdk):
    upstream = FakeUpstream([whole(calls=SEARCH), whole("Found")])
    async with proxy_of(upstream, more=CLIENTS) as url:
        await ask(sdk, url, request_id="asked-1")
        listed = await get(url, **bearer("boss-key"))
        page = await get(url, "/debug/requests/asked-1", **bearer("boss-key"))
        remembered = (await get(url, accept="application/json", **bearer("boss-key"))).json()["requests"]
        data = (await get(url, "/debug/requests/asked-1", accept="application/json", **bearer("boss-key"))).json()
    assert [story["request_id"] for story in remembered] == ["asked-1"]  # not those for these pages
    assert 'href="/debug/requests/asked-1"' in listed.text
    assert [page.text.count(f'class="{kind}"></rect>') for kind in ("turn", "tool")] == [2, 2]
    assert [step["kind"] for step in data["steps"]] == ["turn", "tool", "tool", "turn"]
    assert [step.get("argument_bytes") for step in data["steps"]] == [None, 15, 15, None]
    assert (data["client"], data["model"], data["turns"], data["tool_calls"], data["stop"]) == (
        "app",
        "m",
        2,
        2,
        "answer",
    )
    assert data["prompt_tokens"] == 20
    assert "a question" not in page.text + listed.text + str(data)


async def test_what_is_normal_is_not_marked_as_bad():
    busy = Reply([b'{"error": {"message": "busy", "code": "1305"}}'], status=429)
    config = CONFIG.replace("retries: 0", "retries: 1")
    body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "a question"}]}
    async with (
        proxy_of(FakeUpstream([streamed("Hi"), busy, streamed("Hi")]), config=config) as url,
        httpx.AsyncClient() as client,
    ):
        for name in ("smooth", "retried"):
            await client.post(f"{url}/v1/chat/completions", json=body, headers={"x-request-id": name})
        smooth, retried = [(await get(url, f"/debug/requests/{name}")).text for name in ("smooth", "retried")]
    marks = [re.findall(r'class="(note[a-z ]*)"><title>([a-z_.]+)', page) for page in (smooth, retried)]
    assert marks == [[("note", "response.started")], [("note bad", "upstream.retried"), ("note", "response.started")]]
    assert re.findall(r'<strong class="bad">([a-z_.]+)', smooth + retried) == ["upstream.retried"]


async def test_the_pages_permit_nothing_but_their_own_style_and_script(sdk):
    async with proxy_of(FakeUpstream([whole("Hi")])) as url:
        await ask(sdk, url, request_id="r")
        page = await get(url)
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "unsafe" not in page.headers["content-security-policy"]
    assert page.headers["cache-control"] == "no-store"
    (script,) = re.findall(r"<script>(.*?)</script>", page.text, re.DOTALL)
    assert b64encode(sha256(script.encode()).digest()).decode() in page.headers["content-security-policy"]
    assert not re.search(r"(src|href)=\"(?!/debug|/chat|/\"|data:image/svg)", page.text)


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        (bearer("app-key"), 403, "admin_only"),
        (bearer("wrong"), 401, "invalid_api_key"),
        ({}, 401, "invalid_api_key"),
        ({"authorization": "Basic " + b64encode(b"any:app-key").decode()}, 403, "admin_only"),
        ({"authorization": "Basic " + b64encode(b"boss-key").decode()}, 401, "invalid_api_key"),
        ({"authorization": "Basic /w=="}, 401, "invalid_api_key"),
        ({"authorization": "Basic ====="}, 401, "invalid_api_key"),
    ],
)
async def test_nobody_else_may_read_them(headers, status, code):
    async with proxy_of(FakeUpstream([whole("Hi")]), more=CLIENTS) as url:
        for path in ("/debug", "/debug/requests/x"):
            refused = await get(url, path, **headers)
            assert (refused.status_code, refused.json()["error"]["code"]) == (status, code)


async def test_a_browser_is_asked_for_a_key_and_sends_it_as_a_password():
    async with proxy_of(FakeUpstream([whole("Hi")]), more=CLIENTS) as url:
        asked = await get(url)
        assert asked.headers["www-authenticate"].startswith("Basic ")
        password = b64encode(b"anything:boss-key").decode()
        assert (await get(url, authorization=f"Basic {password}")).status_code == 200
        elsewhere = await get(url, "/v1/models", authorization=f"Basic {password}")
        assert (elsewhere.status_code, elsewhere.headers["www-authenticate"]) == (401, "Bearer")


async def test_without_clients_whoever_sits_at_the_machine_may_read_them():
    async with proxy_of(FakeUpstream([whole("Hi")])) as url:
        assert (await get(url)).status_code == 200
        assert (await get(url, host="evil.example")).status_code == 403  # a page that has rebound its name to us
        assert (await get(url, x_forwarded_for="203.0.113.5")).status_code == 403  # whoever is behind another proxy


@pytest.mark.parametrize("more", ["server: {{allow_anonymous: true}}", "clients: [{{name: app, key: app-key}}]"])
async def test_where_nobody_may_read_them_there_are_none(more):
    async with proxy_of(FakeUpstream([whole("Hi")]), more=more.format()) as url:
        assert (await get(url, **bearer("app-key"))).status_code == 404


async def test_a_request_that_is_not_remembered_is_404():
    async with proxy_of(FakeUpstream([whole("Hi")])) as url:
        assert (await get(url, "/debug/requests/never-was")).status_code == 404


async def test_a_request_that_is_open_is_shown_as_far_as_it_has_come(sdk, upstream):
    import asyncio  # noqa: PLC0415

    go_on = asyncio.Event()
    upstream.replies = [Reply([go_on, *whole("Late").body])]
    async with proxy_of(upstream) as url, asyncio.TaskGroup() as group:
        asking = group.create_task(ask(sdk, url, request_id="slow", key="x"))
        await upstream.asked.wait()
        seen = (await get(url, "/debug/requests/slow", accept="application/json")).json()
        page = await get(url, "/debug/requests/slow")
        go_on.set()
        await asking
    assert (seen["seconds"], seen["steps"][0]["outcome"]) == (None, None)
    assert page.status_code == 200


HOSTILE = "</title><script>document.title='pwned'</script><img src=x onerror=alert(1)>\"'"


async def test_whatever_was_sent_in_comes_out_escaped(sdk):
    upstream = FakeUpstream([Reply([b'{"error": {"message": "no", "code": "<b>code</b>"}}'], status=400)])
    config = "upstreams: {{up: {{base_url: '{upstream}/v1', api_key: k}}}}\nmodels: {{'*': {{upstream: up}}}}\n{more}"
    async with proxy_of(upstream, config=config) as url:
        with pytest.raises(openai.BadRequestError):
            await ask(sdk, url, request_id="r", model=HOSTILE)
        await get(url, "/v1/<script>x</script>")
        pages = [(await get(url)).text, (await get(url, "/debug/requests/r")).text]
    for page in pages:
        assert page.count("<script") == 1  # the page's own
        assert "<img" not in page
        assert "<b>" not in page
    assert "&lt;script&gt;" in pages[0]
    assert "upstream_error" in pages[1]  # a code that is no word is not shown


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("client=app", ["searched"]),
        ("model=m&outcome=ok", ["plain", "searched"]),
        ("tool=web_search", ["searched"]),
        ("outcome=error", ["missing"]),
        ("outcome=left", []),
        ("client=&model=&outcome=&tool=", ["missing", "plain", "searched"]),
    ],
)
async def test_the_list_can_be_filtered(sdk, query, expected):
    upstream = FakeUpstream([whole(calls=SEARCH), whole("Found"), whole("Hi")])
    async with proxy_of(upstream, more=CLIENTS) as url:
        await ask(sdk, url, request_id="searched")
        await ask(sdk, url, request_id="plain", key="boss-key")
        with pytest.raises(openai.NotFoundError):
            await ask(sdk, url, request_id="missing", key="boss-key", model="nope")
        page = await get(url, f"/debug?{query}", **bearer("boss-key"))
        data = (await get(url, f"/debug?{query}&format=json", **bearer("boss-key"))).json()
    assert [record["request_id"] for record in data["requests"]] == expected
    assert re.findall(r'href="/debug/requests/([a-z]+)"', page.text) == expected


async def test_a_page_that_the_browser_has_is_not_sent_again(sdk):
    async with proxy_of(FakeUpstream([whole("Hi")])) as url:
        await ask(sdk, url, request_id="r", key="x")
        first = await get(url)
        again = await get(url, if_none_match=first.headers["etag"])
        await ask(sdk, url, request_id="s", key="x")
        changed = await get(url, if_none_match=first.headers["etag"])
    assert (again.status_code, again.content, changed.status_code) == (304, b"", 200)


@pytest.mark.parametrize("content", ["true", "false"])
async def test_what_was_said_is_shown_as_text_where_it_is_kept(sdk, content):
    upstream = FakeUpstream([whole(calls=SEARCH[:1]), whole("Found")])
    more = f"{CLIENTS}\ntelemetry: {{log_content: {content}}}"
    async with proxy_of(upstream, more=more.replace("{", "{{").replace("}", "}}").format()) as url:
        await ask(sdk, url, request_id="r")
        page = (await get(url, "/debug/requests/r", **bearer("boss-key"))).text
    if content == "true":
        assert "web_search “one”" in page
        assert '<span class="role">user</span><pre tabindex="0">a question</pre>' in page
    else:
        assert "a question" not in page
        assert "telemetry: {log_content: true}" in page


@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium here")
async def test_a_real_browser_draws_the_waterfall_and_runs_nothing(sdk, tmp_path):
    import asyncio  # noqa: PLC0415

    upstream = FakeUpstream([whole(calls=SEARCH), whole("Found")])
    config = "upstreams: {{up: {{base_url: '{upstream}/v1', api_key: k}}}}\nmodels: {{'*': {{upstream: up}}}}\n"
    config += "tools: {{web_search: {{type: serper, api_key: s, base_url: '{upstream}'}}}}\n{more}"
    async with proxy_of(upstream, config=config) as url:
        await ask(sdk, url, request_id="seen", model=HOSTILE, key="x")
        dom, said = await asyncio.to_thread(browse, f"{url}/debug/requests/seen", tmp_path)
        listed, _ = await asyncio.to_thread(browse, f"{url}/debug", tmp_path)
    assert "<title>Request seen - toolproxy</title>" in dom
    assert len(re.findall(r"<rect [^>]*class=\"(?:turn|tool)\"></rect>", dom)) == 4
    assert "Refused" not in said  # the style is the one that the policy permits
    assert "violates" not in said
    assert 'href="/debug/requests/seen"' in listed
    assert "pwned" not in re.findall("<title>(.*?)</title>", dom + listed)


def browse(url, directory):
    """The page as the browser understood it, and what it complained of."""
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--enable-logging=stderr"]
    command = [
        CHROMIUM,
        *flags,
        f"--user-data-dir={directory}",
        f"--screenshot={directory}/page.png",
        "--dump-dom",
        url,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout, done.stderr


async def test_requests_that_only_list_the_models_are_left_out_of_the_page_and_not_of_its_json(sdk):
    async with proxy_of(FakeUpstream([whole("Hi")])) as url:
        await ask(sdk, url, request_id="asked")
        await get(url, "/v1/models", x_request_id="listed")
        await get(url, "/v1/models/nobody", x_request_id="failed")
        page, data = await get(url), (await get(url, accept="application/json")).json()
    assert re.findall(r'href="/debug/requests/(\w+)"', page.text) == ["failed", "asked"]
    assert [record["request_id"] for record in data["requests"]] == ["failed", "listed", "asked"]


async def test_an_answer_that_its_client_has_stopped_is_drawn_as_left_with_its_turn():
    is_open = asyncio.Event()
    upstream = FakeUpstream([stream(chunk({"content": "Hi"}), is_open)])
    body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "a question"}]}
    async with proxy_of(upstream) as url, httpx.AsyncClient() as client:
        headers = {"x-request-id": "left"}
        async with client.stream("POST", f"{url}/v1/chat/completions", json=body, headers=headers) as response:
            await anext(response.aiter_lines())
        await upstream.left.wait()
        page = ""
        while "499" not in page:
            page = (await get(url, "/debug/requests/left")).text
        is_open.set()
    assert 'class="left"></rect>' in page
    assert '<span class="left"> abandoned</span>' in page
    assert "<dt>turns</dt><dd>1</dd>" in page
    assert 'class="bad"' not in page


@pytest.mark.parametrize(("more", "has_chat"), [("", True), ("server: {chat_page: false}", False)])
async def test_the_pages_lead_to_the_chat_page_where_there_is_one(sdk, more, has_chat):
    async with proxy_of(FakeUpstream([whole("Hi")]), more=more) as url:
        await ask(sdk, url, request_id="r")
        pages = [(await get(url, path)).text for path in ("/debug", "/debug/requests/r", "/debug/usage")]
    assert ['href="/chat"' in page for page in pages] == [has_chat] * 3
