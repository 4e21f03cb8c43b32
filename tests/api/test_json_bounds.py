"""The bounds of a request's JSON: its values, its messages and its blocks, on every surface over real sockets."""

import asyncio
import json
import time
from functools import partial

import httpx
import orjson
import pytest
from hypothesis import given

from proxy.api.dialect import Stored
from proxy.api.json_bounds import blocks_in
from proxy.api.messages.conversation import read_conversation
from proxy.api.responses.stored import ResponseStore, StoredResponse
from proxy.api.sealed import Sealer
from proxy.config.model import StateConfig
from proxy.ports import NoObserver
from proxy.stores.memory import MemoryStore
from proxy.wire.credentials import NO_CREDENTIALS
from proxy.wire.json_values import holds_too_many_values
from tests import hostile
from tests.fakes import FakeClock, whole
from tests.serving import proxy_of

MB = 1024 * 1024


def values_in(value):
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(map(values_in, inner))


@given(hostile.json_values)
def test_values_are_counted_as_a_parser_would(value):
    for text in (orjson.dumps(value), json.dumps(value, indent=1).encode()):
        # `{}` and `[]` may be counted as one value more than they are.
        empty = text.replace(b" ", b"").count(b"[]") + text.replace(b" ", b"").count(b"{}")
        count = values_in(value)
        assert holds_too_many_values(text, count - 1) or len(text) <= 2 * (count - 1)
        assert not holds_too_many_values(text, count + empty)


@pytest.mark.parametrize("letter", [b",", b"[", b'\\"', b"\\\\", b'\\",\\"', b"a\\u002c"])
def test_what_a_string_holds_is_no_value_wherever_the_text_is_cut(letter):
    for shift in range(4):
        text = b'["%b%b",1,"%b"]' % (b"x" * shift, letter * 400_000, letter * 400_000)
        assert not holds_too_many_values(text, 4)
        assert holds_too_many_values(text, 3)


def test_blocks_are_counted_down_to_those_within_others():
    result = {"type": "tool_result", "content": [{"type": "text"}] * 3}
    document = {"type": "document", "source": {"type": "content", "content": [{"type": "text"}] * 2}}
    messages = [{"role": "user", "content": [result, document]}, {"role": "assistant", "tool_calls": [{}] * 4}, 5]
    assert blocks_in(messages) == 11
    assert blocks_in(messages, 10) > 10


def said(count):
    return [{"role": ("user", "assistant")[at % 2], "content": "a"} for at in range(count - 1)] + [
        {"role": "user", "content": "?"}
    ]


CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
SURFACES = {
    CHAT: ("messages", "text", {}),
    RESPONSES: ("input", "input_text", {}),
    MESSAGES: ("messages", "text", {"max_tokens": 9}),
}


async def status_of(url, path, **fields):
    async with httpx.AsyncClient(timeout=60) as client:
        response = await client.post(url + path, json={"model": "m", **fields})
    error = response.json().get("error") or {}
    return response.status_code, error.get("param") or error.get("message", "").partition(":")[0]


@pytest.mark.parametrize("path", SURFACES)
async def test_ten_thousand_messages_and_fifty_thousand_blocks_are_taken_and_no_more(upstream, path):
    upstream.replies = [whole("Yes.")]
    field, kind, more = SURFACES[path]

    def with_blocks(count):
        return [{"role": "user", "content": [{"type": kind, "text": "a"}] * count}]

    async with proxy_of(upstream) as url:
        ask = partial(status_of, url, path, **more)
        assert await ask(**{field: said(10_000)}) == (200, "")
        assert await ask(**{field: said(10_001)}) == (400, field)
        assert await ask(**{field: with_blocks(50_000)}) == (200, "")
        assert await ask(**{field: with_blocks(50_001)}) == (400, field)


@pytest.mark.parametrize("path", [*SURFACES, "/v1/embeddings", "/v1/messages/count_tokens"])
async def test_a_body_of_a_quarter_of_a_million_values_is_taken_and_no_more(upstream, path):
    upstream.replies = [whole("Yes.")]
    field, _, more = SURFACES.get(path, ("messages", "", {}))
    async with proxy_of(upstream) as url:
        ask = partial(status_of, url, path, **more, **{field: said(1)})
        assert (await ask(metadata={"a": [1] * 249_900}))[0] == 200
        status, at_fault = await ask(metadata={"a": [1] * 250_000})
    assert status == 400
    assert at_fault in (field, "The request body may have at most 250000 values.")


def paired(count):
    calls = [{"type": "tool_use", "id": f"toolu_{at}", "name": "look", "input": {}} for at in range(count)]
    results = [{"type": "tool_result", "tool_use_id": f"toolu_{at}", "content": "ok"} for at in reversed(range(count))]
    return [{"role": "assistant", "content": calls}, {"role": "user", "content": results}]


def paired_by_server(count):
    calls = [
        {"type": "server_tool_use", "id": f"srvtoolu_{at}", "name": "web_search", "input": {}} for at in range(count)
    ]
    results = [
        {"type": "web_search_tool_result", "tool_use_id": f"srvtoolu_{at}", "content": []}
        for at in reversed(range(count))
    ]
    return [{"role": "assistant", "content": [*calls, *results]}, {"role": "user", "content": "?"}]


def of_one_role(count):
    return [{"role": "user", "content": [{"type": "text", "text": "a"}]}] * min(count, 10_000)


def between_empty_messages(count):
    return [{"role": "user", "content": "a" * 2000}, {"role": "assistant", "content": []}] * min(count // 2, 4999) + [
        {"role": "user", "content": "?"}
    ]


@pytest.mark.parametrize("blocks", [paired, paired_by_server, of_one_role, between_empty_messages])
def test_a_conversation_in_blocks_costs_no_more_than_in_proportion_to_its_length(blocks):
    messages = blocks(25_000)
    began = time.process_time()
    read_conversation(None, messages, Sealer((b"k" * 32,), "client:app"), {})
    assert time.process_time() - began < 2  # a search for each block took more than 10 s


async def test_a_conversation_of_thousands_of_stored_runs_gives_way_to_others():
    store = MemoryStore(StateConfig(), clock=FakeClock(), max_bytes=10**9)
    responses = ResponseStore(Stored(store, "me", None, NO_CREDENTIALS, NoObserver()))
    references = [{"type": "item_reference", "id": f"msg_{at:032x}_0"} for at in range(2000)]
    for at, reference in enumerate(references):
        item = {**reference, "type": "message"}
        await store.put("me", *StoredResponse({"id": f"resp_{at:032x}", "output": [item]}, []).as_kept())
    reading, rounds = asyncio.create_task(responses.history(references, None)), 0
    while not reading.done():
        await asyncio.sleep(0)
        rounds += 1
    assert len((await reading).own) == len(references)
    assert rounds >= 9
