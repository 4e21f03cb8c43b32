"""Streams of every API while they run: early text, early searches, signs of life, clients that leave, and wrong ends."""

import asyncio

import httpx
import pytest

from tests.api.surfaces import RELAY_TOO, SEARCH, STREAMS, STREAMS_AND_RELAY, on, request
from tests.fakes import FakeClock, Reply, arguments_chunk, call_chunk, chunk, event, stream, turn
from tests.serving import CONFIG

FIRST = call_chunk(("a", "web_search", '{"query":"one"}'))
SECOND = call_chunk(("b", "web_search", '{"query":"two"}'), at=1)


def hanging(upstream):
    """Lets searches begin and never end; the event says that one has begun."""
    searching = asyncio.Event()

    def search(_):
        searching.set()
        return Reply([asyncio.Event()])

    upstream.search = search
    return searching


@STREAMS_AND_RELAY
async def test_text_is_shown_while_the_upstream_is_still_writing(surface):
    gate = asyncio.Event()
    async with surface.proxy(stream(chunk({"content": "early"}), gate, chunk({}, "stop"))) as client:
        async with asyncio.timeout(10):
            async for piece in client.read():
                if "early" in piece:
                    gate.set()  # the upstream goes on only now
    assert gate.is_set()


@STREAMS_AND_RELAY
async def test_a_silent_stream_is_kept_alive(surface):
    gate, received = asyncio.Event(), ""
    reply = stream(gate, chunk({"content": "late"}), chunk({}, "stop"))
    sign = "event: ping" if surface.kind == "messages" else ": keep-alive\n\n"
    async with surface.proxy(reply, more="server: {keepalive_seconds: 0.01}") as client:
        async for piece in client.read():
            received += piece
            if received.count(sign) > 1:
                gate.set()
    assert received.startswith(": keep-alive\n\n: keep-alive\n\n") or surface.kind == "messages"
    assert "late" in received
    assert received.rstrip().endswith('{"type":"message_stop"}' if surface.kind == "messages" else "data: [DONE]")


@STREAMS
async def test_a_search_starts_while_the_model_is_still_writing_the_next_call(surface):
    searching = asyncio.Event()

    def search(_):
        searching.set()
        return Reply([b"{}"])

    surface.upstream.search = search
    async with asyncio.timeout(10):
        answer = await surface.ask(stream(FIRST, searching, SECOND, chunk({}, "tool_calls")), turn("Done."))
    assert answer.text == "Done."
    assert [one["q"] for one in surface.upstream.searches] == ["one", "two"]
    assert [m["tool_call_id"] for m in surface.history() if m["role"] == "tool"] == ["a", "b"]


@on("chat-streamed")
async def test_a_tool_that_is_not_eager_waits_for_the_end_of_its_turn(surface):
    answer = await surface.ask(stream(FIRST, None), config=CONFIG.replace("aliases:", "eager: false, aliases:"))
    assert answer.error
    assert surface.upstream.searches == []


@STREAMS
@pytest.mark.parametrize("end", [None, chunk({}, "length")])
async def test_a_search_that_started_early_ends_when_its_turn_fails_or_is_cut_off(surface, end):
    searching = hanging(surface.upstream)
    async with surface.proxy(stream(FIRST, searching, end, done=end is not None)) as client, asyncio.timeout(10):
        await client.ask()
        await surface.upstream.left.wait()
    assert len(surface.upstream.requests) == 1


@STREAMS
async def test_what_started_in_a_turn_that_is_asked_for_again_is_run_anew(surface):
    searching = asyncio.Event()

    def search(_):
        searching.set()
        return Reply([asyncio.Event()] if len(surface.upstream.searches) == 1 else [b"{}"])

    surface.upstream.search = search
    replies = stream(FIRST, searching, None), stream(FIRST, chunk({}, "tool_calls")), turn("Done.")
    config = CONFIG.replace("retries: 0", "retries: 1")
    async with surface.proxy(*replies, config=config, clock=FakeClock()) as client, asyncio.timeout(10):
        assert (await client.ask()).text == "Done."
    assert len(surface.upstream.searches) == 2


@RELAY_TOO
async def test_a_client_that_leaves_ends_its_upstream_call(surface):
    first = [chunk({"content": "Hel"})] if surface.streaming else []
    kind = "text/event-stream" if surface.streaming else "application/json"
    async with surface.proxy(Reply([*first, asyncio.Event()], content_type=kind)) as client:
        await leave(client, surface.upstream.asked)
    assert len(surface.upstream.requests) == 1  # nothing is tried again for a client that has left


async def test_a_client_that_leaves_during_a_search_ends_the_search(surface):
    searching = hanging(surface.upstream)
    async with surface.proxy(turn(calls=[SEARCH]), turn("Nobody hears this")) as client:
        await leave(client, searching)
    assert len(surface.upstream.requests) == 1


async def leave(client, when, **words):
    """Ask, leave then, and wait until the fake upstream has noticed."""
    sent = request(client.surface.kind, stream=client.surface.streaming, **words)
    async with httpx.AsyncClient() as http:
        asking = asyncio.ensure_future(http.post(client.url + sent["path"], json=sent["body"], headers=sent["headers"]))
        await when.wait()
        asking.cancel()
        async with asyncio.timeout(5):
            await client.surface.upstream.left.wait()


# -- wrong ends --


@STREAMS_AND_RELAY
@pytest.mark.parametrize(
    "reply",
    [
        stream(chunk({"content": "Hel"}), done=False),
        stream(chunk({"content": "Hel"}), None),
        stream(chunk({"content": "Hel"}), b'event: error\ndata: {"error":{"message":"gone"}}\n\n', done=False),
        stream(chunk({"content": "Hel"}), b"data: {not json\n\n"),
        stream(chunk({"content": "Hel"}), b'data: {"error":{"code":400,"message":"x"},"choices":[{}]}\n\n'),
    ],
)
async def test_a_stream_that_ends_wrongly_ends_with_an_error_event(surface, reply):
    answer = await surface.ask(reply)
    assert (answer.status, "Hel" in answer.raw, bool(answer.error["message"])) == (200, True, True)


async def test_a_failure_before_anything_else_has_its_status_although_events_were_asked_for(surface):
    answer = await surface.ask(Reply([b'{"error":{"message":"bad"}}'], status=400), events="true")
    assert (answer.status, answer.error["message"]) == (400, "bad")


@STREAMS
async def test_a_failure_in_a_later_turn_of_a_stream_is_an_error_event(surface):
    answer = await surface.ask(turn("I'll search.", calls=[SEARCH]), Reply([b"{}"], status=500))
    assert (answer.status, answer.error["code"]) == (200, "upstream_error")
    assert "HTTP 500" in answer.error["message"]


@STREAMS
async def test_a_request_that_takes_too_long_ends_its_stream_with_an_error(surface):
    reply = stream(chunk({"content": "Hel"}), asyncio.Event())
    answer = await surface.ask(reply, more="limits: {max_duration: 0.2}")
    assert (answer.status, answer.error["code"]) == (200, "max_duration_exceeded")


@STREAMS_AND_RELAY
@pytest.mark.parametrize(
    "broken",
    [
        Reply([b"{}"], status=503),
        Reply([b"<html>"], content_type="text/html"),
        stream(),
        stream(b'data: {"error":{"message":"gone"}}\n\n', done=False),
        stream(None),
        stream(event({"choices": [{"index": 0, "delta": {}, "finish_reason": "network_error"}]})),
    ],
)
async def test_before_the_first_visible_byte_a_broken_stream_is_tried_again(surface, broken):
    config = CONFIG.replace("profile: openai, retries: 0", "profile: glm, retries: 1")
    async with surface.proxy(broken, turn("Fine."), config=config, clock=FakeClock()) as client:
        answer = await client.ask()
    assert (answer.text, len(surface.upstream.requests)) == ("Fine.", 2)


@STREAMS
async def test_in_a_loop_a_role_alone_is_nothing_visible_yet(surface):
    config = CONFIG.replace("retries: 0", "retries: 1")
    role = stream(chunk({"role": "assistant", "content": ""}), done=False)
    async with surface.proxy(role, turn("Fine."), config=config, clock=FakeClock()) as client:
        assert (await client.ask()).text == "Fine."


OPENING = call_chunk(("c", "web_search", ""))


@STREAMS
@pytest.mark.parametrize(
    "cut",
    [
        stream(OPENING, arguments_chunk('{"qu'), None),
        stream(OPENING, arguments_chunk('{"q')),
        stream(OPENING, arguments_chunk('{"query":"news"}'), done=False),
        stream(OPENING, arguments_chunk('{"query":"news"}', finish_reason="length")),
    ],
)
async def test_nothing_is_run_from_a_turn_that_was_cut_off(surface, cut):
    answer = await surface.ask(cut)
    assert surface.upstream.searches == []
    assert len(surface.upstream.requests) == 1
    assert answer.status == 502 if answer.error else answer.finish == "length"


# -- failures before the first byte --


@on("chat-whole", "relay-whole", "relay-streamed", "responses-streamed", "messages-streamed")
@pytest.mark.parametrize(
    ("reply", "status", "code", "message"),
    [
        (Reply([b"<html>Bad gateway</html>"], status=502, content_type="text/html"), 502, "upstream_error", "HTTP 502"),
        (Reply([b"<html>Welcome</html>"], content_type="text/html"), 502, "upstream_error", "not JSON"),
        (Reply([b'{"error":{"code":"1211","message":"no such model"}}'], status=404), 404, "model_not_found", "no such model"),
        (Reply([b'{"error":{"code":"1113","message":"no balance"}}'], status=429), 424, "upstream_quota_exceeded",
         "refuses the key or the account of config.yaml:3: HTTP 429: no balance"),
        (Reply([b'{"code":500,"msg":"broken","success":false}']), 502, "upstream_error", "broken"),
        (Reply([b'{"choices', None]), 502, "upstream_error", "broke off"),
        (Reply([b'{"error":{"message":"bad"}}'], status=400), 400, None, "bad"),
        (Reply([b'{"error":{"message":"slow down"}}'], status=429), 429, None, "slow down"),
    ],
)  # fmt: skip
async def test_an_upstream_failure_before_the_first_byte_has_its_line_of_the_error_table(
    surface, reply, status, code, message
):
    answer = await surface.ask(reply)
    assert (answer.status, answer.error.get("code")) == (status, code)
    assert message in answer.error["message"]
    if surface.kind != "messages":
        assert set(answer.error) == {"message", "type", "param", "code"}


async def test_an_upstream_that_is_down_is_a_502_and_the_next_request_works(surface):
    config = """
upstreams:
  up: {{base_url: "{upstream}/v1", api_key: k}}
  down: {{base_url: "http://127.0.0.1:9/v1", api_key: k, retries: 0}}
models: {{m: {{upstream: up}}, down: {{upstream: down}}}}
{more}
"""
    async with surface.proxy(turn("Here."), config=config, more="server: {keepalive_seconds: 5}") as client:
        answer = await client.ask(model="down")
        assert (answer.status, answer.error["code"]) == (502, "upstream_error")
        assert "127.0.0.1" not in answer.raw
        assert (await client.ask()).text == "Here."


async def test_what_was_used_is_in_the_log_also_where_there_is_no_answer(surface, logged):
    answer = await surface.ask(turn(calls=[SEARCH]), Reply([b"{}"], status=500))
    assert answer.error
    [done] = [line for line in logged() if line["event"] == "request.completed"]
    assert (done["turns"], done["tool_calls"], done["prompt_tokens"], done["error"]) == (1, 1, 10, "upstream_error")
