import pytest

from proxy.loop.actions import CallUpstream
from proxy.turn.assembler import Assembler
from proxy.turn.pieces import pieces_of_whole
from proxy.turn.request import TurnView
from proxy.turn.texts import MOST_TEXT, TurnTexts
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
    [first] = pieces_of_whole({"choices": [{"message": message, "finish_reason": "stop"}]})
    with pytest.raises(UpstreamError, match="more than"):
        whole.feed(first)
    with pytest.raises(UpstreamError, match="more than"):
        Assembler(CallUpstream({}, number=1)).feed_unseen({"choices": [{"message": message, "finish_reason": "stop"}]})
