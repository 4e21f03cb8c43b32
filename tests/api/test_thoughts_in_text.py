"""Thoughts that GLM has written into its text, on every API, whole and streamed."""

import pytest

from tests.api.answer import Text, Thoughts
from tests.api.surfaces import DOOR, SEARCH, on
from tests.fakes import turn

MARKED = "<think>Hm, so.</think>\n\nThe answer."
# In a stream, one piece waits for an end mark alone.
TEXTS = [*((MARKED, size) for size in (1, 7, 1000)), (["Hm, so.", "</think>", "The answer."], 7), (MARKED[7:], 1000)]


@pytest.mark.parametrize(("text", "size"), TEXTS)
async def test_thoughts_in_the_text_of_glm_are_thoughts(surface, text, size):
    answer = await surface.ask(turn(text, size=size), profile="glm", thinking=True, search=True)
    assert [part.text for part in answer.parts if isinstance(part, Text)] == ["The answer."]
    assert [part.text for part in answer.parts if isinstance(part, Thoughts)] == ["Hm, so."]


async def test_thoughts_in_the_text_of_a_turn_that_searches_are_thoughts(surface):
    first = turn("<think>I have to search.</think>One moment.", calls=[SEARCH])
    answer = await surface.ask(first, turn("</think>Found."), profile="glm", thinking=True, search=True)
    assert "think>" not in answer.raw
    assert answer.text.endswith("Found.")
    message = next(one for one in surface.history() if one["role"] == "assistant")
    assert (message["reasoning_content"], message["content"]) == ("I have to search.", "One moment.")


async def test_the_first_words_before_a_call_are_shown(surface):
    answer = await surface.ask(turn("Let me", calls=[DOOR]), profile="glm", functions=["open_door"], search=True)
    assert answer.text == "Let me"


async def test_thoughts_in_the_text_spoil_no_json(surface):
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    text = '<think>It is {"a": 2}?</think>{"a": 1}'
    answer = await surface.ask(turn(text), profile="glm", schema=schema, search=True)
    assert answer.text == '{"a": 1}'


async def test_a_text_of_another_profile_keeps_its_marks(surface):
    answer = await surface.ask(turn("<think>Hm.</think>Yes."), search=True)
    assert answer.text == "<think>Hm.</think>Yes."


@on("relay-whole", "relay-streamed")
async def test_thoughts_in_the_text_of_a_relayed_answer_stay_as_they_came(surface):
    answer = await surface.ask(turn("<think>Hm.</think>Yes."), profile="glm")
    assert answer.text == "<think>Hm.</think>Yes."
