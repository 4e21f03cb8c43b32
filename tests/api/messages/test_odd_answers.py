"""What only the Messages API has: input that is an object, stop sequences, and blocks that come back."""

from time import process_time

import orjson
import pytest

from proxy.api.messages.blocks import Blocks
from proxy.api.sealed import Sealer
from proxy.loop.fence import unfenced
from tests.api.messages.asking import ASK, FETCH, SEARCH, client, follow_up, kinds, raw
from tests.api.surfaces import DOOR, on
from tests.api.surfaces import SEARCH as SEARCH_CALL
from tests.fakes import turn
from tests.serving import proxy_of

MINE = {"functions": ["open_door"]}
PIECES = [(("messages", "whole"), 100), (("messages", "streamed"), 100), (("messages", "streamed"), 1)]


def search(call_id, query):
    return (call_id, "web_search", {"query": query})


# -- blocks that come back --


async def test_the_proxys_own_answer_with_a_hidden_tools_blocks_is_taken_back(messages):
    async with messages.proxy(turn(calls=[SEARCH_CALL, ("u3", "current_time", {}), DOOR]), turn("Done.")) as client:
        first = await client.ask(search=True, **MINE, events="true")
        await client.ask(after=first, results=["open"])
    assert messages.roles()[-4:] == ["assistant", "tool", "tool", "tool"]


async def test_searches_around_a_hidden_call_come_back_in_one_turn(messages):
    calls = [search("a", "one"), ("b", "current_time", {}), search("c", "two")]
    async with messages.proxy(turn(calls=calls), turn("Done."), turn("Yes.")) as client:
        await client.ask(after=await client.ask(search=True, events="true"), text="Sure?")
    [turn_back] = [one["tool_calls"] for one in messages.history() if one.get("tool_calls")]
    arguments = [(call["function"]["name"], orjson.loads(call["function"]["arguments"])) for call in turn_back]
    assert arguments == [("web_search", {"query": "one"}), ("web_search", {"query": "two"}), ("current_time", {})]


@on("messages-whole")
async def test_blocks_of_another_server_between_a_call_and_its_result_break_nothing(surface):
    content = [
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}},
        {"type": "server_tool_use", "id": "srvtoolu_2", "name": "code_execution", "input": {}},
        {"type": "tool_use", "id": "toolu_1", "name": "open_door", "input": {}},
        {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []},
        {"type": "code_execution_tool_result", "tool_use_id": "srvtoolu_2", "content": {}},
        {"type": "redacted_thinking", "data": "x"},
        {"type": ["text"]},
    ]
    opened = {"type": "tool_result", "content": "open", "tool_use_id": "toolu_1"}
    history = {"messages": follow_up({"content": content}, opened)}
    await surface.ask(turn("Done."), search=True, **MINE, body=history)
    [calls] = [one["tool_calls"] for one in surface.history() if one.get("tool_calls")]
    assert [call["function"]["name"] for call in calls] == ["web_search", "open_door"]


async def test_the_model_reads_again_what_an_app_was_shown_as_events(messages):
    async with messages.proxy(turn(calls=[SEARCH_CALL, ("u3", "nobody", {})]), turn("Late."), turn("Yes.")) as client:
        first = await client.ask(events="true")
        await client.ask(after=first, text="Sure?", headers={"x-tool-events": "false"})
    assert kinds(first.whole) == ["mcp_tool_use"] * 2 + ["mcp_tool_result"] * 2 + ["text"]
    then, again = messages.results(1), messages.results(2)
    assert unfenced(again[0]) == unfenced(then[0]) != again[0]
    assert again[1] == '{"error":"There is no tool named \'nobody\'."}'


@pytest.mark.parametrize("content", ["", [], [{"type": "text", "text": ""}]])
async def test_an_empty_last_message_is_refused_in_words_of_its_own(upstream, content):
    said = [*ASK["messages"], {"role": "assistant", "content": "x"}, {"role": "user", "content": content}]
    async with proxy_of(upstream) as url:
        response = await raw(url, {**ASK, "messages": said})
    assert response.status_code == 400
    assert response.json()["error"]["message"] == f"messages.{len(said) - 1}.content: must not be empty"


# -- input --


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ("{'query': 'b'}", {"query": "b"}),
        ('{"query": "b",}', {"query": "b"}),
        ("query=b", {"INVALID_JSON": "query=b"}),
        ("[1]", {"INVALID_JSON": "[1]"}),
        ("null", {}),
        ('"{\\"query\\": \\"b\\"}"', {"query": "b"}),
    ],
)
async def test_the_input_of_a_servers_call_is_an_object_whatever_the_model_has_written(messages, arguments, shown):
    answer = await messages.ask(turn(calls=[("u1", "web_search", arguments)]), turn("Done."), search=True)
    assert answer.whole["content"][0]["input"] == shown
    assert answer.text == "Done."


@pytest.mark.parametrize(("messages", "size"), PIECES, indirect=["messages"])
@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ("null", {}),
        (" null\n", {}),
        ("", {}),
        ('""', {}),
        ('"{\\"door\\": 1}"', {"door": 1}),
        ('"{}"', {}),
        ('\n {"door": 1}', {"door": 1}),
        ("[]", {"INVALID_JSON": "[]"}),
        ("7", {"INVALID_JSON": "7"}),
        ('"door"', {"INVALID_JSON": '"door"'}),
        ("\"{'door': 1}\"", {"INVALID_JSON": "\"{'door': 1}\""}),
    ],
)
async def test_the_input_of_a_clients_call_is_an_object_in_however_many_pieces_it_comes(
    messages, arguments, shown, size
):
    calls = [("u1", "open_door", arguments), ("u2", "open_door", {"door": 2})]
    answer = await messages.ask(turn(calls=calls, size=size), **MINE)
    assert [block["input"] for block in answer.whole["content"]] == [shown, {"door": 2}]


@on("messages-whole", "messages-streamed")
@pytest.mark.parametrize("size", [1, 100])
@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ("door one", {"INVALID_JSON": "door one"}),
        ("{ 'door': 1}", {"door": 1}),
        ('```json\n{"door": 1}\n```', {"door": 1}),
        ('{"door": ["a"', {"door": ["a"]}),
        ('{"door": 1,}', {"door": 1}),
        ('{"door": "a"', {"door": "a"}),
        ('{"door": 1', {"INVALID_JSON": '{"door": 1'}),
        ('{"door": "a', {"INVALID_JSON": '{"door": "a'}),
        ('{"door": 1} {"door": 2}', {"INVALID_JSON": '{"door": 1} {"door": 2}'}),
    ],
)
async def test_broken_input_of_a_clients_call_is_mended_like_that_of_the_servers(surface, arguments, shown, size):
    answer = await surface.ask(turn(calls=[("u1", "open_door", arguments)], size=size), **MINE)
    assert answer.whole["content"][0]["input"] == shown


@on("messages-whole")
async def test_a_long_number_in_broken_input_keeps_its_digits(surface):
    answer = await surface.ask(turn(calls=[("u1", "open_door", '{"door": 18446744073709551617,}')]), **MINE)
    assert '"input":{"door":18446744073709551617}' in answer.raw.replace(" ", "")


@on("messages-streamed")
async def test_arguments_that_are_no_json_are_handed_on_in_a_stream_as_they_are(surface):
    answer = await surface.ask(turn(calls=[("a", "open_door", "door one")], size=100), **MINE)
    assert '"partial_json":"door one"' in answer.raw


async def test_commas_before_a_bracket_are_taken_out_of_an_input_even_if_its_turn_was_broken_off(messages):
    calls = [("u1", "open_door", '{"door": [1,],}')]
    answer = await messages.ask(turn(calls=calls, finish="length"), **MINE)
    assert answer.whole["content"][0]["input"] == {"door": [1]}


@on("messages-whole")
async def test_the_input_of_a_call_that_was_broken_off_is_not_mended(surface):
    answer = await surface.ask(turn(calls=[("u1", "open_door", '{"door": "a"')], finish="length"), **MINE)
    assert answer.whole["content"][0]["input"] == {"INVALID_JSON": '{"door": "a"'}
    assert answer.whole["stop_reason"] == "max_tokens"


async def test_the_input_of_a_hidden_tools_block_stands_in_its_first_event(upstream):
    upstream.replies = [turn(calls=[SEARCH_CALL]), turn("Done.")]
    asked = {**ASK, "extra_headers": {"x-tool-events": "true"}}
    async with proxy_of(upstream) as url, client(url) as sdk, sdk.messages.stream(**asked) as events:
        message = await events.get_final_message()
    assert message.content[0].type == "mcp_tool_use"
    assert message.content[0].input == SEARCH_CALL[2]


# -- stop sequences --


async def test_the_text_never_goes_past_a_stop_sequence(messages):
    answer = await messages.ask(turn(["one E", "N", "D two", " END"]), body={"stop_sequences": ["END", "never"]})
    assert (answer.texts, answer.whole["stop_reason"], answer.whole["stop_sequence"]) == (
        ["one "],
        "stop_sequence",
        "END",
    )
    assert messages.upstream.requests[0]["stop"] == ["END", "never"]


@on("messages-whole")
@pytest.mark.parametrize("reason", ["length", "content_filter"])
async def test_text_that_was_cut_at_a_stop_sequence_ends_there_whatever_the_upstream_did_next(surface, reason):
    answer = await surface.ask(turn("one STOP two", finish=reason), body={"stop_sequences": ["STOP", ""]})
    assert (answer.texts, answer.finish, answer.whole["stop_sequence"]) == (["one "], "stop_sequence", "STOP")


async def test_stop_sequences_without_any_letters_are_none(messages):
    await messages.ask(turn("Hi"), body={"stop_sequences": [""]})
    assert "stop" not in messages.upstream.requests[0]


async def test_a_search_behind_a_stop_sequence_is_not_run(messages):
    first = turn("one STOP two", calls=[SEARCH_CALL], size=100)
    answer = await messages.ask(first, turn("Done."), search=True, body={"stop_sequences": ["STOP"]})
    assert (answer.texts, answer.finish, answer.searches) == (["one "], "stop_sequence", 0)
    assert len(messages.upstream.requests) == 1


@pytest.mark.parametrize(("text", "stop"), [("\n\none", "\n\n"), ("one【0†L1】", "†")])
async def test_a_stop_sequence_in_what_is_not_shown_ends_nothing(messages, text, stop):
    replies = turn(text, calls=[SEARCH_CALL]), turn("Done.")
    answer = await messages.ask(*replies, profile="gpt_oss", search=True, body={"stop_sequences": [stop]})
    assert len(messages.upstream.requests) == 2
    assert [text.strip() for text in answer.texts] == ["one", "Done."]


@pytest.mark.parametrize(
    ("pieces", "stops", "text"),
    [
        (["    ", "S", "T", "ART = 1 ab", "c", "d"], ["STOP"], "    START = 1 abcd"),
        (["    ", "S", "T", "ART = 1 ab", "c", "d"], ["bc", "abcd"], "    START = 1 a"),
        (["S", "\n\nTop"], ["STOP"], "S\n\nTop"),
        (["    ", "re"], ["return"], "    re"),
    ],
)
async def test_text_that_could_begin_a_stop_sequence_stays_as_it_is_however_it_is_cut(messages, pieces, stops, text):
    answer = await messages.ask(turn(pieces), body={"stop_sequences": stops})
    assert answer.texts == [text]


async def test_a_text_of_which_all_was_held_back_has_citations_of_its_own(messages):
    texts, calls = ["Searching.", "\n\nS【0†L1】", "\n\nST"], [[search("a", "one")], [search("b", "two")], []]
    replies = [turn(text, calls=of_turn, size=100) for text, of_turn in zip(texts, calls, strict=True)]
    answer = await messages.ask(*replies, profile="gpt_oss", search=True, body={"stop_sequences": ["STOP"]})
    blocks = [block for block in answer.whole["content"] if block["type"] == "text"]
    cited = [(block["text"], bool(block.get("citations"))) for block in blocks]
    assert cited == [("Searching.", False), ("S", True), ("ST", False)]


# -- hosted tools --


@on("messages-whole")
@pytest.mark.parametrize(
    ("searching", "fetching", "refused"),
    [
        ({"allowed_domains": ["a.example"]}, {}, True),
        ({"allowed_domains": ["a.example"]}, {"blocked_domains": ["zz.example"]}, True),
        ({"allowed_domains": ["a.example"]}, {"allowed_domains": ["127.0.0.1"]}, False),
        ({"user_location": {"type": "approximate", "country": "CA"}}, {"allowed_domains": ["a.example"]}, True),
    ],
)
async def test_a_list_of_one_hosted_tool_holds_for_the_other_unless_that_has_its_own(
    surface, searching, fetching, refused
):
    reader = "  fetch_page: {type: web_fetch, allow_hosts: ['127.0.0.1'], respect_robots: false, offer: never}"
    replies = turn(calls=[("u1", "fetch_page", {"url": "http://127.0.0.1:9/"})]), turn("Done.")
    answer = await surface.ask(*replies, more=reader, tools=[{**SEARCH, **searching}, {**FETCH, **fetching}])
    code = answer.whole["content"][1]["content"]["error_code"]
    assert code == ("url_not_allowed" if refused else "url_not_accessible")


async def test_the_use_of_a_declared_tool_is_counted_also_where_it_may_not_be_called(messages):
    answer = await messages.ask(turn("Hi."), search=True, choice="none")
    assert answer.whole["usage"]["server_tool_use"] == {"web_search_requests": 0, "web_fetch_requests": 0}


async def test_blocked_domains_reach_the_search_once(messages):
    blocked = {"blocked_domains": ["a.example", "b.example"]}
    await messages.ask(turn(calls=[SEARCH_CALL]), turn("Done."), search=blocked)
    assert messages.upstream.searches[0]["q"] == "news -site:a.example -site:b.example"


# -- blocks --


def test_a_call_of_the_servers_is_shown_as_soon_as_the_clients_call_before_it_is_complete():
    blocks = Blocks(Sealer((b"k" * 32,), "client:app"))
    use = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
    blocks.begin_tool_use(0, "c", "open_door")
    assert blocks.add(use) == []  # the client's call may go on
    events = blocks.add_input(0, '{"door": 1}') + blocks.add({**use, "id": "t"})
    started = [event["content_block"]["id"] for event in events if event["type"] == "content_block_start"]
    assert started == ["s", "t"]


def test_whether_a_call_is_complete_is_known_without_reading_its_input_again():
    def seconds(count):
        blocks, begun = Blocks(Sealer((b"k" * 32,), "client:app")), process_time()
        blocks.begin_tool_use(0, "c", "open_door")
        blocks.add_input(0, '{"door":[')
        for _ in range(count):
            blocks.add_input(0, '{"n":1},')
            assert blocks.add(" ") == []  # it waits for the end of the call
        return process_time() - begun

    seconds(1000)
    assert seconds(20_000) < 30 * seconds(2000)
