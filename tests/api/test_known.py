"""Messages that were sent before: what an upstream gets, and what a client is told, is the same with them and without."""

import gc
import itertools
import tracemalloc

import httpx
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.agents import body_of
from proxy.api import known
from proxy.api.known import History, KnownMessages
from proxy.api.messages import conversation as blocks
from proxy.api.messages.history import changes_in
from proxy.api.messages.signatures import sign
from proxy.api.parsing import expect_few_blocks, parse_object
from proxy.api.responses import conversation as items
from proxy.api.responses.dialect import ResponsesDialect
from proxy.api.responses.encrypted_content import Seal
from proxy.api.sealed import Sealer
from proxy.turn.opaque_fields import OpaqueFields
from proxy.wire.errors import ProxyError
from tests import hostile
from tests.documents import RESPONSES_INPUT
from tests.fakes import whole
from tests.serving import proxy_of

RUN = "0" * 32
SEALER = Sealer((b"k" * 32,), "client:app")
PICTURE = {"type": "image", "source": {"type": "url", "url": "https://a.example/b.png"}}
FOUND = {
    "type": "web_search_result",
    "url": "https://a.example/",
    "title": "A",
    "encrypted_content": SEALER.seal_text("x"),
}


def use(at, **changes):
    return {"type": "tool_use", "id": f"c{at}", "name": "open", "input": {"door": at, "much": 0.5}, **changes}


def result(at, content="opened", **changes):
    return {"type": "tool_result", "tool_use_id": f"c{at}", "content": content, **changes}


def text(said):
    return {"type": "text", "text": said}


MESSAGES = [
    {"role": "user", "content": "Open the doors."},
    {"role": "user", "content": [text("All of them."), PICTURE, {"type": "new", "text": "of a later year"}]},
    {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm.", "signature": "s"}, text("So."), use(1)]},
    {"role": "user", "content": [result(1), text("Go on.")]},
    {"role": "assistant", "content": [use(2), use(3)]},
    {"role": "user", "content": [result(3, [text("a"), PICTURE]), result(2, is_error=True)]},
    {"role": "system", "content": "Only two more.", "clear_at": "next_user_message"},
    {"role": "assistant", "content": [
        {"type": "thinking", "thinking": "", "signature": sign(SEALER, "Thoughts.")},
        {"type": "server_tool_use", "id": f"srvtoolu_{RUN}_0_1", "name": "web_search", "input": {"query": "q"}},
        {"type": "web_search_tool_result", "tool_use_id": f"srvtoolu_{RUN}_0_1", "content": [FOUND]},
        text("Found."),
        use(4),
    ]},
    {"role": "user", "content": [result(4)]},
]  # fmt: skip


def read_messages(body, history):
    fields = parse_object(body, history)
    messages = fields.get("messages")
    expect_few_blocks(messages, "messages", of=body)
    read = blocks.read_conversation(
        fields.get("system"),
        messages,
        SEALER,
        {},
        changes=changes_in(messages),
    )
    return fields, read


def read_items(body, history):
    request = ResponsesDialect().parse(body, history).request
    read = items.read_conversation(
        [item for item in request.items if item["type"] != "item_reference"],
        instructions="Be brief.",
        name_of=lambda item: item.get("name", "code"),
        unseal=Seal(SEALER).open,
    )
    return request, read


@pytest.fixture(autouse=True)
def _small_requests_too(monkeypatch):
    for name in ("_LEAST_BODY", "_LEAST_MESSAGE"):
        monkeypatch.setattr(known, name, 1)


@pytest.mark.usefixtures("_small_requests_too")
class TestAnyRequest:
    """With one cache for all examples, in which messages come and go."""

    messages = History(KnownMessages(200_000), "client:app", "messages")
    items = History(KnownMessages(200_000), "client:app", "input")

    @given(hostile.mutated(st.just({"messages": MESSAGES, "system": "Be brief."})))
    def test_messages_are_read_as_without_the_cache_and_so_is_every_fault(self, asked):
        check(read_messages, hostile.written(asked), self.messages)

    @given(hostile.mutated(st.just({"model": "m", "input": RESPONSES_INPUT})))
    def test_items_are_read_as_without_the_cache_and_so_is_every_fault(self, asked):
        check(read_items, hostile.written(asked), self.items)


def check(read, body, history):
    plain, first, second = [
        hostile.outcome(ProxyError, lambda one=one: read(body, one)) for one in (None, history, history)
    ]
    assert told(first) == told(second) == told(plain)
    for half in (history.known._young, history.known._old):  # noqa: SLF001 - ours
        for sent, message in half.get(f"{history.field} of {history.owner}", {}).items():
            assert message == parse_object(sent), "nobody may change what others are given"


SERVER_CALL = {"type": "server_tool_use", "id": f"srvtoolu_{RUN}_0_1", "name": "look", "input": {"query": "q"}}
SERVER_RESULT = {"type": "web_search_tool_result", "tool_use_id": SERVER_CALL["id"], "content": [FOUND]}


@pytest.mark.parametrize("blocks_said", [
    [SERVER_CALL, SERVER_RESULT],
    [SERVER_CALL | {"name": "web_search"}, SERVER_RESULT],
    [SERVER_CALL | {"name": "web_search"}, SERVER_RESULT | {"content": [], "encrypted_content": SEALER.seal_text("x")}],
    [{"type": "thinking", "thinking": "", "signature": sign(SEALER, "Thoughts.")}],
    [{"type": "thinking", "thinking": "Hm.", "signature": sign(SEALER, "Hm.", OpaqueFields({"details": "d"}))}],
])  # fmt: skip
def test_a_translation_that_depends_on_names_seals_or_signatures_is_kept_for_no_other_request(blocks_said):
    other = Sealer((b"o" * 32,), "client:app")
    body = orjson.dumps({"messages": [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": [*blocks_said, text("So.")]},
        {"role": "user", "content": "Go on."},
    ]})  # fmt: skip

    def read(history, sealer, names):
        messages = parse_object(body, history)["messages"]
        return blocks.read_conversation(None, messages, sealer, names)

    history, requests = (
        History(KnownMessages(), "client:app", "messages"),
        [(SEALER, {"look": "web_search"}), (other, {})],
    )
    plain = [read(None, *one) for one in requests]
    assert plain[0] != plain[1]
    for _ in range(2):
        assert [read(history, *one) for one in requests] == plain


def told(outcome):
    return (type(outcome), str(outcome), outcome.param) if isinstance(outcome, ProxyError) else outcome


@pytest.mark.parametrize(("surface", "path", "field"), [
    ("messages", "/v1/messages", "messages"), ("responses", "/v1/responses", "input"),
])  # fmt: skip
async def test_the_upstream_gets_the_same_bytes_for_a_conversation_that_has_grown_or_was_changed(
    upstream, surface, path, field
):
    upstream.replies = [whole({"role": "assistant", "content": "Done."})]
    *grown, long = [{**body_of(surface, rounds), "model": "m"} for rounds in (10, 11, 20)]
    changed = {**long, field: orjson.loads(orjson.dumps(long[field]).replace(b"(7)", b"(seven)"))}
    asked = [*grown, long, changed, long]
    async with proxy_of(upstream) as url, httpx.AsyncClient(base_url=url) as client:
        for one in asked:
            answer = await client.post(path, json=one, headers={"x-server-tools": "none"})
            assert answer.status_code == 200, answer.text
    sent, upstream.bodies[:] = [*upstream.bodies], []
    for one in asked:
        async with proxy_of(upstream) as url, httpx.AsyncClient(base_url=url) as client:
            await client.post(path, json=one, headers={"x-server-tools": "none"})
    assert sent == upstream.bodies
    assert len(set(sent)) == len(asked) - 1


def test_a_message_is_known_to_the_client_alone_that_has_sent_it():
    cache, sent = KnownMessages(100_000), [b'{"role":"user","content":"a secret"}']
    [first] = cache.find("client:a", sent)
    [again] = cache.find("client:a", sent)
    [of_other] = cache.find("client:b", sent)
    assert first is again
    assert of_other is not first


def test_a_message_that_is_sent_again_stays_known_while_others_come_and_go():
    cache, kept = KnownMessages(100_000), b'{"role":"user","content":"kept"}'
    [first] = cache.find("client:a", [kept])
    for number in range(200):
        cache.find("client:a", [b'{"role":"user","content":"%d"}' % number])
        assert cache.find("client:a", [kept]) == [first]
    assert cache.find("client:a", [kept])[0] is first


@pytest.mark.parametrize("content", [b'"%d', b'"\\ud83d\\ude00 %d', '"\U0001f6a2 %d'.encode(), b'[[[[],[]]],"%d'])
def test_what_is_known_takes_no_more_memory_than_the_bound(content):
    most = 2_000_000
    cache, numbers = KnownMessages(most), itertools.count()
    cache.find("client:a", [b"{}"])
    close = b"]" * (content[:1] == b"[")
    tracemalloc.start()
    try:
        for _ in range(30):
            end = b'x",' + b'{"a":{"a":[]}},' * 20 if close else b"x" * 1000 + b'",'
            cache.find("client:a", [
                b'{"content":' + content % next(numbers) + end.rstrip(b",") + close + b"}" for _ in range(50)
            ])  # fmt: skip
        gc.collect()
        assert most / 20 < tracemalloc.get_traced_memory()[0] < most
    finally:
        tracemalloc.stop()
