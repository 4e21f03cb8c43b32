import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.turn.shown_text import TrailingNewlines, separator_after, without_blank_lines_before

TEXTS = st.text("a \n\t.\u2028", max_size=12)


def shown_in(pieces):
    ending = TrailingNewlines()
    return "".join([ending.feed(piece) for piece in pieces]), ending.close()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a", "a"),
        ("a ", "a "),
        ("a\n", "a\n"),
        ("a\n\n", "a\n\n"),
        ("a\n\n\n", "a\n\n"),
        ("a \n \n \n", "a \n \n"),
        ("a\n\n    ", "a\n\n"),
        ("a\n\n\u2028", "a\n\n"),
        ("a\n\n\n\n    b\n", "a\n\n\n\n    b\n"),
        ("", ""),
    ],
)
def test_two_newlines_at_the_end_are_shown_and_the_rest_waits_for_more_text(text, shown):
    assert TrailingNewlines().feed(text) == shown


@given(st.lists(TEXTS))
def test_nothing_is_lost_and_the_cut_does_not_matter(pieces):
    text = "".join(pieces)
    shown, held = shown_in(pieces)
    assert shown + held == text
    assert (shown, held) == shown_in([text])
    assert not held.strip()


@pytest.mark.parametrize(
    ("text", "rest"), [("\n\n a", " a"), (" \n\t\n  a\n", "  a\n"), ("  a", "  a"), ("a\n", "a\n"), ("", "")]
)
def test_blank_lines_at_the_beginning_go_and_indentation_stays(text, rest):
    assert without_blank_lines_before(text) == rest


@given(TEXTS, TEXTS)
def test_between_two_texts_there_is_one_blank_line(first, second):
    separator = separator_after(first)
    if separator is None:
        assert not first.strip()
    elif second.strip():
        joined = TrailingNewlines().feed(first) + separator + without_blank_lines_before(second)
        between = joined[len(first.rstrip()) : len(joined) - len(second.lstrip())]
        assert between.count("\n") == 2
