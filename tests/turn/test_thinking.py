"""Thoughts at the beginning of a text, however it is cut into pieces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.turn.thinking import ThoughtsInText

LONG = "The user wants to know something that needs many words before it is clear what the answer has to be."


def split(pieces, *, has_thoughts=False):
    """The thoughts and the answer in the pieces, and how many characters of the answer waited for the end."""
    thinking, deltas = ThoughtsInText(), []
    for piece in pieces:
        deltas.append({"content": piece})
        thinking.split(deltas[-1], has_thoughts=has_thoughts)
    held = thinking.close()
    assert thinking.is_done
    deltas.append(held)
    joined = ["".join(delta.get(name) or "" for delta in deltas) for name in ("reasoning_content", "content")]
    return *joined, len(held.get("content", ""))


TEXTS = [
    ("<think>Hm.</think>Yes.", "Hm.", "Yes."),
    ("\n<think>\nHm.\n</think>\n\nYes.\n", "\nHm.\n", "Yes.\n"),
    (f"<think>{LONG} a < b </thin </think>Yes.</think>", f"{LONG} a < b </thin ", "Yes.</think>"),
    ("<think></think>Yes.", "", "Yes."),
    ("</think>\n\nYes.", "", "Yes."),
    ("I should say yes.</think>Yes.", "I should say yes.", "Yes."),
    ("<think>I never stop", "I never stop", ""),
    ("<think>I never stop </thi", "I never stop </thi", ""),
    ("Yes.", "", "Yes."),
    ("<thinking>Yes.", "", "<thinking>Yes."),
    ("The mark `</think>` ends a thought.", "", "The mark `</think>` ends a thought."),
    (f"{LONG}</think>Yes.", LONG, "Yes."),
    ("Yes. <think>Hm.", "", "Yes. <think>Hm."),
    ("", "", ""),
]


@pytest.mark.parametrize(("text", "thoughts", "answer"), TEXTS)
def test_thoughts_before_an_answer_are_thoughts_wherever_the_text_is_cut(text, thoughts, answer):
    for at in range(len(text) + 1):
        assert split([text[:at], text[at:]])[:2] == (thoughts, answer)
    if text.lstrip().startswith("<"):
        assert split(text)[:2] == (thoughts, answer)


@given(
    st.lists(st.sampled_from(["<think>", "</think>", "<", "/think>", "think>", "\n", "a", LONG, "`"])), st.booleans()
)
def test_nothing_but_marks_and_blank_lines_is_lost(pieces, has_thoughts):
    text = "".join(pieces)
    without_end = text.replace("</think>", "", 1)
    possible = [text, without_end, text.replace("<think>", "", 1), without_end.replace("<think>", "", 1)]
    thoughts, answer, _ = split(pieces, has_thoughts=has_thoughts)
    assert (thoughts + answer).replace("\n", "") in [one.replace("\n", "") for one in possible]


def test_behind_thoughts_of_its_own_a_text_waits_for_no_lone_end_mark():
    thinking, delta = ThoughtsInText(), {"content": "Yes"}
    thinking.split(delta, has_thoughts=True)
    assert (delta, thinking.is_done) == ({"content": "Yes"}, True)
    assert split(["</thi", "nk>\nYes."], has_thoughts=True) == ("", "Yes.", 0)


@pytest.mark.parametrize("delta", [{}, {"content": ""}, {"content": None}, {"reasoning_content": "Hm."}])
def test_a_delta_without_text_stays_as_it_is(delta):
    thinking, given = ThoughtsInText(), {**delta}
    thinking.split(given, has_thoughts=False)
    assert (given, thinking.close()) == (delta, {})


def test_only_the_first_piece_of_a_text_waits():
    thinking, shown = ThoughtsInText(), ""
    for character in LONG:
        delta = {"content": character}
        thinking.split(delta, has_thoughts=False)
        shown += delta["content"]
    assert shown == LONG
