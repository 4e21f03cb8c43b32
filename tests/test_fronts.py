"""Behind real nginx, HAProxy and Caddy, as deploy/ configures them: nothing is held back, lost or dressed up."""

import asyncio
import statistics
import time
from contextlib import suppress

import httpx
import openai
import orjson
import pytest

from proxy.api.middleware.admission import Lifecycle
from tests.fakes import FakeUpstream, Reply, chunk, stream, streamed, whole
from tests.fronts import caddy, found, haproxy, nginx
from tests.rolling import CLIENTS, STREAMED, WHOLE, Load, two_replicas
from tests.server.test_protocol import AMBIGUOUS, BODY, answers, connected, head, post, said
from tests.serving import proxy_of

ASK = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
FRONTS = pytest.mark.parametrize(
    "front", [pytest.param(front, marks=found(front.__name__)) for front in (nginx, haproxy, caddy)]
)
MORE = """
clients: [{name: c, key: client-key}]
server: {max_body_bytes: 100000}
"""


@FRONTS
@pytest.mark.parametrize("path", ["relayed", "in the loop"])
async def test_no_event_of_a_stream_is_held_back(tmp_path, sdk, front, path):
    may_be_written = [asyncio.Event() for _ in range(8)]
    words = [part for gate in may_be_written for part in (gate, chunk({"content": "word"}))]
    upstream = FakeUpstream([stream(*words, chunk({}, "stop"))])
    upstream.replies = [
        *([streamed(calls=[("c", "web_search", {})])] if path == "in the loop" else []),
        *upstream.replies,
    ]
    headers = {"x-server-tools": "none" if path == "relayed" else "all"}
    async with proxy_of(upstream) as direct, front(tmp_path, direct) as url, sdk(url) as client:
        may_be_written[0].set()
        lags, began = [], time.monotonic()
        async for event in await client.chat.completions.create(**ASK, stream=True, extra_headers=headers):
            if event.choices[0].delta.content:
                lags.append(time.monotonic() - began)
                if len(lags) < len(may_be_written):
                    may_be_written[len(lags)].set()
                began = time.monotonic()
    assert len(lags) == len(may_be_written)
    assert statistics.median(lags) < 0.1  # Nagle's algorithm and delayed ACKs cost 0.2 s


@FRONTS
@pytest.mark.parametrize("moment", ["whole", "before a word", "in mid stream"])
async def test_a_client_that_leaves_ends_its_upstream_call(tmp_path, sdk, front, moment):
    never = asyncio.Event()
    begun = [chunk({"content": "One"})] if moment == "in mid stream" else []
    upstream = FakeUpstream([Reply([never]) if moment == "whole" else stream(*begun, never)])
    async with proxy_of(upstream) as direct, front(tmp_path, direct) as url:
        async with sdk(url) as client:
            asking = asyncio.ensure_future(client.chat.completions.create(**ASK, stream=moment != "whole"))
            await upstream.asked.wait()
            if begun:
                await anext(aiter(await asking))
            asking.cancel()
        async with asyncio.timeout(1):
            await upstream.left.wait()
    assert len(upstream.requests) == 1  # nothing is tried again for a client that has left


@FRONTS
async def test_errors_come_as_the_proxy_wrote_them_and_the_connection_goes_on(tmp_path, front):
    upstream = FakeUpstream([whole("Hi")])
    good, bad = {"authorization": "Bearer client-key"}, {"authorization": "Bearer other"}

    async def large():
        for _ in range(200):
            yield b"x" * 10_000

    async with (
        proxy_of(upstream, more=MORE) as direct,
        front(tmp_path, direct) as url,
        httpx.AsyncClient(base_url=f"{url}/v1", headers=good, timeout=10) as client,
    ):
        for _ in range(3):
            for status, code, ask in (
                (401, "invalid_api_key", lambda: client.post("/chat/completions", json=ASK, headers=bad)),
                (405, "method_not_allowed", lambda: client.put("/chat/completions", content=b"x" * 50_000)),
                (404, "not_found", lambda: client.post(f"{url}/nowhere", content=b"x" * 50_000)),
                (413, "request_too_large", lambda: client.post("/chat/completions", content=b"x" * 2_000_000)),
                (413, "request_too_large", lambda: client.post("/chat/completions", content=large())),
                (400, "invalid_json", lambda: client.post("/chat/completions", content=b"{")),
            ):
                answer = await ask()
                assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
                assert "x-request-id" in answer.headers
                assert (await client.post("/chat/completions", json=ASK)).status_code == 200


async def half_said(url, request_bytes):
    """What comes of bytes that nothing follows."""
    async with asyncio.timeout(10), connected(url) as (reader, writer):
        writer.write(request_bytes)
        writer.write_eof()
        with suppress(ConnectionError):
            return await reader.read()


@FRONTS
async def test_what_two_parsers_could_read_in_two_ways_reaches_no_upstream_and_spoils_no_connection(tmp_path, front):
    upstream = FakeUpstream([whole("Hi")])
    async with proxy_of(upstream) as direct, front(tmp_path, direct) as url:
        await asyncio.gather(*(half_said(url, request_bytes) for request_bytes in AMBIGUOUS.values()))
        assert upstream.heads == []
        found = await asyncio.gather(*(said(url, post("connection: close")) for _ in AMBIGUOUS))
    assert {status for raw in found for (status, _, _) in answers(raw)} == {200}
    assert len(upstream.heads) == len(AMBIGUOUS)


@found("nginx")
async def test_a_body_that_nginx_itself_finds_too_large_is_refused_in_openais_shape(tmp_path):
    async with nginx(tmp_path, "http://127.0.0.1:1") as url:
        ((status, _, body),) = answers(await half_said(url, head("content-length: 40000000", "connection: close")))
    assert (status, orjson.loads(body)["error"]["code"]) == (413, "request_too_large")


@FRONTS
async def test_what_is_for_operators_stays_inside(tmp_path, front):
    async with proxy_of(FakeUpstream()) as direct, front(tmp_path, direct) as url, httpx.AsyncClient() as client:
        for path in ("/metrics", "/readyz", "/%72eadyz", "/debug", "/deb%75g/requests/x"):
            answer = await client.get(url + path)
            assert (answer.status_code, "x-request-id" in answer.headers) == (404, False)
        for path in ("/metrics%0a", "/readyz%0A", "/debug%0a"):  # other paths to a front, and none to the proxy
            assert (await client.get(url + path)).status_code == 404
        assert (await client.get(f"{url}/healthz")).status_code == 200


@FRONTS
async def test_that_the_proxy_is_not_there_is_said_in_openais_shape(tmp_path, sdk, front):
    async with front(tmp_path, "http://127.0.0.1:1") as url, sdk(url) as client:
        with pytest.raises(openai.InternalServerError) as raised:
            await client.chat.completions.create(**ASK)
    assert raised.value.body["message"] == "The proxy is not available."


@pytest.mark.parametrize("front", [pytest.param(front, marks=found(front.__name__)) for front in (nginx, haproxy)])
async def test_what_a_replica_that_stops_refuses_the_other_one_gets(tmp_path, front):
    lifecycle, upstream = Lifecycle(), FakeUpstream([whole("Hi")])
    async with (
        proxy_of(upstream, lifecycle=lifecycle) as stopping,
        proxy_of(upstream) as going_on,
        front(tmp_path, stopping, going_on) as url,
    ):
        lifecycle.draining = lifecycle.refuses_forwarded = True
        asked = (
            said(url, head("connection: close", f"content-length: {len(BODY)}"), BODY, seconds=0.02) for _ in range(10)
        )
        found = [answers(raw) for raw in await asyncio.gather(*asked)]
    assert [status for ((status, _, _),) in found] == [200] * 10


@FRONTS
async def test_two_replicas_are_restarted_in_turn_under_load_and_every_answer_is_complete(tmp_path, front):
    async with two_replicas(tmp_path) as replicas, front(tmp_path, *(replica.url for replica in replicas)) as url:
        async with Load(url, (*WHOLE, *STREAMED)).going_on() as load:
            for replica in replicas:
                await replica.restart()
        assert load.lost == {}
        assert load.outcomes["complete"] > 10 * CLIENTS
