"""Integers beyond 64 bits: exact in the arguments of calls on every API, and floats elsewhere in a body that is changed."""

import re

import httpx
import pytest

from tests.api.surfaces import on
from tests.fakes import turn, whole
from tests.serving import proxy_of

LONG = 12345678901234567890123
ARGUMENTS = f'{{"id": {LONG}}}'


async def test_a_call_brings_its_integers_to_the_client_as_the_model_wrote_them(surface):
    async with surface.proxy(turn(calls=[("c1", "open_door", ARGUMENTS)])) as client:
        raw = "".join([piece async for piece in client.read(functions=["open_door"], search=True)])
    pieces = _PIECE.findall(raw) if surface.streaming else [raw]
    assert str(LONG) in "".join(pieces)


# A piece of arguments in the stream of any API.
_PIECE = re.compile(r'"(?:arguments|delta|partial_json)":"((?:[^"\\]|\\.)*)"')

HISTORIES = {
    "/v1/chat/completions": {
        "messages": [
            {"role": "user", "content": "Open it."},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": "c1", "type": "function", "function": {"name": "open_door", "arguments": ARGUMENTS}}
                ],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "It is open."},
        ]
    },
    "/v1/responses": {
        "input": [
            {"role": "user", "content": "Open it."},
            {"type": "function_call", "call_id": "c1", "name": "open_door", "arguments": ARGUMENTS},
            {"type": "function_call_output", "call_id": "c1", "output": "It is open."},
        ]
    },
    "/v1/messages": {
        "max_tokens": 9,
        "messages": [
            {"role": "user", "content": "Open it."},
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "c1", "name": "open_door", "input": {"id": LONG}}],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "It is open."}]},
        ],
    },
}


@pytest.mark.parametrize("padding", [1, 100_000])  # read as a whole, and with messages that are known
@pytest.mark.parametrize("path", HISTORIES)
async def test_a_call_in_a_history_goes_upstream_with_its_integers(upstream, path, padding):
    upstream.replies = [whole("Yes.")]
    body = {"model": "m"} | HISTORIES[path] | {"metadata": {"x": "x" * padding}}
    async with proxy_of(upstream) as url, httpx.AsyncClient() as http:
        for _ in range(2):
            response = await http.post(url + path, json=body)
            assert response.status_code == 200
    for sent in upstream.requests:
        [call] = next(message["tool_calls"] for message in sent["messages"] if message.get("tool_calls"))
        assert str(LONG) in call["function"]["arguments"]


@on("chat-whole")
async def test_any_other_integer_of_a_body_that_is_changed_becomes_a_float(surface):
    await surface.ask(turn("Yes."), search=True, body={"new_field": [LONG]})
    assert surface.upstream.requests[-1]["new_field"] == [float(LONG)]
