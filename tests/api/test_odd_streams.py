"""Streams that a lenient reader can read, although they are not quite as they should be, on every API."""

from dataclasses import replace

import orjson
import pytest

from tests.api.surfaces import DOOR, RELAY_TOO, SEARCH, STREAMS_AND_RELAY, on
from tests.fakes import Reply, chunk, event, stream, turn

WHOLE, STREAMED = {}, {"stream": True}


@on("chat-whole", "chat-streamed", "relay-whole", "relay-streamed")
@pytest.mark.parametrize("kind", ["text/plain", "application/json", "application/octet-stream", "TEXT/EVENT-STREAM"])
async def test_a_stream_is_read_as_one_whatever_its_server_calls_it(surface, kind):
    answer = await surface.ask(replace(turn("Found it")(STREAMED), content_type=kind))
    assert answer.texts == ["Found it"]
    wanted = "text/event-stream" if surface.streaming else "application/json"
    assert answer.headers["content-type"].startswith(wanted)


@pytest.mark.parametrize("first", [WHOLE, STREAMED], ids=["whole", "streamed"])
@pytest.mark.parametrize("second", [WHOLE, STREAMED], ids=["whole", "streamed"])
async def test_an_answer_in_the_other_form_can_call_tools(surface, first, second):
    answer = await surface.ask(turn(calls=[SEARCH])(first), turn("Found it")(second))
    assert (answer.texts, len(surface.upstream.searches)) == (["Found it"], 1)


@RELAY_TOO
@pytest.mark.parametrize("form", [WHOLE, STREAMED], ids=["whole", "streamed"])
async def test_an_answer_in_the_other_form_may_hold_text_a_refusal_and_calls(surface, form):
    answer = await surface.ask(turn("Found it", refusal="No", calls=[DOOR])(form), functions=["open_door"])
    assert (answer.texts[0].removesuffix("No"), answer.finish) == ("Found it", "tool_calls")  # Messages know no refusal
    assert [(name, orjson.loads(arguments)) for name, arguments in answer.calls] == [("open_door", {"id": 1})]
    if answer.kind == "chat":
        assert answer.whole["choices"][0]["message"]["refusal"] == "No"


@STREAMS_AND_RELAY
async def test_an_error_in_place_of_events_keeps_its_status(surface):
    error = b'{"error": {\n"message": "slow down", "code": 429}}'
    answer = await surface.ask(Reply([error], content_type="text/event-stream"))
    assert (answer.status, answer.error["message"]) == (429, "slow down")


@on("relay-whole")
async def test_a_relayed_stream_in_place_of_a_whole_answer_becomes_one_with_all_its_choices(surface):
    choices = [
        chunk({"content": text}, "stop").replace(b'"index":0', b'"index":%d' % at) for at, text in ((1, "b"), (0, "a"))
    ]
    usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    whole = (await surface.ask(stream(*choices, event({"choices": [], "usage": usage})), body={"n": 2})).whole
    assert [choice["message"]["content"] for choice in whole["choices"]] == ["a", "b"]
    assert (whole["object"], whole["usage"]) == ("chat.completion", usage)


@on("chat-whole", "relay-whole", "responses-whole", "messages-whole")
async def test_a_stream_in_place_of_a_whole_answer_that_breaks_off_is_a_failure(surface):
    assert (await surface.ask(stream(chunk({"content": "Half of"}), done=False))).status == 502


@on("chat-streamed", "relay-streamed")
@pytest.mark.parametrize(
    "noise",
    [
        b"data: ping\n\n", b"data: [PING]\n\n", b"data: : keep-alive\n\n", b"data:\n\n", b"data: \n\n", b"data\n\n",
        b"event: ping\n\n", b"retry: 3000\n\n", b"id: 1\n\n", b"\n\n", b": comment\n\n", b"data: null\n\n", b"data: {}\n\n",
        b'event: ping\ndata: {"type": "ping"}\n\n', b": OPENROUTER PROCESSING\n\n", b"event: keepalive\ndata: 1\n\n",
    ],
)  # fmt: skip
async def test_signs_of_life_that_are_no_chunks_do_not_reach_the_client(surface, noise):
    reply = stream(
        noise, chunk({"role": "assistant", "content": "Found"}), noise, chunk({"content": "it"}, "stop"), noise
    )
    answer = await surface.ask(reply)
    assert answer.texts == ["Foundit"]
    blocks = [block for block in answer.raw.split("\n\n") if block.strip()]
    assert all(block.strip().startswith((":", "data: ")) and "ping" not in block.lower() for block in blocks)


@STREAMS_AND_RELAY
async def test_words_that_may_be_an_error_are_not_taken_for_a_sign_of_life(surface):
    reply = stream(chunk({"content": "Half"}), b"data: Internal Server Error\n\n", chunk({}, "stop"))
    assert (await surface.ask(reply)).error["code"] == "upstream_error"


@pytest.mark.parametrize("coding", [b"none", b"identity", b"None"])
async def test_the_coding_none_is_no_coding(chat, coding):
    reply = replace(turn("Found it")(STREAMED), headers=[(b"content-encoding", coding)])
    assert (await chat.ask(reply)).texts == ["Found it"]
