"""What the composition root chooses."""

import io

import httpx
import openai
import orjson
import pytest

from proxy.api.error_shape import ErrorShape
from proxy.api.messages.errors import MESSAGES_ERRORS
from proxy.app.application import create_app
from proxy.app.configuration import parse
from proxy.app.routes import error_shape
from proxy.config.model import TelemetryConfig
from proxy.telemetry import log
from tests.fakes import streamed, whole
from tests.serving import CONFIG, proxy_of


@pytest.mark.parametrize("chosen", ["auto", "httpx"])
async def test_every_transport_carries_an_answer_whole_and_streamed(upstream, sdk, chosen):
    upstream.replies = [whole("Hello there."), streamed("Hello there.")]
    config = CONFIG.replace("retries: 0", f"retries: 0, transport: {chosen}")
    question = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "tool_choice": "none"}
    async with proxy_of(upstream, config=config) as url, sdk(url) as client:
        answer = await client.chat.completions.create(**question)
        assert answer.choices[0].message.content == "Hello there."
        stream = await client.chat.completions.create(**question, stream=True)
        parts = [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]
        assert "".join(parts).split() == ["Hellothere."]


@pytest.mark.parametrize("tools", ["none", "auto"])  # handed through, and in the loop
async def test_why_an_upstream_cannot_be_reached_is_for_the_log_alone(upstream, sdk, tools):
    stream = io.StringIO()
    log.configure(TelemetryConfig(), stream=stream)
    question = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "tool_choice": tools}
    config = CONFIG.replace("{upstream}", "http://127.0.0.1:9").replace("retries: 0", "retries: 1")
    async with proxy_of(upstream, config=config) as url, sdk(url) as client:
        with pytest.raises(openai.InternalServerError, match="could not be reached") as failure:
            await client.chat.completions.create(**question)
    assert ":9" not in failure.value.response.text
    lines = [orjson.loads(line) for line in stream.getvalue().splitlines()]
    told = [line["event"] for line in lines if "ConnectionRefusedError: " in line.get("why", "")]
    assert told == ["upstream.retried", "relay.failed" if tools == "none" else "turn.failed"]


async def test_an_injected_transport_carries_every_request(upstream, sdk):
    asked = []

    def answer(request):
        asked.append(str(request.url))
        return httpx.Response(200, content=whole("From elsewhere.").body[0])

    async with proxy_of(upstream, transport=httpx.MockTransport(answer)) as url, sdk(url) as client:
        got = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "Hi"}])
    assert got.choices[0].message.content == "From elsewhere."
    assert upstream.requests == []
    assert asked[0].endswith("/v1/chat/completions")


async def test_a_websocket_is_refused_before_any_middleware_and_so_is_what_nobody_knows():
    app = create_app(parse(CONFIG.format(upstream="http://127.0.0.1:9", more=""), {}))
    sent = []

    async def send(message):
        sent.append(message)

    async def receive():
        return {"type": "websocket.connect"}

    await app({"type": "websocket", "path": "/healthz", "headers": []}, receive, send)
    assert sent == [{"type": "websocket.close"}]
    with pytest.raises(ValueError, match="'telnet' are not served"):
        await app({"type": "telnet"}, receive, send)


@pytest.mark.parametrize(
    ("path", "headers", "shape"),
    [
        ("/v1/messages", [], MESSAGES_ERRORS),
        ("/v1/messages/count_tokens", [], MESSAGES_ERRORS),
        ("/v1/messages2", [], ErrorShape()),
        ("/v1/models/m", [(b"anthropic-version", b"2023-06-01")], MESSAGES_ERRORS),
        ("/v1/models/m", [(b"user-agent", b"x")], ErrorShape()),
        ("/v1/responses", [(b"anthropic-version", b"2023-06-01")], ErrorShape()),
        ("", [], ErrorShape()),  # of a head that was not read so far
    ],
)
def test_an_error_has_the_shape_of_the_api_that_was_asked(path, headers, shape):
    assert error_shape(path, headers) == shape
