import httpx
import orjson
import pytest

from proxy.api.access import Caller
from proxy.api.body_memory import BodyMemory, Share
from proxy.api.responses.encrypted_content import Hidden, Seal
from proxy.api.sealed import Sealer, SealingKeys
from proxy.config.keys import FROM_CLIENT
from proxy.config.model import Config, StateConfig, UpstreamConfig
from proxy.kit.secrets import Secrets
from proxy.loop.continuation import Continuation
from proxy.wire.errors import Overloaded, RequestTooLarge
from tests.fakes import Reply, completion
from tests.serving import proxy_of

TTL = 100.0
STRONG = "sk-5Kq9vT2xWm7Lr3Zp"


ANYONE = Caller()


def keys_of(*secrets, upstreams=(), caller=ANYONE, since=0.0, now=0.0):
    """The keys where these secrets are known, and the upstreams have these keys."""
    entries = {f"up{at}": UpstreamConfig(base_url="http://up", api_key=key) for at, key in enumerate(upstreams)}
    config = Config(upstreams=entries, state=StateConfig(ttl=TTL))
    known = Secrets(secrets, since)
    return SealingKeys(lambda: known, config, now=lambda: now).for_caller(caller)


KEYS = keys_of("a secret of the configuration")


def sealed_for(scope, keys=KEYS):
    return Seal(Sealer(keys, scope))


CONTINUATION = Continuation(({"role": "tool", "content": "x"},), {"tool_calls": []}, {0: "found"}, {"call_1": 1})


def test_thoughts_come_back():
    assert sealed_for("a").open(sealed_for("a").thoughts("Hm, ééé")) == "Hm, ééé"


def test_what_was_hidden_comes_back():
    assert sealed_for("a").open(sealed_for("a").hidden("r" * 32, CONTINUATION)) == Hidden("r" * 32, CONTINUATION)


def test_what_is_sealed_is_neither_to_be_read_nor_the_same_twice():
    seal = sealed_for("a")
    assert "secret" not in seal.thoughts("secret")
    assert seal.thoughts("secret") != seal.thoughts("secret")


@pytest.mark.parametrize("other", [sealed_for("b"), sealed_for("a", keys_of("another secret"))])
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


def opens(keys, *, sealed_with):
    return Sealer(keys, "a").open(Sealer(sealed_with, "a").seal({"a": 1})) == {"a": 1}


def test_while_the_secret_is_changed_the_first_seals_and_all_open():
    assert opens(keys_of("new", "old"), sealed_with=keys_of("old"))
    assert opens(keys_of("new"), sealed_with=keys_of("new", "old"))
    assert not opens(keys_of("new"), sealed_with=keys_of("old"))
    assert not opens(keys_of("newold"), sealed_with=keys_of("new"))


def test_without_a_secret_the_upstreams_keys_seal_in_any_order():
    assert keys_of(upstreams=["a", "b"]) == keys_of(upstreams=["b", "a"]) != keys_of(upstreams=["ab"])
    assert opens(keys_of(upstreams=["b", "a", FROM_CLIENT]), sealed_with=keys_of(upstreams=["a", "b"]))
    assert [len(key) for key in keys_of()] == [32]


def test_with_a_secret_no_change_of_the_upstreams_keys_matters():
    before = keys_of("s", upstreams=["a"], now=TTL)
    assert before == keys_of("s", upstreams=["a", "b"], now=TTL) == keys_of("s", caller=Caller(upstream_key="mine"))


@pytest.mark.parametrize(
    ("weak", "is_opened"),
    [
        (STRONG, True),
        ("5f4dcc3b5aa765d61d8327deb882cf99.AbCdEfGhIjKlMnOp", True),
        ("the-key-of-the-upstream", True),
        ("upstream-secret-1234567890", True),
        (STRONG[:15], False),
        ("none", False),
        ("EMPTY", False),
        ("sk-no-key-required", False),
        ("API_KEY_NOT_NEEDED", False),
        ("sk-1234567890abcdef", False),
        ("sk-0000000000000000", False),
        ("test-test-00000000-1234", False),
        ("ollama-ollama-ollama", False),
        ("-" * 20, False),
    ],
)
def test_what_upstream_keys_have_sealed_opens_for_a_while_after_a_secret_is_made_unless_one_can_be_guessed(
    weak, is_opened
):
    upstreams = [STRONG, weak]
    old = keys_of(upstreams=upstreams)
    assert opens(keys_of("s", upstreams=upstreams, since=50.0, now=149.0), sealed_with=old) == is_opened
    assert not opens(keys_of("s", upstreams=upstreams, since=50.0, now=150.0), sealed_with=old)
    caller = Caller(upstream_key=weak)
    old = keys_of(upstreams=[FROM_CLIENT], caller=caller)
    assert opens(keys_of("s", upstreams=[FROM_CLIENT], caller=caller), sealed_with=old) == is_opened


def test_where_the_upstreams_take_the_callers_own_key_its_content_is_read_by_every_worker():
    mine, other = Caller(upstream_key="mine"), Caller(upstream_key="other")
    assert opens(keys_of(caller=mine), sealed_with=keys_of(caller=mine))
    assert not opens(keys_of(caller=other), sealed_with=keys_of(caller=mine))
    assert not opens(keys_of(upstreams=["an upstream's"], caller=mine), sealed_with=keys_of(caller=mine))


BOMB = {"thoughts": "a" * 1_000_000}


def test_what_a_request_carries_opens_to_no_more_than_a_body_may_have():
    sealed = Sealer(KEYS, "a").seal(BOMB)
    assert len(sealed) < 10_000
    sealer = Sealer(KEYS, "a", most_bytes=2_500_000)
    assert [sealer.open(sealed), sealer.open(sealed)] == [BOMB, BOMB]
    with pytest.raises(RequestTooLarge):
        sealer.open(sealed)


def test_what_is_opened_takes_memory_like_a_body():
    sealed = Sealer(KEYS, "a").seal(BOMB)
    memory = BodyMemory(5_000_000)
    share, other = Share(memory), Share(memory)
    sealer = Sealer(KEYS, "a", share=share)
    sealer.open(sealed)
    sealer.count_opened()
    assert memory.used >= 3_000_000
    with pytest.raises(Overloaded):
        Sealer(KEYS, "a", share=other).open(sealed)
    with pytest.raises(RequestTooLarge):  # it would not fit even alone
        Sealer(KEYS, "a", share=Share(BodyMemory(1_000_000))).open(sealed)


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
    sealer = Sealer(keys_of(upstreams=["upstream-secret"]), Caller().scope)
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
    sealer = Sealer(keys_of(upstreams=["upstream-secret"]), Caller().scope)
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
