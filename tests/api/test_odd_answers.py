"""Answers of upstreams that are legal and rare, on every API."""

import orjson
import pytest

from tests.api.surfaces import CITY, DOOR, ITEMS_OR_BLOCKS, SEARCH, STREAMS, on
from tests.fakes import Reply, arguments_chunk, call_chunk, chunk, completion, stream, turn
from tests.serving import CONFIG

MINE = {"functions": ["open_door"]}
ONE_ID = [("c1", "web_search", {"query": query}) for query in ("aa", "bb")]


def page_of(query):
    """A search that finds one page, whose address tells what was looked for."""
    found = {"title": "A page", "link": f"https://{query['q']}.example/", "snippet": "Words."}
    return Reply([orjson.dumps({"organic": [found]})])


def written(reply, *chunks):
    """A reply to whoever asks for a whole answer, and these chunks for a stream."""
    return lambda request: stream(*chunks) if request.get("stream") else reply(request)


# -- ids --


@pytest.mark.parametrize(
    "turns", [[ONE_ID], [ONE_ID[:1], ONE_ID[1:]], [ONE_ID[:1], ONE_ID]], ids=["one turn", "two turns", "repeated"]
)
async def test_searches_under_one_id_have_each_their_own_result(surface, turns):
    surface.upstream.search = page_of
    replies = [*(turn(calls=calls) for calls in turns), turn("https://aa.example/\nhttps://bb.example/")]
    sources = {"include": ["web_search_call.action.sources"]} if surface.kind == "responses" else {}
    answer = await surface.ask(*replies, search=True, body=sources)
    assert answer.cited == ["https://aa.example/", "https://bb.example/"]
    asked = [arguments["query"] for calls in turns for _, _, arguments in calls]
    assert all(f"https://{query}.example/" in result for query, result in zip(asked, surface.results(), strict=True))
    if answer.kind != "chat":
        found = sorted((one.arguments["query"], one.pages) for one in answer.server_calls)
        assert found == sorted((query, (f"https://{query}.example/",)) for query in asked)


async def test_a_hidden_call_with_the_id_of_a_visible_one_leaves_it_alone(surface):
    calls = [("x", "current_time", {}), ("x", "web_search", {"query": "one"})]
    answer = await surface.ask(
        turn(calls=calls), turn("Done."), search=True, events="results" if surface.kind == "chat" else None
    )
    visible = [one for one in answer.server_calls if one.name == "web_search"]
    assert [one.failed for one in visible] == [False]


# -- the order of what is shown --


@ITEMS_OR_BLOCKS
@pytest.mark.parametrize(
    "calls",
    [
        [("a", "web_search", {"query": "one"}), ("b", "web_search", {"query": "two"}), DOOR],
        [("a", "web_search", {"query": "one"}), ("b", "web_search", {"query": "one"}), ("c", "web_search", {"query": "two"})],
    ],
)  # fmt: skip
async def test_the_order_of_a_turns_calls_is_one_whether_streamed_or_not(surface, calls):
    one_at_a_time = {"parallel_tool_calls": False}
    if surface.kind == "messages":
        one_at_a_time = {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}
    answer = await surface.ask(turn(calls=calls), turn("Done."), search=True, **MINE, body=one_at_a_time)
    shown = [
        orjson.loads(one.arguments) if isinstance(one.arguments, str) else one.arguments
        for one in answer.parts
        if hasattr(one, "arguments")
    ]
    first = [{"query": "one"}, {"query": "two"}]
    if DOOR in calls:
        assert shown == [*first, {"id": 1}]
    else:  # a call that is answered by an earlier one comes last
        assert shown == [*first, {"query": "one"}]


@ITEMS_OR_BLOCKS
async def test_what_a_model_writes_in_the_chunk_of_a_call_stands_before_the_call(surface):
    said = {"reasoning_content": "Hm.", "content": "Let me look."}
    first = written(
        turn("Let me look.", thoughts="Hm.", calls=[SEARCH]), call_chunk(SEARCH, finish_reason="tool_calls", **said)
    )
    answer = await surface.ask(first, turn("Done."), search=True, thinking=True)
    assert answer.kinds == ["thoughts", "text", "servercall", "text"]
    assert (answer.thoughts, answer.texts) == ("Hm.", ["Let me look.", "Done."])


@ITEMS_OR_BLOCKS
@pytest.mark.parametrize("calls", [[DOOR, SEARCH], [SEARCH, DOOR]])
async def test_calls_that_come_in_one_chunk_stand_in_their_order(surface, calls):
    reply = written(turn(calls=calls), call_chunk(*calls, finish_reason="tool_calls"))
    answer = await surface.ask(reply, search=True, **MINE)
    assert answer.kinds == ["call" if call is DOOR else "servercall" for call in calls]


@ITEMS_OR_BLOCKS
async def test_a_last_word_that_could_begin_a_leak_stands_before_the_call_that_follows_it(surface):
    first = turn(["I'll use ", "`web_search`"], calls=[SEARCH])
    answer = await surface.ask(first, turn("Done."), search=True)
    assert answer.kinds == ["text", "servercall", "text"]
    assert answer.texts[0] == "I'll use `web_search`"


@ITEMS_OR_BLOCKS
@pytest.mark.parametrize("blanks", ["\n\n\n", "\n\n \n"])
async def test_blank_lines_before_a_call_are_no_part_behind_it(surface, blanks):
    answer = await surface.ask(turn(["Let me look.", *blanks], calls=[DOOR]), **MINE)
    assert (answer.kinds, answer.texts) == (["text", "call"], ["Let me look." + blanks])


async def test_a_hidden_call_takes_no_line_ends_from_the_text_before_the_clients_call(surface):
    answer = await surface.ask(turn("text\n\n\n", calls=[("u1", "current_time", {}), DOOR]), search=True, **MINE)
    assert (answer.kinds, answer.texts) == (["text", "call"], ["text\n\n\n"])


# -- calls in odd pieces --


@STREAMS
@pytest.mark.parametrize("begun", ["", '{"id'])
async def test_calls_that_are_all_begun_before_the_rest_of_their_arguments_have_each_their_own(surface, begun):
    first = [call_chunk((f"u{at}", "open_door", begun), at=at) for at in range(3)]
    rest = [arguments_chunk(f'{{"id": {at}}}'.removeprefix(begun), at=at) for at in range(3)]
    answer = await surface.ask(stream(*first, *rest, chunk({}, "tool_calls")), **MINE)
    assert [orjson.loads(arguments) for _, arguments in answer.calls] == [{"id": 0}, {"id": 1}, {"id": 2}]


@STREAMS
@pytest.mark.parametrize("between", [[], [call_chunk(SEARCH, at=1)]], ids=["text", "text and a search"])
async def test_text_between_the_name_of_a_call_and_its_arguments_takes_none_of_them_away(surface, between):
    reply = stream(
        call_chunk(("u0", "open_door", "")), chunk({"content": "A"}), chunk({"content": " door."}), *between,
        arguments_chunk('{"id": 1}'), chunk({"content": " Open?"}), chunk({}, "tool_calls"),
    )  # fmt: skip
    answer = await surface.ask(reply, search=True, **MINE)
    assert [orjson.loads(arguments) for _, arguments in answer.calls] == [{"id": 1}]
    assert "".join(answer.texts) == "A door. Open?"


@STREAMS
@pytest.mark.parametrize("between", [chunk({"content": "A door."}), call_chunk(SEARCH, at=1)])
async def test_blanks_behind_complete_arguments_are_no_part_of_another(surface, between):
    reply = stream(
        call_chunk(("u0", "open_door", '{"id": 1}')), between, arguments_chunk("\n"), chunk({}, "tool_calls")
    )
    answer = await surface.ask(reply, search=True, **MINE)
    assert [orjson.loads(arguments) for _, arguments in answer.calls] == [{"id": 1}]
    assert answer.texts in ([], ["A door."])


@STREAMS
async def test_blanks_behind_complete_arguments_are_no_second_call(surface):
    reply = stream(call_chunk(SEARCH), arguments_chunk(" \n"), chunk({}, "tool_calls"))
    answer = await surface.ask(reply, turn("Done."), search=True)
    assert (answer.texts, len(surface.upstream.searches)) == (["Done."], 1)


async def test_a_number_of_any_size_stays_as_the_model_wrote_it(surface):
    answer = await surface.ask(turn(calls=[("u1", "open_door", '{"id":18446744073709551617}')], size=100), **MINE)
    assert "18446744073709551617" in answer.raw


async def test_a_tool_that_does_not_exist_has_its_name(messages):
    answer = await messages.ask(turn(calls=[("a", "brew_tea", {})]), turn("No tea."), search=True, events="true")
    assert [(one.name, one.failed) for one in answer.server_calls] == [("brew_tea", True)]


@STREAMS
@pytest.mark.parametrize("events", ["true", None])
async def test_a_turn_is_not_asked_for_again_once_one_of_its_calls_was_shown(surface, events):
    config = CONFIG.replace("retries: 0", "retries: 1")
    answer = await surface.ask(stream(call_chunk(SEARCH), None), turn("Done."), config=config, events=events)
    assert (bool(answer.error), "Done." in answer.texts) == (bool(events), not events)
    assert len(surface.upstream.requests) == (1 if events else 2)


# -- how an answer ends --


@pytest.mark.parametrize(
    ("reason", "finish"),
    [("stop", "stop"), ("length", "length"), ("content_filter", "content_filter"), ("sensitive", "content_filter")],
)
async def test_an_answer_ends_for_the_reason_of_its_upstream(surface, reason, finish):
    answer = await surface.ask(turn("Half an ans", finish=reason))
    assert (answer.finish, answer.texts) == (finish, ["Half an ans"])


@on("relay-whole", "relay-streamed")
@pytest.mark.parametrize("reason", ["eos", "STOP"])
async def test_an_unknown_finish_reason_beside_calls_is_tool_calls_where_they_are_relayed(surface, reason):
    answer = await surface.ask(turn(calls=[DOOR], finish=reason), **MINE)
    assert answer.finish == "tool_calls"


async def test_a_call_that_was_cut_off_ends_the_answer_although_a_search_had_begun_early(surface):
    reply = written(
        turn("let", calls=[SEARCH, ("c1", "open_door", '{"n":')], finish="length"),
        chunk({"content": "let"}), call_chunk(SEARCH), call_chunk(("c1", "open_door", '{"n":'), at=1, finish_reason="length"),
    )  # fmt: skip
    answer = await surface.ask(reply, search=True, **MINE)
    assert (answer.finish, [name for name, _ in answer.calls]) == ("length", ["open_door"])
    assert [one.failed for one in answer.server_calls] == [True] * (answer.kind != "chat")
    if answer.kind == "responses":
        assert [item["status"] for item in answer.whole["output"]] == ["completed", "failed", "incomplete"]


@ITEMS_OR_BLOCKS
async def test_a_second_answer_that_is_cut_off_is_incomplete(surface):
    answer = await surface.ask(turn('{"b": 1}'), turn('{"city"', finish="length"), search=True, schema=CITY, most=40)
    assert answer.finish == "length"


@ITEMS_OR_BLOCKS
async def test_an_empty_answer_is_not_repeated_to_the_model_that_is_to_mend_it(surface):
    fit = '{"city":"N","degrees":1}'
    answer = await surface.ask(turn(""), turn(fit), profile="glm", schema=CITY, server_tools="none")
    assert answer.texts == [fit]
    assert [one["role"] for one in surface.upstream.requests[1]["messages"]] == ["system", "user", "user"]


@on("responses-streamed", "messages-streamed")
async def test_a_checked_answer_that_comes_in_many_chunks_is_all_of_its_text(surface):
    fit = '{"city":"Nanaimo","degrees":1234}'
    answer = await surface.ask(turn(fit, size=3), profile="glm", schema=CITY, server_tools="none")
    assert answer.texts == [fit]


@on("chat-whole", "relay-whole")
async def test_a_whole_answer_of_the_loop_says_that_there_is_no_refusal(surface):
    [choice] = (await surface.ask(turn("Done."))).whole["choices"]
    assert choice["message"].get("refusal", "absent") == ("absent" if surface.kind == "relay" else None)


# -- use --


@pytest.mark.parametrize("usage", [None, {"prompt_tokens": "12", "completion_tokens": None}])
async def test_a_count_that_is_none_is_no_fault(surface, usage):
    answer = await surface.ask(turn("Hello there", usage=usage))
    assert (answer.tokens[0] > 5, answer.tokens[1] > 1) == (True, True)  # an estimate


async def test_the_estimate_for_an_upstream_that_does_not_count_has_the_input_of_every_turn(surface):
    async with surface.proxy(turn(calls=[SEARCH], usage=None), *[turn("Yes.", usage=None)] * 2) as client:
        searched, direct = await client.ask(search=True), await client.ask(search=True)
    assert 2 * direct.tokens[0] < searched.tokens[0] < 4 * direct.tokens[0]


# -- requests --


@on("chat-whole", "responses-whole")
async def test_a_tool_that_the_header_names_is_offered_whatever_function_is_demanded(surface):
    await surface.ask(turn("Hi"), **MINE, choice="open_door", server_tools="web_search")
    [request] = surface.upstream.requests
    assert [tool["function"]["name"] for tool in request["tools"]] == ["open_door", "web_search"]
    assert request["tool_choice"] == {"type": "function", "function": {"name": "open_door"}}


@on("responses-whole")
async def test_a_file_in_a_plain_data_url_is_read(surface):
    part = {"type": "input_file", "filename": "a.txt", "file_data": "data:text/plain,hello%20world"}
    await surface.ask(turn("Hi"), body={"input": [{"role": "user", "content": [part]}]})
    assert "hello world" in orjson.dumps(surface.upstream.requests[0]["messages"]).decode()


@on("chat-whole")
@pytest.mark.parametrize("message", [{"content": "Fine."}, {"content": "Fine.", "role": None}])
async def test_a_whole_answer_has_a_role_although_the_upstream_leaves_it_out(surface, message):
    given = completion()
    given["choices"][0]["message"] = message
    answer = await surface.ask(Reply([orjson.dumps(given)]), server_tools="all")
    assert answer.whole["choices"][0]["message"]["role"] == "assistant"
