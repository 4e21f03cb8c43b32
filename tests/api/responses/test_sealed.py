import httpx
import orjson
import pytest

from proxy.api.access import Caller
from proxy.api.body_memory import BodyMemory, Share
from proxy.api.responses.encrypted_content import Hidden, Seal, Thoughts
from proxy.api.sealed import Sealer, key_from, sealer_for
from proxy.loop.continuation import Continuation
from proxy.wire.errors import Overloaded, RequestTooLarge
from tests.fakes import Reply, completion
from tests.serving import proxy_of

KEY = key_from(("upstream-key",))


def sealed_for(scope, key=KEY):
    return Seal(Sealer(key, scope))


CONTINUATION = Continuation(({"role": "tool", "content": "x"},), {"tool_calls": []}, {0: "found"}, {"call_1": 1})


def test_thoughts_come_back():
    assert sealed_for("a").open(sealed_for("a").thoughts("Hm, ééé")) == Thoughts("Hm, ééé")


def test_what_was_hidden_comes_back():
    assert sealed_for("a").open(sealed_for("a").hidden("r" * 32, CONTINUATION)) == Hidden("r" * 32, CONTINUATION)


def test_what_is_sealed_is_neither_to_be_read_nor_the_same_twice():
    seal = sealed_for("a")
    assert "secret" not in seal.thoughts("secret")
    assert seal.thoughts("secret") != seal.thoughts("secret")


@pytest.mark.parametrize("other", [sealed_for("b"), sealed_for("a", key_from(("other",)))])
def test_another_caller_and_another_key_cannot_open_it(other):
    assert other.open(sealed_for("a").thoughts("x")) is None


@pytest.mark.parametrize("sealed", [None, "", "x", "%%%", "é", 3, {}, "AAAA" * 20])
def test_what_was_not_sealed_here_is_nothing(sealed):
    assert sealed_for("a").open(sealed) is None


def test_one_changed_letter_is_noticed():
    sealed = sealed_for("a").thoughts("a thought that is long enough")
    for at in range(0, len(sealed) - 4, 5):
        changed = sealed[:at] + ("A" if sealed[at] != "A" else "B") + sealed[at + 1 :]
        assert sealed_for("a").open(changed) is None


def test_where_the_upstreams_take_the_callers_own_key_its_content_is_read_by_every_worker():
    mine, other = Caller(upstream_key="mine"), Caller(upstream_key="other")
    sealed = sealer_for(mine, ()).seal({"a": 1})
    assert sealer_for(Caller(upstream_key="mine"), ()).open(sealed) == {"a": 1}
    assert sealer_for(other, ()).open(sealed) is None
    assert sealer_for(mine, ("an upstream's",)).open(sealed) is None


def test_workers_with_the_same_secrets_have_the_same_key():
    assert key_from(("a", "b")) == key_from(("b", "a"))
    assert key_from(("a", "b")) != key_from(("ab",))
    assert len(key_from(())) == len(KEY) == 32


BOMB = {"thoughts": "a" * 1_000_000}


def test_what_a_request_carries_opens_to_no_more_than_a_body_may_have():
    sealed = Sealer(KEY, "a").seal(BOMB)
    assert len(sealed) < 10_000
    sealer = Sealer(KEY, "a", most_bytes=2_500_000)
    assert [sealer.open(sealed), sealer.open(sealed)] == [BOMB, BOMB]
    with pytest.raises(RequestTooLarge):
        sealer.open(sealed)


def test_what_is_opened_takes_memory_like_a_body():
    sealed = Sealer(KEY, "a").seal(BOMB)
    memory = BodyMemory(5_000_000)
    share, other = Share(memory), Share(memory)
    sealer = Sealer(KEY, "a", share=share)
    sealer.open(sealed)
    sealer.count_opened()
    assert memory.used >= 3_000_000
    with pytest.raises(Overloaded):
        Sealer(KEY, "a", share=other).open(sealed)
    with pytest.raises(RequestTooLarge):  # it would not fit even alone
        Sealer(KEY, "a", share=Share(BodyMemory(1_000_000))).open(sealed)


FORGED = [
    {"hidden": {}},
    {"turns": 5},
    {"run": "r" * 32, "hidden": {}},
    {"run": "r" * 32, "hidden": {"turns": 5}},
    {"run": "r" * 32, "hidden": {"before": [5], "message": {}, "results": {}, "client_ids": {}}},
    {"run": "r" * 32, "hidden": {"before": [], "message": {"tool_calls": [5]}, "results": {}, "client_ids": {}}},
    {
        "run": "r" * 32,
        "hidden": {"before": [{"content": [5]}], "message": {"tool_calls": []}, "results": {}, "client_ids": {}},
    },
    {"run": "r" * 32, "hidden": {"before": [], "message": {"tool_calls": []}, "results": {"x": 1}, "client_ids": {}}},
    {"run": 5, "hidden": {}},
    {"run": "r" * 32, "hidden": {"carried": 5}},
    {"thoughts": 5},
    {"text": "a", "carried": 5},
    {"text": 5},
    [],
    5,
]


@pytest.mark.parametrize("held", FORGED)
async def test_what_was_sealed_in_another_form_is_ignored_and_no_fault(upstream, held):
    """The key is that of `CONFIG`, which the upstream's key makes: another version of the proxy has sealed it."""
    upstream.replies = [Reply([orjson.dumps(completion("Yes."))])]
    sealer = sealer_for(Caller(), ("upstream-secret",))
    sealed = sealer.seal(held)
    assert sealer.open(sealed) == (held if isinstance(held, dict) else None)
    call = f"call_{'r' * 32}_0".replace("r", "a")
    items = [
        {"role": "user", "content": "?"},
        {"type": "reasoning", "summary": [], "encrypted_content": sealed},
        {"type": "function_call", "call_id": call, "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": call, "output": "1"},
    ]
    page = {"type": "web_search_result", "url": "https://a.example/", "title": "A", "encrypted_content": sealed}
    blocks = [
        {"type": "thinking", "thinking": "", "signature": sealed},
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "a"}},
        {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [page]},
    ]
    asked = {"role": "user", "content": "?"}
    messages = [asked, {"role": "assistant", "content": blocks}, asked]
    async with proxy_of(upstream) as url, httpx.AsyncClient() as client:
        for path, fields in (
            ("/v1/responses", {"input": items, "store": False}),
            ("/v1/messages", {"messages": messages, "max_tokens": 9}),
        ):
            response = await client.post(url + path, json={"model": "m", **fields})
            assert (path, response.status_code) == (path, 200), response.text


async def test_sealed_text_that_opens_to_more_than_a_body_may_have_is_refused_on_both_surfaces(upstream):
    sealer = sealer_for(Caller(), ("upstream-secret",))
    thoughts = sealer.seal({"thoughts": "a" * 300_000})
    text = sealer.seal_text("a" * 300_000)
    items = [{"type": "reasoning", "summary": [], "encrypted_content": thoughts}] * 4
    page = {"type": "web_search_result", "url": "https://a.example/", "title": "A", "encrypted_content": text}
    blocks = [
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "a"}},
        {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [page] * 4},
    ]
    thinking = [{"type": "thinking", "thinking": "", "signature": text}] * 4
    asked = {"role": "user", "content": "?"}
    requests = [
        ("/v1/responses", {"input": [asked, *items]}),
        ("/v1/messages", {"max_tokens": 9, "messages": [asked, {"role": "assistant", "content": blocks}, asked]}),
        ("/v1/messages", {"max_tokens": 9, "messages": [asked, {"role": "assistant", "content": thinking}, asked]}),
    ]
    async with proxy_of(upstream, more="server: {max_body_bytes: 1000000}") as url, httpx.AsyncClient() as client:
        for path, fields in requests:
            assert (await client.post(url + path, json={"model": "m", **fields})).status_code == 413
    assert upstream.bodies == []
