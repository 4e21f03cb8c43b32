import pytest

from proxy.api.access import Caller
from proxy.api.responses.encrypted_content import Hidden, Seal, Thoughts
from proxy.api.sealed import Sealer, key_from, sealer_for
from proxy.loop.continuation import Continuation

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
