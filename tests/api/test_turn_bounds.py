"""An upstream's turn with too many calls, or with arguments that are too long, on every API."""

import asyncio

import pytest

from proxy.turn.turn_bounds import MOST_ARGUMENT_BYTES, MOST_CALLS, MOST_TURN_ARGUMENT_BYTES
from proxy.upstreams.answers import MOST_ANSWER_VALUES, MOST_EVENT_VALUES
from tests.api.surfaces import STREAMS, on
from tests.fakes import Reply, call_chunk, chunk, stream, whole

EVERYWHERE = on("chat-whole", "responses-whole", "messages-whole")
LEAK = "<tool_call>web_search<arg_key>query</arg_key><arg_value>{}</arg_value></tool_call>"
MINE = {"functions": ["open_door"]}


def calls(name, count, arguments="{}"):
    return [(f"c{at}", name, arguments) for at in range(count)]


@EVERYWHERE
@pytest.mark.parametrize(
    "reply",
    [
        whole(calls=calls("web_search", MOST_CALLS + 1)),
        whole(calls=calls("open_door", MOST_CALLS + 1)),
        whole("".join(LEAK.format(at) for at in range(MOST_CALLS + 1))),
        whole(LEAK.format(0), calls=calls("open_door", MOST_CALLS)),
        whole(calls=calls("web_search", 1, {"query": "x" * MOST_ARGUMENT_BYTES})),
        whole(calls=calls("open_door", 1, {"n": "x" * MOST_ARGUMENT_BYTES})),
        whole(calls=calls("open_door", 5, {"n": "x" * (MOST_TURN_ARGUMENT_BYTES // 5)})),
        Reply([b'{"choices":[{"message":{"content":"Yes."}}],"x":[%b0]}' % (b"0," * MOST_ANSWER_VALUES)]),
    ],
)
async def test_a_whole_turn_that_passes_a_bound_is_a_failure_of_the_upstream(surface, reply):
    answer = await surface.ask(reply, **MINE)
    assert (answer.status, answer.error["code"]) == (502, "upstream_error")
    assert surface.upstream.searches == []


def one_by_one(name):
    return [call_chunk(call, at=at) for at, call in enumerate(calls(name, MOST_CALLS + 1))]


def endless(name):
    return [call_chunk(("c0", name, "x" * 65536))] * (MOST_ARGUMENT_BYTES // 65536 + 1)


@STREAMS
@pytest.mark.parametrize(
    "events",
    [
        one_by_one("web_search"),
        one_by_one("open_door"),
        [chunk({"content": LEAK.format(at)}) for at in range(MOST_CALLS + 1)],
        endless("web_search"),
        endless("open_door"),
        [call_chunk((f"c{at}", "open_door", "x" * (MOST_TURN_ARGUMENT_BYTES // 5 + 1)), at=at) for at in range(5)],
        [b'data: {"choices":[],"x":[%b0]}\n\n' % (b"0," * MOST_EVENT_VALUES)],
    ],
)
async def test_a_stream_that_passes_a_bound_ends_with_an_error_and_its_connection(surface, events):
    reply = stream(chunk({"content": "Well."}), *events, asyncio.Event())  # which would go on for ever
    async with surface.proxy(reply) as client, asyncio.timeout(20):
        raw = "".join([part async for part in client.read(**MINE)])
        await surface.upstream.left.wait()
    before, failed, _ = raw.partition('"upstream_error"')
    assert ("Well." in before, bool(failed), "[DONE]" in before) == (True, True, False)
    assert len(surface.upstream.requests) == 1


@STREAMS
async def test_a_search_that_started_early_ends_with_a_turn_that_passes_a_bound(surface):
    searching = asyncio.Event()

    def search(_):
        searching.set()
        return Reply([asyncio.Event()])  # never answers

    surface.upstream.search = search
    too_long = call_chunk(("c1", "web_search", " " * (MOST_ARGUMENT_BYTES + 1)), at=1)
    reply = stream(call_chunk(("c0", "web_search", '{"query":"x"}')), searching, too_long)
    async with surface.proxy(reply) as client, asyncio.timeout(20):
        answer = await client.ask()
        await surface.upstream.left.wait()
    assert (answer.error["code"], len(surface.upstream.requests)) == ("upstream_error", 1)
