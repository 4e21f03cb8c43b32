"""Answers of upstreams, and blocks of clients, that are legal and rare."""

from time import process_time

import orjson
import pytest

from proxy.api.messages.blocks import Blocks, ShownCall
from proxy.loop.fence import unfenced
from tests.api.messages.asking import (
    ASK,
    DOOR,
    DOOR_CALL,
    FETCH,
    SEARCH,
    SEARCH_CALL,
    ask,
    client,
    follow_up,
    kinds,
    raw,
)
from tests.fakes import Reply, chunk, completion, stream, streamed, whole
from tests.serving import CONFIG, proxy_of

BOTH = pytest.mark.parametrize("streaming", [False, True])
EVENTS = {"x-tool-events": "true"}
OPEN = {"type": "tool_result", "content": "open"}


def replies(streaming, *turns):
    """Each turn is a text, or a list of calls."""
    make = streamed if streaming else whole
    return [make(turn) if isinstance(turn, str) else make(calls=turn) for turn in turns]


def search(call_id, query):
    return (call_id, "web_search", {"query": query})


def page_of(query):
    """A search that finds one page, whose address tells what was looked for."""
    found = {"title": "A page", "link": f"https://{query['q']}.example/", "snippet": "Words."}
    return Reply([orjson.dumps({"organic": [found]})])


@BOTH
async def test_the_proxys_own_answer_with_a_hidden_tools_blocks_is_taken_back(upstream, streaming):
    calls = [SEARCH_CALL, ("u3", "current_time", {}), DOOR_CALL]
    upstream.replies = replies(streaming, calls, "Done.")
    async with proxy_of(upstream) as url:
        message = await ask(url, streaming=streaming, tools=[SEARCH, DOOR], headers=EVENTS)
        [call] = [block for block in message["content"] if block["type"] == "tool_use"]
        history = follow_up(message, {**OPEN, "tool_use_id": call["id"]})
        await ask(url, streaming=streaming, tools=[SEARCH, DOOR], headers=EVENTS, messages=history)
    assert [one["role"] for one in upstream.requests[1]["messages"][-4:]] == ["assistant", "tool", "tool", "tool"]


@BOTH
async def test_searches_around_a_hidden_call_come_back_in_one_turn(upstream, streaming):
    calls = [search("a", "one"), ("b", "current_time", {}), search("c", "two")]
    upstream.replies = replies(streaming, calls, "Done.", "Yes.")
    async with proxy_of(upstream) as url:
        message = await ask(url, streaming=streaming, tools=[SEARCH], headers=EVENTS)
        history = follow_up(message, {"type": "text", "text": "Sure?"})
        await ask(url, streaming=streaming, tools=[SEARCH], headers=EVENTS, messages=history)
    [turn] = [one["tool_calls"] for one in upstream.requests[2]["messages"] if one.get("tool_calls")]
    arguments = [(call["function"]["name"], orjson.loads(call["function"]["arguments"])) for call in turn]
    assert arguments == [("web_search", {"query": "one"}), ("web_search", {"query": "two"}), ("current_time", {})]


async def test_blocks_of_another_server_between_a_call_and_its_result_break_nothing(upstream):
    upstream.replies = [whole("Done.")]
    content = [
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}},
        {"type": "server_tool_use", "id": "srvtoolu_2", "name": "code_execution", "input": {}},
        {"type": "tool_use", "id": "toolu_1", "name": "open_door", "input": {}},
        {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []},
        {"type": "code_execution_tool_result", "tool_use_id": "srvtoolu_2", "content": {}},
        {"type": "redacted_thinking", "data": "x"},
        {"type": ["text"]},
    ]
    history = follow_up({"content": content}, {**OPEN, "tool_use_id": "toolu_1"})
    async with proxy_of(upstream) as url:
        await ask(url, streaming=False, tools=[SEARCH, DOOR], messages=history)
    [turn] = [one["tool_calls"] for one in upstream.requests[0]["messages"] if one.get("tool_calls")]
    assert [call["function"]["name"] for call in turn] == ["web_search", "open_door"]


@BOTH
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
async def test_the_input_of_a_servers_call_is_an_object_whatever_the_model_has_written(
    upstream, streaming, arguments, shown
):
    upstream.replies = replies(streaming, [("u1", "web_search", arguments)], "Done.")
    async with proxy_of(upstream) as url:
        message = await ask(url, streaming=streaming, tools=[SEARCH])
    assert message["content"][0]["input"] == shown
    assert message["content"][-1]["text"] == "Done."


OBJECTS = [
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
]


@BOTH
@pytest.mark.parametrize(("arguments", "shown"), OBJECTS)
async def test_the_input_of_a_clients_call_is_an_object_whatever_json_the_model_has_written(
    upstream, streaming, arguments, shown
):
    calls = [("u1", "open_door", arguments), ("u2", "open_door", {"door": 2})]
    upstream.replies = replies(streaming, calls)
    async with proxy_of(upstream) as url:
        message = await ask(url, streaming=streaming, tools=[DOOR])
    assert [block["input"] for block in message["content"]] == [shown, {"door": 2}]


@pytest.mark.parametrize(("arguments", "shown"), OBJECTS)
async def test_the_input_of_a_clients_call_is_an_object_in_however_many_pieces_it_comes(upstream, arguments, shown):
    opening = {"index": 0, "id": "u1", "type": "function", "function": {"name": "open_door", "arguments": ""}}
    pieces = [{"index": 0, "function": {"arguments": piece}} for piece in arguments]
    chunks = [chunk({"tool_calls": [piece]}) for piece in (opening, *pieces)]
    upstream.replies = [stream(*chunks, chunk({}, "tool_calls"))]
    async with proxy_of(upstream) as url, client(url) as sdk, sdk.messages.stream(**ASK, tools=[DOOR]) as events:
        message = await events.get_final_message()
    assert message.content[0].input == shown


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ("{'door': 1}", {"door": 1}),
        ('{"door": 1,}', {"door": 1}),
        ('{"door": "a"', {"door": "a"}),
        ('{"door": 1', {"INVALID_JSON": '{"door": 1'}),
        ('{"door": 1} {"door": 2}', {"INVALID_JSON": '{"door": 1} {"door": 2}'}),
        ('{"door": 18446744073709551617,}', {"door": 18446744073709551617}),
    ],
)
async def test_broken_input_of_a_clients_call_is_mended_like_that_of_the_servers(upstream, arguments, shown):
    upstream.replies = replies(False, [("u1", "open_door", arguments)])
    async with proxy_of(upstream) as url:
        message = await ask(url, streaming=False, tools=[DOOR])
    assert message["content"][0]["input"] == shown


@BOTH
async def test_commas_before_a_bracket_are_taken_out_of_an_input_even_if_its_turn_was_broken_off(upstream, streaming):
    opening = {"index": 0, "id": "u1", "type": "function"}
    call = {**opening, "function": {"name": "open_door", "arguments": '{"door": [1,],}'}}
    upstream.replies = [stream(chunk({"tool_calls": [call]}), chunk({}, "length"))]
    async with proxy_of(upstream) as url:
        message = await ask(url, streaming=streaming, tools=[DOOR])
    assert message["content"][0]["input"] == {"door": [1]}


async def test_the_input_of_a_call_that_was_broken_off_is_not_mended(upstream):
    answer = completion(calls=[("u1", "open_door", '{"door": "a"')])
    answer["choices"][0]["finish_reason"] = "length"
    upstream.replies = [Reply([orjson.dumps(answer)])]
    async with proxy_of(upstream) as url:
        message = await ask(url, streaming=False, tools=[DOOR])
    assert message["content"][0]["input"] == {"INVALID_JSON": '{"door": "a"'}
    assert message["stop_reason"] == "max_tokens"


@pytest.mark.parametrize("reason", ["length", "content_filter"])
async def test_text_that_was_cut_at_a_stop_sequence_ends_there_whatever_the_upstream_did_next(upstream, reason):
    answer = completion("one STOP two")
    answer["choices"][0]["finish_reason"] = reason
    upstream.replies = [Reply([orjson.dumps(answer)])]
    async with proxy_of(upstream) as url:
        message = await ask(url, streaming=False, stop_sequences=["STOP", ""])
    assert (message["content"][0]["text"], message["stop_reason"], message["stop_sequence"]) == (
        "one ",
        "stop_sequence",
        "STOP",
    )


async def test_stop_sequences_without_any_letters_are_none(upstream):
    upstream.replies = [whole("Hi")]
    async with proxy_of(upstream) as url:
        await ask(url, streaming=False, stop_sequences=[""])
    assert "stop" not in upstream.requests[0]


@BOTH
async def test_calls_with_one_id_in_one_turn_have_each_their_own_result(upstream, streaming):
    upstream.search = page_of
    upstream.replies = replies(streaming, [search("x", "one"), search("x", "two")], "Done.")
    async with proxy_of(upstream) as url:
        message = await ask(url, streaming=streaming, tools=[SEARCH])
    uses = [block for block in message["content"] if block["type"] == "server_tool_use"]
    results = [block for block in message["content"] if block["type"] == "web_search_tool_result"]
    assert [block["input"]["query"] for block in uses] == ["one", "two"]
    assert [block["content"][0]["url"] for block in results] == ["https://one.example/", "https://two.example/"]
    assert [block["tool_use_id"] for block in results] == [block["id"] for block in uses]


@BOTH
@pytest.mark.parametrize("blanks", ["\n\n\n", "\n\n \n"])
async def test_blank_lines_before_a_call_are_no_block_behind_it(upstream, streaming, blanks):
    calls = completion("Let me look." + blanks, calls=[DOOR_CALL])
    parts = [chunk({"content": "Let me look."}), *[chunk({"content": one}) for one in blanks]]
    call = {**calls["choices"][0]["message"]["tool_calls"][0], "index": 0}
    parts += [chunk({"tool_calls": [call]}), chunk({}, "tool_calls")]
    upstream.replies = [stream(*parts) if streaming else Reply([orjson.dumps(calls)])]
    async with proxy_of(upstream) as url:
        message = await ask(url, streaming=streaming, tools=[DOOR])
    assert kinds(message) == ["text", "tool_use"]
    assert message["content"][0]["text"] == "Let me look." + blanks


@BOTH
@pytest.mark.parametrize(
    "calls",
    [
        [search("a", "one"), search("b", "two"), DOOR_CALL],
        [search("a", "one"), search("b", "one"), search("c", "two")],  # the second is answered by the first
    ],
)
async def test_the_order_of_a_turns_calls_is_one_whether_streamed_or_not(upstream, streaming, calls):
    upstream.replies = replies(streaming, calls, "Done.")
    async with proxy_of(upstream) as url:
        message = await ask(
            url,
            streaming=streaming,
            tools=[SEARCH, DOOR],
            tool_choice={"type": "auto", "disable_parallel_tool_use": True},
        )
    used = [block["input"] for block in message["content"] if block["type"] in ("server_tool_use", "tool_use")]
    wanted = [{"query": "one"}, {"query": "two"}, {"door": 1} if DOOR_CALL in calls else {"query": "one"}]
    assert used == wanted


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
    upstream, searching, fetching, refused
):
    reader = "  fetch_page: {type: web_fetch, allow_hosts: ['127.0.0.1'], respect_robots: false, offer: never}"
    upstream.replies = replies(False, [("u1", "fetch_page", {"url": "http://127.0.0.1:9/"})], "Done.")
    async with proxy_of(upstream, more=reader) as url:
        message = await ask(url, streaming=False, tools=[{**SEARCH, **searching}, {**FETCH, **fetching}])
    code = message["content"][1]["content"]["error_code"]
    assert code == ("url_not_allowed" if refused else "url_not_accessible")


@pytest.mark.parametrize("content", ["", [], [{"type": "text", "text": ""}]])
async def test_an_empty_last_message_leaves_a_prefill(upstream, content):
    messages = [*ASK["messages"], {"role": "assistant", "content": "x"}, {"role": "user", "content": content}]
    async with proxy_of(upstream) as url:
        response = await raw(url, {**ASK, "messages": messages})
    assert response.status_code == 400
    assert "prefill" in response.json()["error"]["message"]


@BOTH
@pytest.mark.parametrize("usage", [None, {"prompt_tokens": "12", "completion_tokens": None}])
async def test_a_count_that_is_none_is_no_fault(upstream, streaming, usage):
    upstream.replies = [
        stream(chunk({"content": "Hello there"}), chunk({}, "stop", usage=usage))
        if streaming
        else Reply([orjson.dumps({**completion("Hello there"), "usage": usage})])
    ]
    async with proxy_of(upstream) as url:
        counted = (await ask(url, streaming=streaming))["usage"]
    assert (counted["input_tokens"] > 5, counted["output_tokens"] > 1) == (True, True)  # an estimate


@BOTH
async def test_the_use_of_a_declared_tool_is_counted_also_where_it_may_not_be_called(upstream, streaming):
    upstream.replies = replies(streaming, "Hi.")
    async with proxy_of(upstream) as url:
        message = await ask(url, streaming=streaming, tools=[SEARCH], tool_choice={"type": "none"})
    assert message["usage"]["server_tool_use"] == {"web_search_requests": 0, "web_fetch_requests": 0}


@BOTH
async def test_a_tool_that_does_not_exist_has_its_name(upstream, streaming):
    upstream.replies = replies(streaming, [("a", "brew_tea", {})], "No tea.")
    async with proxy_of(upstream) as url:
        message = await ask(url, streaming=streaming, tools=[SEARCH], headers=EVENTS)
    assert [block.get("name") for block in message["content"][:2]] == ["brew_tea", None]


async def test_a_filter_of_glm_is_a_refusal_behind_any_server(upstream):
    answer = completion("")
    answer["choices"][0]["finish_reason"] = "sensitive"
    upstream.replies = [Reply([orjson.dumps(answer)])]
    async with proxy_of(upstream) as url:
        message = await ask(url, streaming=False)
    assert message["stop_reason"] == "refusal"


def one_chunk(calls, **delta):
    """A turn that comes in one chunk, calls and all."""
    entries = completion(calls=calls)["choices"][0]["message"]["tool_calls"]
    return stream(
        chunk({**delta, "tool_calls": [{**entry, "index": at} for at, entry in enumerate(entries)]}, "tool_calls")
    )


@BOTH
async def test_what_a_model_writes_in_the_chunk_of_a_call_stands_before_the_call(upstream, streaming):
    said = {"reasoning_content": "Hm.", "content": "Let me look."}
    turn = one_chunk([SEARCH_CALL], **said) if streaming else whole(calls=[SEARCH_CALL], **said)
    upstream.replies = [turn, *replies(streaming, "Done.")]
    async with proxy_of(upstream) as url:
        message = await ask(url, streaming=streaming, tools=[SEARCH], thinking={"type": "adaptive"})
    assert kinds(message) == ["thinking", "text", "server_tool_use", "web_search_tool_result", "text"]
    assert [block.get("thinking", block.get("text")) for block in message["content"][:2]] == ["Hm.", "Let me look."]


@BOTH
@pytest.mark.parametrize(
    ("calls", "blocks"),
    [
        ([DOOR_CALL, SEARCH_CALL], ["tool_use", "server_tool_use"]),
        ([SEARCH_CALL, DOOR_CALL], ["server_tool_use", "tool_use"]),
    ],
)
async def test_calls_that_come_in_one_chunk_stand_in_their_order(upstream, streaming, calls, blocks):
    upstream.replies = [one_chunk(calls) if streaming else whole(calls=calls)]
    async with proxy_of(upstream) as url:
        message = await ask(url, streaming=streaming, tools=[SEARCH, DOOR])
    assert kinds(message) == [*blocks, "web_search_tool_result"]


async def test_a_last_word_that_could_begin_a_leak_stands_before_the_call_that_follows_it(upstream):
    call = completion(calls=[SEARCH_CALL])["choices"][0]["message"]["tool_calls"][0]
    parts = [chunk({"content": "I'll use "}), chunk({"content": "`web_search`"})]
    parts += [chunk({"tool_calls": [{**call, "index": 0}]}), chunk({}, "tool_calls")]
    upstream.replies = [stream(*parts), *replies(True, "Done.")]
    async with proxy_of(upstream) as url:
        message = await ask(url, streaming=True, tools=[SEARCH])
    assert kinds(message) == ["text", "server_tool_use", "web_search_tool_result", "text"]
    assert message["content"][0]["text"] == "I'll use `web_search`"


async def test_calls_that_are_all_named_before_their_arguments_have_each_their_own(upstream):
    named = {"type": "function", "function": {"name": "open_door", "arguments": ""}}
    fragments = [{"index": at, "id": f"u{at}", **named} for at in range(3)]
    fragments += [{"index": at, "function": {"arguments": f'{{"door": {at}}}'}} for at in range(3)]
    upstream.replies = [stream(*(chunk({"tool_calls": [one]}) for one in fragments), chunk({}, "tool_calls"))]
    async with proxy_of(upstream) as url:
        message = await ask(url, streaming=True, tools=[DOOR])
    assert [block["input"] for block in message["content"]] == [{"door": 0}, {"door": 1}, {"door": 2}]


@pytest.mark.parametrize("with_search", [False, True])
async def test_text_between_the_name_of_a_call_and_its_arguments_takes_none_of_them_away(upstream, with_search):
    named = {"index": 0, "id": "u0", "type": "function", "function": {"name": "open_door", "arguments": ""}}
    query = {"name": "web_search", "arguments": '{"query": "news"}'}
    search_call = {"index": 1, "id": "u1", "type": "function", "function": query}
    deltas = [
        {"tool_calls": [named]},
        {"content": "A"},
        {"content": " door."},
        *([{"tool_calls": [search_call]}] if with_search else []),
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"door": 1}'}}]},
        {"content": " Open?"},
    ]
    upstream.replies = [stream(*map(chunk, deltas), chunk({}, "tool_calls"))]
    async with proxy_of(upstream) as url:
        message = await ask(url, streaming=True, tools=[DOOR, SEARCH])
    blocks = message["content"]
    assert [block["input"] for block in blocks if block["type"] == "tool_use"] == [{"door": 1}]
    assert "".join(block["text"] for block in blocks if block["type"] == "text") == "A door. Open?"


NEWS = {"name": "web_search", "arguments": '{"query": "news"}'}


@pytest.mark.parametrize(
    "between",
    [{"content": "A door."}, {"tool_calls": [{"index": 1, "id": "u1", "type": "function", "function": NEWS}]}],
)
async def test_blanks_behind_complete_arguments_are_no_part_of_another_block(upstream, between):
    named = {"index": 0, "id": "u0", "type": "function", "function": {"name": "open_door", "arguments": '{"door": 1}'}}
    blanks = {"index": 0, "function": {"arguments": "\n"}}
    deltas = [{"tool_calls": [named]}, between, {"tool_calls": [blanks]}]
    upstream.replies = [stream(*map(chunk, deltas), chunk({}, "tool_calls"))]
    async with proxy_of(upstream) as url:
        message = await ask(url, streaming=True, tools=[DOOR, SEARCH])
    assert message["content"][0]["input"] == {"door": 1}
    assert [block["text"] for block in message["content"] if block["type"] == "text"] in ([], ["A door."])


async def test_blanks_behind_complete_arguments_are_no_second_call(upstream):
    call = {
        "index": 0,
        "id": "u1",
        "type": "function",
        "function": {"name": "web_search", "arguments": '{"query":"a"}'},
    }
    more = {"index": 0, "function": {"arguments": " \n"}}
    turn = stream(chunk({"tool_calls": [call]}), chunk({"tool_calls": [more]}), chunk({}, "tool_calls"))
    upstream.replies = [turn, *replies(True, "Done.")]
    async with proxy_of(upstream) as url:
        message = await ask(url, streaming=True, tools=[SEARCH])
    assert kinds(message) == ["server_tool_use", "web_search_tool_result", "text"]
    assert len(upstream.searches) == 1


async def test_the_input_of_a_hidden_tools_block_stands_in_its_first_event(upstream):
    upstream.replies = replies(True, [SEARCH_CALL], "Done.")
    asked = {**ASK, "extra_headers": EVENTS}
    async with proxy_of(upstream) as url, client(url) as sdk, sdk.messages.stream(**asked) as events:
        message = await events.get_final_message()
    assert message.content[0].type == "mcp_tool_use"
    assert message.content[0].input == SEARCH_CALL[2]


@BOTH
async def test_nothing_follows_a_stop_sequence_before_a_call(upstream, streaming):
    first = completion("one STOP two", calls=[SEARCH_CALL])
    parts = [chunk({"content": "one STOP two"}), chunk({}, "tool_calls")]
    upstream.replies = [stream(*parts) if streaming else Reply([orjson.dumps(first)]), *replies(streaming, "Done.")]
    async with proxy_of(upstream) as url:
        message = await ask(url, streaming=streaming, tools=[SEARCH], stop_sequences=["STOP"])
    assert [block["text"] for block in message["content"]] == ["one "]
    assert message["stop_reason"] == "stop_sequence"


@BOTH
async def test_a_search_behind_a_stop_sequence_is_not_run(upstream, streaming):
    make = streamed if streaming else whole
    upstream.replies = [make("oneSTOPtwo", calls=[SEARCH_CALL]), make("Done.")]
    async with proxy_of(upstream) as url:
        message = await ask(url, streaming=streaming, tools=[SEARCH], stop_sequences=["STOP"])
    assert len(upstream.requests) == 1
    assert [block["text"] for block in message["content"]] == ["one"]
    assert message["usage"]["server_tool_use"]["web_search_requests"] == 0


@BOTH
@pytest.mark.parametrize(("text", "stop"), [("\n\none", "\n\n"), ("one【0†L1】", "†")])
async def test_a_stop_sequence_in_what_is_not_shown_ends_nothing(upstream, streaming, text, stop):
    make = streamed if streaming else whole
    upstream.replies = [make(text, calls=[SEARCH_CALL]), make("Done.")]
    async with proxy_of(upstream, config=CONFIG.replace("profile: openai", "profile: gpt_oss")) as url:
        message = await ask(url, streaming=streaming, tools=[SEARCH], stop_sequences=[stop])
    assert len(upstream.requests) == 2
    assert [block["text"].strip() for block in message["content"] if block["type"] == "text"] == ["one", "Done."]


@BOTH
@pytest.mark.parametrize("stops", [["STOP"], ["bc", "abcd"]])
async def test_a_text_begins_and_ends_alike_however_it_is_cut_into_pieces(upstream, streaming, stops):
    pieces = ["    ", "S", "T", "ART = 1 ab", "c", "d"]
    parts = [*(chunk({"content": piece}) for piece in pieces), chunk({}, "stop")]
    upstream.replies = [stream(*parts) if streaming else whole("".join(pieces))]
    async with proxy_of(upstream) as url:
        message = await ask(url, streaming=streaming, stop_sequences=stops)
    assert message["content"][0]["text"] == ("    START = 1 a" if "bc" in stops else "    START = 1 abcd")


@BOTH
async def test_blank_lines_behind_text_that_was_held_back_stay(upstream, streaming):
    parts = [chunk({"content": "S"}), chunk({"content": "\n\nTop"}), chunk({}, "stop")]
    upstream.replies = [stream(*parts) if streaming else whole("S\n\nTop")]
    async with proxy_of(upstream) as url:
        message = await ask(url, streaming=streaming, stop_sequences=["STOP"])
    assert message["content"][0]["text"] == "S\n\nTop"


@BOTH
async def test_a_text_that_ends_like_a_stop_sequence_begins_keeps_its_indentation(upstream, streaming):
    parts = [chunk({"content": "    "}), chunk({"content": "re"}), chunk({}, "stop")]
    upstream.replies = [stream(*parts) if streaming else whole("    re")]
    async with proxy_of(upstream) as url:
        message = await ask(url, streaming=streaming, stop_sequences=["return"])
    assert message["content"][0]["text"] == "    re"


@BOTH
async def test_a_text_of_which_all_was_held_back_has_citations_of_its_own(upstream, streaming):
    def cut(text, reason, *calls):
        return [chunk({"content": text}), *calls, chunk({}, reason)]

    def turn(text, call):
        named = {"name": call[1], "arguments": orjson.dumps(call[2]).decode()}
        fragment = {"index": 0, "id": call[0], "type": "function", "function": named}
        parts = cut(text, "tool_calls", chunk({"tool_calls": [fragment]}))
        return stream(*parts) if streaming else Reply([orjson.dumps(completion(text, calls=[call]))])

    last = cut("\n\nST", "stop")
    upstream.replies = [
        turn("Searching.", search("a", "one")),
        turn("\n\nS【0†L1】", search("b", "two")),
        stream(*last) if streaming else whole("\n\nST"),
    ]
    async with proxy_of(upstream, config=CONFIG.replace("profile: openai", "profile: gpt_oss")) as url:
        message = await ask(url, streaming=streaming, tools=[SEARCH], stop_sequences=["STOP"])
    texts = [block for block in message["content"] if block["type"] == "text"]
    assert [(block["text"], bool(block.get("citations"))) for block in texts] == [
        ("Searching.", False),
        ("S", True),
        ("ST", False),
    ]


@BOTH
async def test_a_hidden_call_with_the_id_of_a_visible_one_leaves_it_alone(upstream, streaming):
    upstream.replies = replies(streaming, [("x", "current_time", {}), search("x", "one")], "Done.")
    async with proxy_of(upstream) as url:
        message = await ask(url, streaming=streaming, tools=[SEARCH])
    assert kinds(message) == ["server_tool_use", "web_search_tool_result", "text"]
    assert message["content"][1]["content"]


async def test_blocked_domains_reach_the_search_once(upstream):
    upstream.replies = replies(False, [SEARCH_CALL], "Done.")
    async with proxy_of(upstream) as url:
        await ask(url, streaming=False, tools=[{**SEARCH, "blocked_domains": ["a.example", "b.example"]}])
    assert upstream.searches[0]["q"] == "news -site:a.example -site:b.example"


@BOTH
async def test_a_hidden_call_takes_no_line_ends_from_the_text_before_the_clients_call(upstream, streaming):
    make = streamed if streaming else whole
    upstream.replies = [make("text\n\n\n", calls=[("u1", "current_time", {}), DOOR_CALL])]
    async with proxy_of(upstream) as url:
        message = await ask(url, streaming=streaming, tools=[SEARCH, DOOR])
    assert (kinds(message), message["content"][0]["text"]) == (["text", "tool_use"], "text\n\n\n")


@BOTH
async def test_a_number_of_any_size_stays_as_the_model_wrote_it(upstream, streaming):
    upstream.replies = replies(streaming, [("u1", "open_door", '{"door":18446744073709551617}')])
    async with proxy_of(upstream) as url:
        answer = await raw(url, {**ASK, "stream": streaming, "tools": [DOOR]})
    assert "18446744073709551617" in answer.text


def test_a_call_of_the_servers_is_shown_as_soon_as_the_clients_call_before_it_is_complete():
    blocks = Blocks(sign=lambda thoughts, _=None: thoughts, cite=lambda _: ())
    use = {"type": "server_tool_use", "id": "s", "name": "web_search"}
    blocks.begin_tool_use(0, "c", "open_door")
    assert blocks.add_server_call(ShownCall(use, "{}", {"type": "web_search_tool_result"})) == []  # it may go on
    blocks.add_input(0, '{"door": 1}')
    events = blocks.add_server_call(ShownCall({**use, "id": "t"}, "{}", {"type": "web_search_tool_result"}))
    started = [event["content_block"]["id"] for event in events if event["type"] == "content_block_start"]
    assert started == ["s", "t"]


def test_whether_a_call_is_complete_is_known_without_reading_its_input_again():
    def seconds(count):
        blocks, begun = Blocks(sign=lambda thoughts, _=None: thoughts, cite=lambda _: ()), process_time()
        blocks.begin_tool_use(0, "c", "open_door")
        blocks.add_input(0, '{"door":[')
        for _ in range(count):
            blocks.add_input(0, '{"n":1},')
            assert blocks.add_text(" ") == []  # it waits for the end of the call
        return process_time() - begun

    seconds(1000)
    assert seconds(20_000) < 30 * seconds(2000)


@BOTH
async def test_the_model_reads_again_what_an_app_was_shown_as_events(upstream, streaming):
    calls = [SEARCH_CALL, ("u3", "nobody", {})]
    upstream.replies = replies(streaming, calls, "Late.", "Yes.")
    async with proxy_of(upstream) as url:
        message = await ask(url, streaming=streaming, headers=EVENTS)
        await ask(url, streaming=streaming, messages=follow_up(message, {"type": "text", "text": "Sure?"}))
    assert kinds(message) == ["mcp_tool_use"] * 2 + ["mcp_tool_result"] * 2 + ["text"]
    first, again = [
        [one["content"] for one in sent["messages"] if one["role"] == "tool"] for sent in upstream.requests[1:]
    ]
    assert unfenced(again[0]) == unfenced(first[0]) != again[0]
    assert again[1] == '{"error":"There is no tool named \'nobody\'."}'


async def test_the_estimate_for_an_upstream_that_does_not_count_has_the_input_of_every_turn(upstream):
    calling, final = completion(calls=[SEARCH_CALL]), completion("Yes.")
    for answer in (calling, final):
        del answer["usage"]
    upstream.replies = [Reply([orjson.dumps(answer)]) for answer in (calling, final, final)]
    async with proxy_of(upstream) as url:
        searched = await ask(url, streaming=False, tools=[SEARCH])
        direct = await ask(url, streaming=False, tools=[SEARCH])
    once, twice = direct["usage"]["input_tokens"], searched["usage"]["input_tokens"]
    assert 2 * once < twice < 4 * once


@BOTH
async def test_a_call_that_is_repeated_under_the_id_of_another_one_has_its_own_result(upstream, streaming):
    upstream.search = page_of
    first, again, other = search("u1", "one"), search("u1", "one"), search("u1", "two")
    upstream.replies = replies(streaming, [first], [again, other], "Done.")
    async with proxy_of(upstream) as url:
        message = await ask(url, streaming=streaming, tools=[SEARCH])
    asked = {block["id"]: block["input"]["query"] for block in message["content"] if block["type"] == "server_tool_use"}
    found = [
        (asked[block["tool_use_id"]], page["url"])
        for block in message["content"]
        if block["type"] == "web_search_tool_result"
        for page in block["content"]
    ]
    assert sorted(found) == [("one", "https://one.example/")] * 2 + [("two", "https://two.example/")]
