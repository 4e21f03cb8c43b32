import pytest

from proxy.kit.counted import counted


@pytest.mark.parametrize(
    ("number", "words"),
    [(0, "0 tokens"), (1, "1 token"), (2, "2 tokens"), (1_000_000, "1000000 tokens"), (1.0, "1 token"), (0.5, "0.5 tokens")],
)  # fmt: skip
def test_a_noun_is_in_the_plural_unless_there_is_one(number, words):
    assert counted(number, "token") == words
