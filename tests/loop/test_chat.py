import pytest

from proxy.loop.chat import (
    Turn,
    calls_of,
    in_plain_text,
    name_of,
    parts_beside_text,
    text_of,
    thoughts_of,
)
from tests.playbook import call


def test_calls_for_the_same_thing_have_the_same_fingerprint():
    assert call(arguments='{"a":1,"b":2}').fingerprint == call(arguments='{ "b": 2, "a": 1 }').fingerprint
    assert call(arguments="{broken").fingerprint != call(arguments="{other").fingerprint
    assert len({call(arguments=none).fingerprint for none in ("", " ", "null", "{}")}) == 1


def test_only_functions_are_calls():
    message = {"tool_calls": [{"type": "mcp", "mcp": {}}, {"id": None, "function": None}]}
    assert [(one.id, one.name, one.arguments) for one in calls_of(message)] == [("", "", "")]
    assert calls_of({"tool_calls": None}) == ()


def test_the_name_of_a_tool():
    assert name_of({"function": {"name": "x"}}) == "x"
    assert name_of({"type": "custom", "custom": {"name": "y"}}) == "y"
    assert name_of({"type": "web_search"}) is None
    assert name_of({"type": "function", "function": {"name": 7}}) is None


def test_content_that_is_no_text_says_nothing():
    assert Turn({"content": [{"type": "text"}]}, "stop").text == ""


THINKING = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm"}, {"type": "text", "text": ", yes"}]}
MORE = {"type": "thinking", "thinking": [{"type": "text", "text": "."}], "closed": True}
PICTURE = {"type": "image_url", "image_url": {"url": "https://a.example/"}}
PARTS = [THINKING, MORE, {"type": "text", "text": "1"}, "odd", PICTURE, {"type": "text", "text": "44"}]


def test_text_parts_are_joined_as_they_are():
    assert text_of({"content": PARTS}) == "144"


@pytest.mark.parametrize("thought", ["Hm, yes", THINKING["thinking"]])
def test_thoughts_are_parts_of_their_own_kind(thought):
    assert thoughts_of([{"type": "thinking", "thinking": thought}, {"type": "thinking"}, PICTURE]) == "Hm, yes"


def test_thoughts_that_were_streamed_in_pieces_are_one_part():
    whole = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm, yes."}], "closed": True}
    assert parts_beside_text(PARTS) == [whole, PICTURE]


def test_a_message_in_parts_is_told_in_plain_text():
    assert in_plain_text({"role": "assistant", "content": PARTS}) == {
        "role": "assistant",
        "content": "144",
        "reasoning_content": "Hm, yes.",
    }
    assert in_plain_text({"content": [PARTS[2]]}) == {"content": "1"}
    plain = {"content": "1"}
    assert in_plain_text(plain) is plain


# -- why a model stopped --
