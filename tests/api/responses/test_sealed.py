import pytest

from proxy.api.responses.content import Hidden, Seal, Thoughts
from proxy.api.sealed import key_from
from proxy.loop.continuation import Continuation

KEY = key_from(["upstream-key"])
CONTINUATION = Continuation(({"role": "tool", "content": "x"},), {"tool_calls": []}, {0: "found"}, {"call_1": 1})


def test_thoughts_come_back():
    assert Seal(KEY, "a").open(Seal(KEY, "a").thoughts("Hm, ééé")) == Thoughts("Hm, ééé")


def test_what_was_hidden_comes_back():
    assert Seal(KEY, "a").open(Seal(KEY, "a").hidden("r" * 32, CONTINUATION)) == Hidden("r" * 32, CONTINUATION)


def test_what_is_sealed_is_neither_to_be_read_nor_the_same_twice():
    seal = Seal(KEY, "a")
    assert "secret" not in seal.thoughts("secret")
    assert seal.thoughts("secret") != seal.thoughts("secret")


@pytest.mark.parametrize("other", [Seal(KEY, "b"), Seal(key_from(["other"]), "a")])
def test_another_caller_and_another_key_cannot_open_it(other):
    assert other.open(Seal(KEY, "a").thoughts("x")) is None


@pytest.mark.parametrize("sealed", [None, "", "x", "%%%", "é", 3, {}, "AAAA" * 20])
def test_what_was_not_sealed_here_is_nothing(sealed):
    assert Seal(KEY, "a").open(sealed) is None


def test_one_changed_letter_is_noticed():
    sealed = Seal(KEY, "a").thoughts("a thought that is long enough")
    for at in range(0, len(sealed) - 4, 5):
        changed = sealed[:at] + ("A" if sealed[at] != "A" else "B") + sealed[at + 1 :]
        assert Seal(KEY, "a").open(changed) is None


def test_workers_with_the_same_secrets_have_the_same_key_and_others_a_random_one():
    assert key_from(["a", "b"]) == key_from(["b", "a"])
    assert key_from(["a", "b"]) != key_from(["ab"])
    assert key_from([]) != key_from([])
    assert len(key_from([])) == len(KEY) == 32
