"""A conversation that outgrows the model's context while it is worked on, on every API."""

import orjson
import pytest

from tests.api.surfaces import SEARCH, STREAMS
from tests.fakes import Reply, chunk, event, stream, turn

HITS = [{"title": "A page", "link": f"https://a.example/{n}", "snippet": "found " * 100} for n in range(10)]
FULL = {"error": {"message": "The input (70000 tokens) is longer than the model's context length (65536 tokens)."}}
REFUSED = Reply([orjson.dumps(FULL)], status=400)


@pytest.fixture
def upstream(upstream):
    upstream.search = Reply([orjson.dumps({"organic": HITS})])
    return upstream


@STREAMS
@pytest.mark.parametrize("refusal", [REFUSED, Reply([orjson.dumps(FULL)]), stream(event(FULL), done=False)])
async def test_a_refusal_before_the_first_byte_has_results_cut_and_the_turn_asked_again(surface, refusal):
    answer = await surface.ask(turn(calls=[SEARCH]), refusal, turn("Done"), events="true")
    assert answer.texts == ["Done"]
    [long], [cut] = surface.results(1), surface.results(2)
    assert len(cut) < 0.6 * len(long)


async def test_a_turn_that_is_asked_again_is_one_turn_for_the_client(chat):
    answer = await chat.ask(turn(calls=[SEARCH]), REFUSED, turn("Done"), events="true")
    started = [told["turn"] for told in answer.whole["tool_events"] if told["type"] == "turn.started"]
    assert (started, answer.whole["usage"]["server_tool_use"]["turns"]) == ([1, 2], 2)


@STREAMS
async def test_a_refusal_after_the_first_byte_ends_the_stream_with_an_error(surface):
    broken = stream(chunk({"content": "Half of"}), event(FULL), done=False)
    answer = await surface.ask(turn(calls=[SEARCH]), broken, turn("Done"))
    assert (answer.error["code"], len(surface.upstream.requests)) == ("context_length_exceeded", 2)


async def test_claude_code_is_told_the_counts_in_the_words_by_which_it_compacts(messages):
    answer = await messages.ask(REFUSED)
    assert (answer.status, answer.error["type"], len(messages.upstream.requests)) == (400, "invalid_request_error", 1)
    assert answer.error["message"].startswith("prompt is too long: 70000 tokens > 65536 maximum")


async def test_claude_code_is_told_to_lower_max_tokens_where_the_prompt_alone_fits(messages):
    said = (
        "This model's maximum context length is 262144 tokens. You requested a total of 262462 tokens: "
        "230462 tokens from the input messages and 32000 tokens for the completion."
    )
    answer = await messages.ask(Reply([orjson.dumps({"error": {"message": said}})], status=400))
    assert (answer.status, answer.error["type"]) == (400, "invalid_request_error")
    assert answer.error["message"] == (
        "input length and `max_tokens` exceed context limit: 230462 + 32000 > 262144, "
        "decrease input length or `max_tokens` and try again"
    )
