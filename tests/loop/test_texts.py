import pytest

from proxy.loop.actions import CallUpstream
from proxy.loop.texts import TurnTexts

CALL = CallUpstream({}, number=1, tools={"search": {"properties": {"q": {}}}})
ENTRY = {"type": "reasoning.text", "text": "I call <", "index": 0}


def details_left(texts, thought, *details):
    """The `reasoning_details` that are left of a delta with this thought."""
    delta = {"reasoning": thought, "reasoning_details": list(details)}
    texts.fold(delta)
    return delta["reasoning_details"]


def test_entries_repeat_no_more_of_the_thoughts_than_is_shown_of_them():
    texts = TurnTexts(CALL)
    sealed = {"type": "reasoning.encrypted", "data": "x", "index": 1}
    left = details_left(texts, ENTRY["text"], ENTRY, sealed, "odd")
    assert left == [{**ENTRY, "text": "I call "}, sealed, "odd"]
    assert details_left(texts, "tool", {**ENTRY, "text": "tool"}) == []
    rest = {}
    texts.close(rest)
    assert rest == {"reasoning": "<tool", "reasoning_details": [{**ENTRY, "text": "<tool"}]}


def test_a_thought_without_entries_is_shown_without_them():
    texts = TurnTexts(CALL)
    texts.fold({"reasoning": "I call <"})
    rest = {}
    texts.close(rest)
    assert rest == {"reasoning": "<"}


@pytest.mark.parametrize(("details", "thought"), [("odd", "x"), ([{"text": ""}], "")])
def test_entries_that_repeat_nothing_stay_as_they_are(details, thought):
    delta = {"reasoning": thought, "reasoning_details": details}
    TurnTexts(CALL).fold(delta)
    assert delta["reasoning_details"] == details
