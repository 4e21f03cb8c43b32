"""No secret and no content is seen anywhere: canaries in every place that could show one, everything searched."""

import io
import logging
import re
from urllib.parse import quote

import httpx
import orjson
import pytest
import structlog

from proxy.app import create_app, origins_of
from proxy.app.configuration import parse
from proxy.commands import overview
from proxy.config.model import TelemetryConfig
from proxy.config.redaction import secrets_of
from proxy.telemetry import log
from proxy.tools.tool import Tool
from proxy.wire.errors import ConfigurationError
from tests.fakes import FakeUpstream, Reply, streamed, whole
from tests.serving import proxy_of, serving

CONFIG = """
clients:
  - {{name: app, key: canary-client-key}}
upstreams:
  up:
    base_url: {upstream}/v1
    api_key: "${{UP_KEY}}"
    profile: openai
    retries: 0
    headers: {{x-organisation: "${{UP_HEADER}}", x-proxy: "Basic ${{UP_HEADER}}2"}}
models:
  m: {{upstream: up}}
tools:
  web_search: {{type: serper, api_key: canary-tool-key, base_url: {upstream}}}
{more}
"""
UPSTREAM_KEY, UPSTREAM_HEADER = "canary-upstream-key", "canary-upstream-header"
ENVIRON = {"UP_KEY": UPSTREAM_KEY, "UP_HEADER": UPSTREAM_HEADER}
HEADERS = {
    "authorization": "Bearer canary-client-key",
    "cookie": "canary-cookie",
    "x-other": "canary-header",
    "user-agent": "canary-agent",
}
ASK = {"model": "m", "user": "canary-user", "messages": [{"role": "user", "content": "canary-content"}]}


@pytest.fixture(params=["json", "console"])
def lines(request):
    """Everything that is logged, at the level that logs most; secrets of the configuration are known."""
    stream = io.StringIO()
    config = parse(CONFIG.format(upstream="http://up", more=""), ENVIRON)
    telemetry = TelemetryConfig(log_level="debug", log_format=request.param)
    log.configure(telemetry, secrets=secrets_of(config), stream=stream)
    yield stream
    structlog.reset_defaults()
    logging.getLogger().handlers = []


async def broken(arguments):
    raise ValueError(f"canary-content in {arguments} with canary-upstream-key")


BROKEN = Tool(name="broken", description="", parameters={"type": "object"}, run=broken)
REPLIES = {
    "an answer": [whole("canary-content")],
    "a search": [whole(calls=[("c", "web_search", {"query": "canary-content"})]), whole("canary-content")],
    "a tool with a bug": [whole(calls=[("c", "broken", {"q": "canary-content"})]), whole("canary-content")],
    "arguments that do not fit": [whole(calls=[("c", "web_search", {"q": "canary-content"})]), whole("canary-content")],
    "an error that quotes the key": [Reply([b'{"error":{"message":"bad canary-upstream-key"}}'], status=401)],
    "an error that is nothing but the key": [
        Reply([orjson.dumps({"error": dict.fromkeys(("message", "type", "code", "param"), UPSTREAM_KEY)})], status=400)
    ],
    "an error that quotes headers of the operator's": [
        Reply(
            [b'{"error":{"message":"x-organisation: canary-upstream-header, Basic canary-upstream-header2"}}'],
            status=400,
        )
    ],
    "an error page": [Reply([b"<html>canary-upstream-key</html>"], status=500)],
    "nonsense": [Reply([b"canary-upstream-key"])],
    "half an answer": [Reply([b'{"canary-upstream-key"', None])],
    "an error in a stream": [
        Reply([b'data: {"error":{"message":"canary-upstream-key"}}\n\n'], content_type="text/event-stream")
    ],
    "a stream": [streamed("canary-content")],
}


@pytest.mark.parametrize("replies", REPLIES.values(), ids=REPLIES.keys())
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/embeddings"])
async def test_no_secret_and_no_content_is_logged_and_no_error_body_holds_a_secret(lines, replies, path):
    upstream = FakeUpstream(replies)
    config = CONFIG.replace("${{UP_KEY}}", UPSTREAM_KEY).replace("${{UP_HEADER}}", UPSTREAM_HEADER)
    async with proxy_of(upstream, config=config, tools=[BROKEN]) as url, httpx.AsyncClient(headers=HEADERS) as client:
        answer = ""
        for stream in (False, True):
            try:
                response = await client.post(url + path, json={**ASK, "input": "canary-content", "stream": stream})
                answer += response.text
            except httpx.RemoteProtocolError:
                assert path == "/v1/embeddings"
        answer += (await client.get(f"{url}/readyz")).text + (await client.get(f"{url}/v1/models")).text
        await client.post(url + path, content=b"canary-content")
        await client.post(url + path, json=ASK, headers={"authorization": "Bearer canary-wrong"})
        answer += (await client.get(f"{url}/nowhere", headers={"x-request-id": "canary-\x7f"})).text
    assert "canary" not in lines.getvalue()
    if path != "/v1/embeddings":  # there a success is handed through, whatever it says
        assert UPSTREAM_KEY not in answer
        assert UPSTREAM_HEADER not in answer
    assert "canary-client-key" not in answer
    assert "canary-tool-key" not in answer


async def test_a_bug_of_ours_is_told_by_its_type_and_place_and_not_in_its_own_words(lines, monkeypatch):
    def bug(*_, **__):
        raise KeyError("canary-content, canary-client-key")

    monkeypatch.setattr("proxy.api.access.make_offer", bug)
    async with proxy_of(FakeUpstream()) as url, httpx.AsyncClient() as client:
        response = await client.post(f"{url}/v1/chat/completions", json=ASK)
    assert response.status_code == 500
    assert "canary" not in lines.getvalue() + response.text
    assert "KeyError" in lines.getvalue()
    assert "test_secrets.py" in lines.getvalue()


SECRET = 'canary"\\/+%key'


def fail(logger):
    try:
        int(SECRET)
    except ValueError:
        logger.exception("x")


WAYS = {
    "as the event": lambda logger: logger.info(SECRET),
    "as a field": lambda logger: logger.info("x", field=SECRET),
    "deep inside": lambda logger: logger.info("x", field={"a": [{"b": f"<{SECRET}>"}]}),
    "as a key": lambda logger: logger.info("x", field={SECRET: 1}),
    "as bytes": lambda logger: logger.info("x", field=str(SECRET.encode())),
    "in a repr": lambda logger: logger.info("x", field=repr({"k": SECRET})),
    "in JSON": lambda logger: logger.info("x", field=orjson.dumps({"k": SECRET}).decode()),
    "in a URL": lambda logger: logger.info("x", field=f"https://a.example/?k={quote(SECRET, safe='')}"),
    "in an exception": fail,
    "by a library": lambda _: logging.getLogger("uvicorn.error").warning("with %s", SECRET),
}


@pytest.mark.parametrize("log_format", ["json", "console"])
@pytest.mark.parametrize("write", WAYS.values(), ids=WAYS.keys())
def test_a_secret_is_masked_however_it_has_come_into_a_line(log_format, write):
    stream = io.StringIO()
    log.configure(TelemetryConfig(log_format=log_format), secrets=[SECRET, "short"], stream=stream)
    write(structlog.get_logger())
    structlog.reset_defaults()
    logging.getLogger().handlers = []
    assert stream.getvalue()
    assert not re.search("canary|%key|25key", stream.getvalue())


def test_exceptions_are_told_with_their_causes_and_members():
    def failing():
        try:
            {}["canary"]
        except KeyError as exc:
            raise ExceptionGroup("canary", [ValueError("canary"), OSError("canary")]) from exc

    try:
        failing()
    except ExceptionGroup as exc:
        text = log.exception_without_message((type(exc), exc, exc.__traceback__))
    assert "canary" not in text
    for kind in ("ExceptionGroup", "ValueError", "OSError", "KeyError"):
        assert kind in text


def test_every_secret_of_a_configuration_is_known():
    text = """
clients: [{name: a, key: the-client-key}]
upstreams: {up: {base_url: "http://up", api_key: the-upstream-key}, own: {base_url: "http://up", api_key: "${AN_API_KEY}"}}
models: {m: {upstream: up}}
tools: {web_search: {type: serper, api_key: the-tool-key}}
"""
    config = parse(text, {"AN_API_KEY": "the-variable", "NO_SECRET": "x"})
    assert secrets_of(config) == {"the-client-key", "the-upstream-key", "the-tool-key", "the-variable"}


async def test_what_check_prints_and_what_a_fault_says_hold_no_secret(capsys):
    config = parse(CONFIG.format(upstream="http://up", more=""), ENVIRON)
    printed = "\n".join(overview.describe(config, origins_of(config)))
    for faulty in (
        "api_key: [[canary]]",
        "api_key: [canary-1, canary-1]",
        "base_url: 'http://canary@x', api_key: k",
        "api_key: 'canary key'",
    ):
        with pytest.raises(ConfigurationError) as refused:
            parse(
                f"upstreams: {{up: {{base_url: 'http://x', {faulty}}}}}".replace("base_url: 'http://x', base", "base"),
                {},
            )
        printed += str(refused.value)
    async with serving(create_app(config)) as url, httpx.AsyncClient() as client:
        printed += (await client.get(f"{url}/readyz")).text
    assert "canary" not in printed
