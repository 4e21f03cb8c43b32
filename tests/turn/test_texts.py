import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.loop.actions import CallUpstream
from proxy.turn.assembler import Assembler
from proxy.turn.pieces import pieces_of_whole
from proxy.turn.request import TurnView
from proxy.turn.texts import (
    MOST_TEXT,
    TrailingNewlines,
    TurnTexts,
    count_indices,
    separator_after,
    shifted,
    without_blank_lines_before,
)
from proxy.wire.errors import UpstreamError

VIEW = TurnView(tools={"search": {"properties": {"q": {}}}})
ENTRY = {"type": "reasoning.text", "text": "I call <", "index": 0}


def details_left(texts, thought, *details):
    """The `reasoning_details` that are left of a delta with this thought."""
    delta = {"reasoning": thought, "reasoning_details": list(details)}
    texts.fold(delta)
    return delta["reasoning_details"]


def test_entries_repeat_no_more_of_the_thoughts_than_is_shown_of_them():
    texts = TurnTexts(VIEW)
    sealed = {"type": "reasoning.encrypted", "data": "x", "index": 1}
    left = details_left(texts, ENTRY["text"], ENTRY, sealed, "odd")
    assert left == [{**ENTRY, "text": "I call "}, sealed, "odd"]
    assert details_left(texts, "tool", {**ENTRY, "text": "tool"}) == []
    rest = {}
    texts.close(rest)
    assert rest == {"reasoning": "<tool", "reasoning_details": [{**ENTRY, "text": "<tool"}]}


def test_a_thought_without_entries_is_shown_without_them():
    texts = TurnTexts(VIEW)
    texts.fold({"reasoning": "I call <"})
    rest = {}
    texts.close(rest)
    assert rest == {"reasoning": "<"}


@pytest.mark.parametrize(("details", "thought"), [("odd", "x"), ([{"text": ""}], "")])
def test_entries_that_repeat_nothing_stay_as_they_are(details, thought):
    delta = {"reasoning": thought, "reasoning_details": details}
    TurnTexts(VIEW).fold(delta)
    assert delta["reasoning_details"] == details


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


# -- reasoning_details --


@pytest.mark.parametrize(
    ("details", "shown"),
    [
        ([{"index": 0, "data": "x"}, {"index": 1}], [{"index": 3, "data": "x"}, {"index": 4}]),
        ([{"data": "x"}, "odd", {"index": None}], [{"data": "x"}, "odd", {"index": None}]),
        ("odd", "odd"),
        (None, None),
    ],
)
def test_entries_of_a_later_turn_have_indices_of_their_own(details, shown):
    assert shifted(details, 3) == shown


def test_those_of_the_first_turn_stay_as_they_are():
    details = [{"index": 0}]
    assert shifted(details, 0) is details


@pytest.mark.parametrize(
    ("message", "count"),
    [
        ({}, 0),
        ({"reasoning_details": "odd"}, 0),
        ({"reasoning_details": []}, 0),
        ({"reasoning_details": [{"index": 0}, {"index": 2}, {"index": 0}]}, 3),
        ({"reasoning_details": [{"data": "x"}]}, 0),
    ],
)
def test_a_message_takes_as_many_indices_as_it_counts_to(message, count):
    assert count_indices(message) == count


@pytest.mark.parametrize("field", ["content", "reasoning_content"])
def test_a_turn_of_more_text_than_any_model_writes_is_the_upstreams_failure(field):
    chunk = {"choices": [{"index": 0, "delta": {field: "word " * 10_000}}]}
    streamed, whole = Assembler(CallUpstream({}, number=1)), Assembler(CallUpstream({}, number=1))
    streamed.feed(chunk)
    for _ in range(MOST_TEXT // 50_000 - 1):
        streamed.feed_text("word " * 10_000)
    with pytest.raises(UpstreamError, match="more than"):
        streamed.feed_text("word " * 10_000)
    message = {"role": "assistant", field: "a" * (MOST_TEXT + 1)}
    first, _ = pieces_of_whole({"choices": [{"message": message, "finish_reason": "stop"}]})
    with pytest.raises(UpstreamError, match="more than"):
        whole.feed(first)
