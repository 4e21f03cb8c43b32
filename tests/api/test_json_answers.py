"""Answers that have to be JSON: on every API there is nothing but the JSON, and it fits the schema."""

import asyncio

import pytest

from tests.api.surfaces import CITY, DOOR, ITEMS_OR_BLOCKS, SEARCH, STREAMS, on
from tests.fakes import chunk, stream, turn

UNFIT, FIT = '{"city":"N","degrees":"cold"}', '{"city":"N","degrees":12}'
NO_TOOLS = {"x-server-tools": "none"}
# The Messages API asks for JSON by a schema only.
JSON_OBJECT = {
    "chat": {"response_format": {"type": "json_object"}},
    "responses": {"text": {"format": {"type": "json_object"}}},
}


@pytest.mark.parametrize(("call", "profile"), [(SEARCH, "openai"), (("u1", "unknown", {}), "glm")])
async def test_json_holds_the_last_turns_text_only(surface, call, profile):
    answer = await surface.ask(turn("Let me look.", calls=[call]), turn(FIT), profile=profile, search=True, schema=CITY)
    assert answer.texts == [FIT]


async def test_thoughts_before_a_search_are_shown_where_the_answer_has_to_be_json_too(surface):
    replies = turn("Let me.", thoughts="r1", calls=[SEARCH]), turn(FIT, thoughts="r2")
    answer = await surface.ask(*replies, search=True, schema=CITY, thinking=True)
    if answer.kind == "chat":
        assert answer.thoughts == ("r1r2" if surface.streaming else "r2")
    else:
        assert answer.kinds == ["thoughts", "servercall", "thoughts", "text"]
        assert answer.thoughts == "r1r2"
    assert answer.texts == [FIT]


async def test_thoughts_of_a_forced_turn_that_is_no_answer_are_not_shown(surface):
    replies = turn(calls=[SEARCH]), turn("", thoughts="I look again."), turn(FIT, thoughts="I have it.")
    answer = await surface.ask(
        *replies, more="limits: {max_tool_calls: 1}", schema=CITY, thinking=True, server_tools="all"
    )
    assert (answer.thoughts, answer.texts, len(surface.upstream.requests)) == ("I have it.", [FIT], 3)


@pytest.mark.parametrize("profile", ["openai", "glm"])
async def test_words_beside_a_call_of_the_clients_are_not_shown_as_json(surface, profile):
    replies = turn("I will open.", calls=[DOOR])
    answer = await surface.ask(replies, profile=profile, functions=["open_door"], schema=CITY)
    assert answer.kinds == ["call"]


@ITEMS_OR_BLOCKS
@pytest.mark.parametrize("profile", ["openai", "glm"])
async def test_words_beside_a_call_are_not_shown_as_json_where_only_the_client_has_tools(surface, profile):
    replies = turn("I will open.", calls=[DOOR])
    answer = await surface.ask(replies, profile=profile, functions=["open_door"], schema=CITY, server_tools="none")
    assert answer.kinds == ["call"]


@ITEMS_OR_BLOCKS
async def test_words_before_a_call_of_an_unknown_tool_are_not_shown_as_json(surface):
    replies = turn("Let me look.", calls=[("u1", "unknown", {})]), turn(FIT)
    answer = await surface.ask(*replies, functions=["open_door"], schema=CITY, server_tools="none")
    assert answer.texts == [FIT]


WRAPPED = [
    f"```json\n{FIT}\n```",
    f"\n```\n\n{FIT}```\n",
    f"```{FIT}```",
    f"<think>In JSON: ```{{}}```</think>\n\n{FIT}",
    f"<think>So.</think>```json\n{FIT}\n```",
]


@pytest.mark.parametrize("text", WRAPPED)
@pytest.mark.parametrize("profile", ["openai", "glm"])
async def test_json_is_taken_out_of_a_code_fence_and_from_behind_thoughts(surface, profile, text):
    answer = await surface.ask(turn(calls=[SEARCH]), turn(text), profile=profile, search=True, schema=CITY)
    assert (answer.texts, len(surface.upstream.requests)) == ([FIT], 2)


@ITEMS_OR_BLOCKS
async def test_json_in_a_code_fence_is_not_asked_for_again(surface):
    answer = await surface.ask(turn(WRAPPED[0]), profile="glm", schema=CITY, headers=NO_TOOLS)
    assert (answer.texts, len(surface.upstream.requests)) == ([FIT], 1)


@on("chat-whole", "chat-streamed", "responses-whole", "responses-streamed")
@pytest.mark.parametrize("text", [f"Here: ```{FIT}```", "```\nnot JSON\n```", f"```{FIT}```\n```{FIT}```"])
async def test_a_code_fence_with_anything_else_stays(surface, text):
    answer = await surface.ask(turn(calls=[SEARCH]), turn(text), search=True, body=JSON_OBJECT[surface.kind])
    assert answer.texts == [text]


async def test_json_that_was_cut_off_beside_a_call_is_shown(surface):
    answer = await surface.ask(turn('{"city":"N', calls=[SEARCH], finish="length"), search=True, schema=CITY)
    assert (answer.texts, answer.finish) == (['{"city":"N'], "length")
    assert [one.failed for one in answer.server_calls] == [True] * (answer.kind != "chat")


@ITEMS_OR_BLOCKS
async def test_an_answer_that_does_not_fit_is_mended_by_one_more_turn(surface):
    answer = await surface.ask(turn(UNFIT), turn(FIT), profile="glm", schema=CITY, headers=NO_TOOLS)
    assert (answer.texts, answer.tokens) == ([FIT], (20, 2))
    assert "degrees" in surface.history()[-1]["content"]
    assert surface.upstream.requests[0]["response_format"] == {"type": "json_object"}


@ITEMS_OR_BLOCKS
async def test_a_search_before_an_answer_that_is_mended_is_told_once(surface):
    replies = turn(calls=[SEARCH]), turn(UNFIT), turn(FIT)
    answer = await surface.ask(*replies, profile="glm", search=True, schema=CITY)
    assert answer.kinds == ["servercall", "text"]


@ITEMS_OR_BLOCKS
async def test_an_answer_that_does_not_fit_twice_is_no_answer(surface):
    answer = await surface.ask(turn(UNFIT), profile="glm", schema=CITY)
    assert (answer.status, answer.error["code"], len(surface.upstream.requests)) == (502, "no_final_answer", 2)


@STREAMS
async def test_an_upstream_that_keeps_to_schemas_is_not_waited_for(surface):
    gate = asyncio.Event()
    reply = stream(chunk({"content": '{"city":'}), gate, chunk({"content": "1}"}), chunk({}, "stop"))
    async with surface.proxy(reply) as client, asyncio.timeout(10):
        async for piece in client.read(schema=CITY, headers=NO_TOOLS):
            if "city" in piece:
                gate.set()
    assert len(surface.upstream.requests) == 1


@ITEMS_OR_BLOCKS
async def test_a_refusal_where_a_schema_is_asked_for_is_a_refusal(surface):
    answer = await surface.ask(turn(refusal="I can't."), search=True, schema=CITY)
    assert (answer.texts, len(surface.upstream.requests)) == (["I can't."], 1)
