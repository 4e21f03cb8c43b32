"""Which pages of other origins may call from a browser; at the end, a real browser tries it."""

import asyncio
from contextlib import asynccontextmanager

import httpx
import orjson
import pytest

from proxy.api.middleware.admission import Lifecycle
from proxy.app.configuration import parse
from proxy.wire.errors import ConfigurationError
from tests.browser import CHROMIUM, browsing
from tests.fakes import FakeUpstream, chunk, stream, whole
from tests.serving import CONFIG, proxy_of, serving

PAGE = "https://app.example"
KEY = {"authorization": "Bearer client-key"}
ASK = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
CLIENTS = "clients: [{name: c, key: client-key, requests_per_minute: 3}]"
ALLOWED = f'{CLIENTS}\nserver: {{cors: {{origins: ["{PAGE}"], max_age: 60}}}}'
PREFLIGHT = {
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type,x-stainless-lang",
}


@asynccontextmanager
async def calling(upstream, more, **app):
    async with proxy_of(upstream, more=more, **app) as url, httpx.AsyncClient(base_url=url) as client:
        yield client


async def test_a_preflight_needs_no_key_and_is_answered_for_configured_origins_only(upstream):
    async with calling(upstream, ALLOWED) as client:
        asked = await client.options("/v1/chat/completions", headers={"origin": PAGE, **PREFLIGHT})
        unusual = {**PREFLIGHT, "access-control-request-method": "BREW"}
        refused = await client.options("/v1/chat/completions", headers={"origin": PAGE, **unusual})
    assert asked.status_code == 200
    assert asked.headers["access-control-allow-origin"] == PAGE
    assert asked.headers["access-control-allow-headers"] == PREFLIGHT["access-control-request-headers"]
    assert {"POST", "GET", "DELETE"} <= set(asked.headers["access-control-allow-methods"].split(", "))
    assert asked.headers["access-control-max-age"] == "60"
    assert "access-control-allow-credentials" not in asked.headers
    assert "x-request-id" in asked.headers
    assert refused.status_code == 400
    assert (refused.headers["content-type"], "x-request-id" in refused.headers) == ("application/json", True)
    assert refused.json()["error"] == {
        "message": "Disallowed CORS method: server.cors does not permit it.",
        "type": "invalid_request_error",
        "param": None,
        "code": "invalid_request",
    }


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/embeddings", "/healthz", "/nowhere"])
@pytest.mark.parametrize("more", ["", CLIENTS, ALLOWED, f'server: {{cors: {{origins: ["{PAGE}"]}}}}'])
async def test_the_preflight_of_an_origin_that_is_not_listed_has_one_refusal(upstream, more, path):
    async with calling(upstream, more) as client:
        refused = await client.options(path, headers={"origin": "https://b.example", **PREFLIGHT})
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "origin_not_allowed")
    assert "'https://b.example' may not call this proxy: server.cors.origins" in refused.json()["error"]["message"]
    assert "access-control-allow-origin" not in refused.headers
    assert "x-request-id" in refused.headers


TEXT = {"content-type": "text/plain"}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"origin": PAGE, **TEXT}, 403),  # a browser sends this without a preflight
        ({"origin": "null", **TEXT}, 403),
        ({"origin": PAGE, "content-type": "application/x-www-form-urlencoded"}, 403),
        ({"origin": "http://evil.example:8080", "host": "evil.example:8080"}, 403),  # DNS rebinding
        ({"origin": PAGE}, 200),  # of JSON a browser asks first, and is not permitted
        ({"origin": "http://localhost:8080", "host": "localhost:8080", **TEXT}, 200),  # our own chat page
        (TEXT, 200),  # no browser
    ],
)
async def test_without_keys_no_page_of_another_origin_can_spend_anything(upstream, headers, status):
    upstream.replies = [whole("Hi")]
    async with calling(upstream, "") as client:
        answer = await client.post(
            "/v1/chat/completions", content=orjson.dumps(ASK), headers={"content-type": "application/json", **headers}
        )
        assert (answer.status_code, len(upstream.bodies)) == (status, int(status == 200))
        if status == 403:
            assert answer.json()["error"]["code"] == "origin_not_allowed"
        assert (await client.get("/v1/models", headers=headers)).status_code == 200


async def test_without_keys_the_origins_of_the_configuration_may_call(upstream):
    upstream.replies = [whole("Hi")]
    async with calling(upstream, f'server: {{cors: {{origins: ["{PAGE}"]}}}}') as client:
        for origin, status in ((PAGE, 200), ("https://b.example", 403)):
            answer = await client.post(
                "/v1/chat/completions", content=orjson.dumps(ASK), headers={"origin": origin, **TEXT}
            )
            assert answer.status_code == status


async def test_a_page_can_read_answers_and_errors_alike(upstream):
    upstream.replies = [whole("Hi")]
    lifecycle = Lifecycle()
    async with calling(upstream, ALLOWED, lifecycle=lifecycle) as client:

        async def asked(headers, path="/v1/chat/completions"):
            return await client.post(path, json=ASK, headers={"origin": PAGE, **headers})

        got = [await asked({}), await asked(KEY, "/nowhere"), *[await asked(KEY) for _ in range(3)]]
        lifecycle.draining = True
        got.append(await asked(KEY))
    assert [answer.status_code for answer in got] == [401, 404, 200, 200, 429, 503]
    for answer in got:
        assert answer.headers["access-control-allow-origin"] == PAGE
        assert answer.headers["vary"] == "Origin"
    exposed = got[0].headers["access-control-expose-headers"].split(", ")
    ours = {name for answer in got for name in answer.headers if name.startswith(("x-", "retry", "request"))}
    assert len(ours) > 6
    assert ours - {"x-content-type-options"} <= set(exposed)


async def test_an_upstream_has_no_say_in_which_pages_may_read_its_answers(upstream):
    reply = whole("Hi")
    upstream.replies = [type(reply)(reply.body, headers=[(b"access-control-allow-origin", b"*")])]
    async with calling(upstream, CLIENTS) as client:
        answers = [
            await client.post(path, json={**ASK, "tool_choice": "none"}, headers={"origin": PAGE, **KEY})
            for path in ("/v1/embeddings", "/v1/chat/completions")
        ]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert [name for answer in answers for name in answer.headers if name.startswith("access-control")] == []


@pytest.mark.parametrize("origin", ["https://app.example/", "https://App.example", "app.example", "https://*.example"])
def test_an_origin_that_no_browser_sends_is_refused(origin):
    with pytest.raises(ConfigurationError, match=r"server\.cors\.origins.*must be an origin as browsers send it"):
        parse(CONFIG.format(upstream="http://up", more=f'server: {{cors: {{origins: ["{origin}"]}}}}'), {})


def test_a_star_is_accepted_and_warned_of():
    config = parse(CONFIG.format(upstream="http://up", more='server: {cors: {origins: ["*"]}}'), {})
    assert "server.cors.origins: '*' lets every web page call" in config.warnings[0]


SCRIPT = """<!doctype html><script>
const call = (key) => fetch("%s/v1/chat/completions", {method: "POST", body: JSON.stringify(
    {model: "m", stream: true, messages: [{role: "user", content: "Hi"}]}),
  headers: {"content-type": "application/json", authorization: "Bearer " + key}});
async function run() {
  const refused = await call("wrong-key");
  const seen = {status: refused.status, code: (await refused.json()).error.code, texts: []};
  const answer = await call("client-key");
  seen.id = answer.headers.get("x-request-id");
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let part; !(part = await reader.read()).done; ) {
    for (const [, text] of part.value.matchAll(/"content":"(word\\d)"/g)) {
      seen.texts.push(text);
      await fetch("/read", {method: "POST"});
    }
  }
  return seen;
}
run().catch((error) => ({error: error.name})).then((seen) => fetch("/seen", {method: "POST", body: JSON.stringify(seen)}));
</script>"""


class Page:
    """A web page, and the server that it reports to."""

    def __init__(self, words):
        self.html = ""
        self.seen = asyncio.Queue()
        self._words = iter(words)

    async def __call__(self, scope, receive, send):
        body = (await receive())["body"]
        if scope["path"] == "/read":
            next(self._words, asyncio.Event()).set()
        elif scope["path"] == "/seen":
            self.seen.put_nowait(orjson.loads(body))
        headers = [(b"content-type", b"text/html")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": self.html.encode()})


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here")
async def test_chromium_lets_a_configured_page_stream_and_another_one_not():
    gates = [asyncio.Event() for _ in range(3)]
    words = [part for at, gate in enumerate(gates) for part in (chunk({"content": f"word{at}"}), gate)]
    upstream, page = FakeUpstream([stream(*words, chunk({}, "stop"))]), Page(gates)
    async with serving(page, lifespan="off") as page_url, asyncio.timeout(60):
        more = f'clients: [{{name: c, key: client-key}}]\nserver: {{cors: {{origins: ["{page_url}"]}}}}'
        async with proxy_of(upstream, more=more) as url:
            page.html = SCRIPT % url
            async with browsing(page_url):
                seen = await page.seen.get()
            async with browsing(page_url.replace("127.0.0.1", "localhost")):
                assert await page.seen.get() == {"error": "TypeError"}
    assert (seen["status"], seen["code"]) == (401, "invalid_api_key")
    assert seen["texts"] == ["word0", "word1", "word2"]  # each was written when the one before had been read
    assert len(seen["id"]) == 32
