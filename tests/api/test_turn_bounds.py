"""An upstream's turn with too many calls, or with arguments that are too long, on every surface."""

import asyncio

import httpx
import orjson
import pytest

from proxy.turn.turn_bounds import MOST_ARGUMENT_BYTES, MOST_CALLS
from tests.fakes import Reply, chunk, completion, stream, whole
from tests.serving import proxy_of

MESSAGES = [{"role": "user", "content": "Hi"}]
SURFACES = {
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/responses": {"input": "Hi"},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 1000},
}
EVERYWHERE = pytest.mark.parametrize("path", SURFACES)
DOOR = {"parameters": {"type": "object", "properties": {"n": {"type": "integer"}}}}
TOOLS = {
    "/v1/chat/completions": {"type": "function", "function": {"name": "open_door", **DOOR}},
    "/v1/responses": {"type": "function", "name": "open_door", **DOOR},
    "/v1/messages": {"name": "open_door", "input_schema": DOOR["parameters"]},
}
LEAK = "<tool_call>web_search<arg_key>query</arg_key><arg_value>{}</arg_value></tool_call>"


def calls(name, count, arguments="{}"):
    return [(f"c{at}", name, arguments) for at in range(count)]


def fragment(at, name, arguments):
    function = {"name": name, "arguments": arguments}
    return chunk({"tool_calls": [{"index": at, "id": f"c{at}", "type": "function", "function": function}]})


async def post(url, path, *, streaming):
    body = {"model": "m", **SURFACES[path], "tools": [TOOLS[path]], "stream": streaming}
    async with httpx.AsyncClient(timeout=20) as http:
        return await http.post(f"{url}{path}", json=body)


@EVERYWHERE
@pytest.mark.parametrize(
    "reply",
    [
        whole(calls=calls("web_search", MOST_CALLS + 1)),
        whole(calls=calls("open_door", MOST_CALLS + 1)),
        whole("".join(LEAK.format(at) for at in range(MOST_CALLS + 1))),
        Reply([orjson.dumps(completion(LEAK.format(0), calls=calls("open_door", MOST_CALLS)))]),
        whole(calls=calls("web_search", 1, {"query": "x" * MOST_ARGUMENT_BYTES})),
        whole(calls=calls("open_door", 1, {"n": "x" * MOST_ARGUMENT_BYTES})),
    ],
)
async def test_a_whole_turn_that_passes_a_bound_is_a_failure_of_the_upstream(upstream, path, reply):
    upstream.replies = [reply]
    async with proxy_of(upstream) as url:
        response = await post(url, path, streaming=False)
    assert (response.status_code, response.json()["error"]["code"]) == (502, "upstream_error")
    assert upstream.searches == []


@EVERYWHERE
@pytest.mark.parametrize(
    "events",
    [
        [fragment(at, "web_search", "{}") for at in range(MOST_CALLS + 1)],
        [fragment(at, "open_door", "{}") for at in range(MOST_CALLS + 1)],
        [chunk({"content": LEAK.format(at)}) for at in range(MOST_CALLS + 1)],
        [fragment(0, "web_search", "x" * 65536)] * (MOST_ARGUMENT_BYTES // 65536 + 1),
        [fragment(0, "open_door", "x" * 65536)] * (MOST_ARGUMENT_BYTES // 65536 + 1),
    ],
)
async def test_a_stream_that_passes_a_bound_ends_with_an_error_and_its_connection(upstream, path, events):
    upstream.replies = [stream(chunk({"content": "Well."}), *events, asyncio.Event())]  # which would go on for ever
    async with proxy_of(upstream) as url, asyncio.timeout(20):
        response = await post(url, path, streaming=True)
        await upstream.left.wait()
    assert "Well." in response.text
    assert '"upstream_error"' in response.text
    assert "[DONE]" not in response.text.split('"upstream_error"')[0]
    assert len(upstream.requests) == 1


async def test_a_search_that_started_early_ends_with_a_turn_that_passes_a_bound(upstream):
    searching = asyncio.Event()

    def search(_):
        searching.set()
        return Reply([asyncio.Event()])  # never answers

    upstream.search = search
    first = fragment(0, "web_search", '{"query":"x"}')
    upstream.replies = [stream(first, searching, fragment(1, "web_search", " " * (MOST_ARGUMENT_BYTES + 1)))]
    async with proxy_of(upstream) as url, asyncio.timeout(20):
        response = await post(url, "/v1/chat/completions", streaming=True)
        await upstream.left.wait()
    assert '"upstream_error"' in response.text
    assert len(upstream.requests) == 1
