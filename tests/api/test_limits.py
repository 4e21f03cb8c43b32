"""Whatever a model does, on every API the client gets an answer: limits, leaks, blank turns, and no answer at all."""

import asyncio

import pytest

from tests.api.surfaces import CITY, EACH, ITEMS_OR_BLOCKS, SEARCH, on
from tests.fakes import Reply, turn

MOST_TURNS = "limits: {max_turns: 3}"
GARBAGE = '{"cursor":2,"id":2}'
NAMED_CALL = '{"name": "web_search", "arguments": {"query": "news"}}'
FIT = '{"city":"N","degrees":12}'
LEAKED = "<tool_call>web_search<arg_key>query</arg_key><arg_value>news</arg_value></tool_call>"


def completed(logged):
    """What the log says of the one request."""
    [line] = [line for line in logged() if line["event"] == "request.completed"]
    return line


def never_stops(surface, *, answers=lambda request: "tools" not in request, garbage=None):
    """A model that goes on searching until `answers(request)`; without tools it may write garbage instead."""

    def model(request):
        number = len(surface.upstream.requests)
        if answers(request):
            return turn("Enough.")(request)
        if garbage and "tools" not in request:
            return turn(garbage)(request)
        return turn(calls=[(f"c{number}", "web_search", {"query": f"attempt {number}"})])(request)

    return model


def retold(request):
    return "The tools are no longer available" in str(request["messages"][-1]["content"])


async def test_a_model_that_never_stops_searching_is_made_to_answer(surface):
    answer = await surface.ask(never_stops(surface), more=MOST_TURNS, search=True)
    assert (answer.texts, answer.finish) == (["Enough."], "stop")
    assert surface.streaming or answer.headers["x-tool-stop"] == "max_turns"
    assert (len(surface.upstream.requests), len(surface.upstream.searches)) == (4, 2)


@on("chat-whole", "chat-streamed", "messages-streamed")
@pytest.mark.parametrize(
    ("profile", "scene", "rung"),
    [
        ("glm", {}, "withdraw"),
        ("glm", {"answers": retold}, "retell"),
        ("gpt_oss", {"answers": retold, "garbage": GARBAGE}, "retell"),
        ("openai", {"answers": retold, "garbage": GARBAGE}, "retell"),
        ("openai", {"answers": retold, "garbage": "<tool_call>web_search<arg_key>query</arg_key>"}, "retell"),
        ("openai", {"answers": retold, "garbage": "  "}, "retell"),
        ("openai", {"answers": retold, "garbage": f"I will call it.\n```json\n{NAMED_CALL}\n```"}, "retell"),
        ("openai", {"answers": retold, "garbage": "<think>I should search.</think>"}, "retell"),
    ],
)
async def test_whatever_a_model_does_at_the_limit_the_client_gets_a_real_answer(surface, profile, scene, rung, logged):
    answer = await surface.ask(never_stops(surface, **scene), profile=profile, more=MOST_TURNS)
    assert (answer.texts, len(surface.upstream.requests) <= 5) == (["Enough."], True)
    done = completed(logged)
    assert (done["rung"], done["stop"]) == (rung, "max_turns")


FIRST_AND_SPARE = """
upstreams:
  up: {{base_url: "{upstream}/v1", api_key: key-one, profile: FIRST, retries: 0}}
  other: {{base_url: "{upstream}/other", api_key: key-two, profile: SPARE, retries: 0}}
models:
  m: {{upstream: up, model: first, fallbacks: [spare]}}
  spare: {{upstream: other}}
tools:
  web_search: {{type: serper, api_key: serper-secret, base_url: {upstream}}}
limits: {{max_turns: 2}}
{more}
"""


@pytest.mark.parametrize("failing", [2, 3])  # the request that fails: the first or the second that forces the answer
@pytest.mark.parametrize(("first", "spare", "step"), [("gpt_oss", "glm", "withdraw"), ("glm", "gpt_oss", "notice")])
async def test_after_a_fallback_the_answer_is_forced_by_the_means_of_the_upstream_that_gives_it(
    chat, failing, first, spare, step, logged
):
    asked = chat.upstream.requests

    def model(request):
        if len(asked) == failing:
            return Reply([b"{}"], status=503)
        if request["model"] == "spare" and len(asked) > 3:  # the second attempt, by either upstream
            return turn("Enough.")(request)
        return turn(calls=[(f"c{len(asked)}", "web_search", {"query": f"q{len(asked)}"})])(request)

    answer = await chat.ask(model, config=FIRST_AND_SPARE.replace("FIRST", first).replace("SPARE", spare))
    assert answer.text == "Enough."
    assert [one["model"] for one in asked[failing - 1 :]] == ["first", *["spare"] * (4 - failing)]
    assert completed(logged)["rung"] == step
    assert ("tools" in asked[-1]) is (spare == "gpt_oss")


async def test_a_client_lowers_its_budget_but_never_raises_it(surface):
    replies = [turn(calls=[(f"c{n}", "web_search", {"query": str(n)}) for n in range(5)]), turn("Done")] * 2
    async with surface.proxy(*replies, more="limits: {max_tool_calls: 3}") as client:
        for most, searches in ((1, 1), (100, 4)):
            await client.ask(search=True, body={"max_tool_calls": most})
            assert len(surface.upstream.searches) == searches
    assert not any("max_tool_calls" in request for request in surface.upstream.requests)


async def test_after_the_deadline_the_model_answers_from_what_it_has(surface):
    surface.upstream.search = Reply([asyncio.Event()])
    answer = await surface.ask(turn(calls=[SEARCH]), turn("From memory."), more="limits: {deadline: 0.1}")
    assert answer.text == "From memory."
    assert surface.streaming or answer.headers["x-tool-stop"] == "deadline"
    assert "time for this request is used up" in surface.results()[0]


async def test_a_model_that_never_answers_in_words_is_a_clear_error(surface):
    answer = await surface.ask(turn(calls=[SEARCH]), turn(""))
    assert (answer.status, answer.error["code"]) == (502, "no_final_answer")
    assert answer.headers["x-should-retry"] == "false"  # else SDKs repeat all of the attempts


async def test_the_request_as_a_whole_is_bounded(surface):
    async with surface.proxy(Reply([asyncio.Event()]), more="limits: {max_duration: 0.1}") as client:
        for tools in ("all", "none"):
            answer = await client.ask(server_tools=tools)
            assert (answer.status, answer.error["code"]) == (504, "max_duration_exceeded")


@EACH
@pytest.mark.parametrize("blank", ["", "\n", None])
async def test_a_model_that_goes_blank_after_a_result_is_asked_again(surface, blank, logged):
    answer = await surface.ask(turn(calls=[SEARCH]), turn(blank, thoughts="I know it now."), turn("Here it is."))
    assert (answer.text, answer.finish) == ("Here it is.", "stop")
    done = completed(logged)
    assert (done["rung"], done["stop"]) == ("notice", "answer")


async def test_a_model_that_is_blank_in_its_first_turn_is_asked_once_more(surface):
    replies = turn("", thoughts="Hm."), turn("I look.", calls=[SEARCH]), turn("\n\nSee https://a.example/.")
    answer = await surface.ask(*replies, search=True, thinking=True)
    assert (answer.text, answer.cited, len(surface.upstream.requests)) == (
        "See https://a.example/.",
        ["https://a.example/"],
        3,
    )
    first, again = ({**request, "max_tokens": None} for request in surface.upstream.requests[:2])
    assert again == first
    if answer.kind != "chat":
        assert answer.kinds == ["thoughts", "text", "servercall", "text"]


@pytest.mark.parametrize(
    "leak",
    [
        LEAKED,
        '<|channel|>commentary to=functions.web_search<|message|>{"query":"news"}<|call|>',
        'web_search<|channel|>commentary json<|message|>{"query":"news"}',
        'web_search<|channel|>commentary {"query":"news"}',
        '{"query":"news"}',
        NAMED_CALL,
    ],
)
@pytest.mark.parametrize("messages", [[], [{"role": "system", "text": "Never show raw JSON to the user."}]])
async def test_a_call_that_leaked_into_the_text_is_run_and_never_shown(chat, leak, messages):
    said = [*messages, {"role": "user", "text": "What is new?"}]
    answer = await chat.ask(turn(leak, size=3), turn("Done."), messages=said)
    words, _, last = "".join(answer.texts).rpartition("\n\n")
    assert last == "Done."
    # Of a call whose first mark was lost, a stream may have shown the words before the next mark.
    assert ("web_search" if chat.streaming and leak.startswith("web_search<") else "").startswith(words)
    assert chat.upstream.searches == [{"q": "news", "num": 5}]
    assistant, result = chat.history()[-2:]
    assert result["tool_call_id"] == assistant["tool_calls"][0]["id"]


async def test_a_leaked_call_is_a_call_on_every_api(surface):
    answer = await surface.ask(turn(LEAKED, size=3), turn("Done."), search=True)
    assert (answer.texts, len(surface.upstream.searches)) == (["Done."], 1)


def counting(tokens):
    """The use of a turn in which the model has written so many tokens."""
    return {"prompt_tokens": 10, "completion_tokens": tokens, "total_tokens": 10 + tokens}


@ITEMS_OR_BLOCKS
async def test_what_may_be_written_is_bounded_for_the_whole_answer(surface):
    replies = turn("Searching.", calls=[SEARCH], usage=counting(60)), turn("Done", usage=counting(5))
    async with surface.proxy(*replies) as client:
        fine = await client.ask(search=True, most=100)
        bounds = [request["max_tokens"] for request in surface.upstream.requests]
        surface.upstream.restart([turn("Searching.", calls=[SEARCH], usage=counting(100))])
        cut = await client.ask(search=True, most=100)
    assert (fine.finish, bounds) == ("stop", [100, 40])
    assert (cut.finish, cut.texts, len(surface.upstream.requests)) == ("length", ["Searching."], 1)
    assert (
        surface.streaming or not surface.upstream.searches
    )  # in a stream the search may have begun before the count came


@ITEMS_OR_BLOCKS
async def test_an_answer_is_mended_with_what_is_left_to_write(surface):
    unfit = '{"city":"N","degrees":"cold"}'
    replies = turn(unfit, usage=counting(60)), turn(FIT)
    async with surface.proxy(*replies, profile="glm") as client:
        assert (await client.ask(schema=CITY, most=100)).texts == [FIT]
        assert [request["max_tokens"] for request in surface.upstream.requests] == [100, 40]
        surface.upstream.restart([turn(unfit, usage=counting(100))])
        cut = await client.ask(schema=CITY, most=100)
    assert (cut.finish, len(surface.upstream.requests)) == ("length", 1)
