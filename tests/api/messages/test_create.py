"""`/v1/messages`: what its client sees in blocks, and what of them comes back."""

import asyncio

import orjson
import pytest

from proxy.loop.results import fenced
from tests.api.answer import Thoughts
from tests.api.messages.asking import ASK, DOOR, SEARCH, client, follow_up, kinds
from tests.api.surfaces import DOOR as DOOR_CALL
from tests.api.surfaces import SEARCH as SEARCH_CALL
from tests.api.surfaces import on
from tests.fakes import Reply, chunk, completion, stream, turn
from tests.serving import proxy_of

MINE = {"functions": ["open_door"]}


async def test_an_answer_is_one_message(messages):
    answer = await messages.ask(turn("Hello"))
    message = answer.whole
    assert message["content"] == [{"type": "text", "text": "Hello"}]
    assert (message["stop_reason"], message["stop_sequence"], message["model"]) == ("end_turn", None, "m")
    assert message["usage"]["input_tokens"] == 10
    assert "server_tool_use" not in message["usage"]


async def test_a_declared_search_is_shown_with_its_pages_and_a_text_that_names_one_cites_it(messages):
    answer = await messages.ask(turn("Looking.", calls=[SEARCH_CALL]), turn("https://a.example/"), search=True)
    assert kinds(answer.whole) == ["text", "server_tool_use", "web_search_tool_result", "text"]
    _, use, result, text = answer.whole["content"]
    assert (use["name"], use["input"], result["tool_use_id"]) == ("web_search", {"query": "news"}, use["id"])
    [page] = result["content"]
    assert (page["url"], page["title"], page["page_age"]) == ("https://a.example/", "A page", None)
    assert page["encrypted_content"]
    [citation] = text["citations"]
    assert citation.pop("encrypted_index")
    assert citation == {
        "type": "web_search_result_location",
        "url": "https://a.example/",
        "title": "A page",
        "cited_text": "Something found.",
    }
    assert answer.whole["usage"]["server_tool_use"] == {"web_search_requests": 1, "web_fetch_requests": 0}
    assert answer.whole["usage"]["input_tokens"] == 20


async def test_a_page_of_an_earlier_answers_search_is_cited_alike(messages):
    named = turn("https://a.example/")
    async with messages.proxy(turn(calls=[SEARCH_CALL]), named, named) as client:
        first = await client.ask(search=True)
        second = await client.ask(after=first, text="Say it again.")
    was, is_now = (answer.whole["content"][-1]["citations"][0] for answer in (first, second))
    assert {**was, "encrypted_index": ""} == {**is_now, "encrypted_index": ""}


async def test_what_the_model_read_comes_back_with_the_blocks_and_without_a_store(messages):
    async with messages.proxy(turn("Hm.", calls=[SEARCH_CALL]), turn("Done.")) as client:
        first = await client.ask(search=True)
        then = messages.results()
    messages.upstream.restart([])
    async with messages.proxy(turn("Yes.")) as client:  # another process
        await client.ask(after=first, text="Sure?")
    assert (messages.roles(), messages.results()) == (["user", "assistant", "tool", "assistant", "user"], then)
    _, assistant, _, done, _ = messages.history()
    assert (assistant["content"], done["content"]) == ("Hm.", "Done.")
    assert assistant["tool_calls"][0]["function"] == {"name": "web_search", "arguments": '{"query":"news"}'}


async def test_what_a_search_found_without_a_page_comes_back_too(messages):
    messages.upstream.search = Reply([orjson.dumps({"answerBox": {"answer": "The answer is 42."}})])
    async with messages.proxy(turn(calls=[SEARCH_CALL]), turn("42."), turn("Yes.")) as client:
        first = await client.ask(search=True)
        assert first.whole["content"][1]["content"] == []
        await client.ask(after=first, text="Sure?")
        del first.folded.history[0]["content"][1]["encrypted_content"]
        await client.ask(after=first, text="Sure?")
    [then], [later], [without] = (messages.results(number) for number in (1, 2, 3))
    assert "The answer is 42." in later
    assert later == then
    assert without == "(The search found no pages.)"


async def test_a_changed_or_foreign_result_leaves_title_and_url(messages):
    page = {"type": "web_search_result", "url": "https://x.example", "title": "X", "encrypted_content": "EoAB"}
    blocks = [
        {"type": "server_tool_use", "id": "srvtoolu_01A", "name": "web_search", "input": {"query": "x"}},
        {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_01A", "content": [{**page, "page_age": None}]},
        {"type": "text", "text": "It is X."},
    ]
    history = follow_up({"content": blocks}, {"type": "text", "text": "?"})
    await messages.ask(turn("Yes."), search=True, body={"messages": history})
    assert messages.results() == [fenced("web_search", "X\nhttps://x.example")]


async def test_a_mixed_turn_shows_all_calls_before_the_servers_results(messages):
    answer = await messages.ask(turn(calls=[DOOR_CALL, SEARCH_CALL]), search=True, **MINE)
    assert kinds(answer.whole) == ["tool_use", "server_tool_use", "web_search_tool_result"]
    assert (answer.whole["stop_reason"], answer.whole["content"][0]["input"]) == ("tool_use", {"id": 1})


async def test_visible_and_hidden_calls_of_one_run_come_back_once(messages):
    replies = (
        turn("First.", calls=[SEARCH_CALL]),
        turn("Then.", calls=[DOOR_CALL, ("u3", "current_time", {})]),
        turn("All done."),
    )
    async with messages.proxy(*replies, more="  current_time: {type: clock}") as client:
        first = await client.ask(search=True, **MINE)
        await client.ask(after=first, results=["open"])
    assert first.kinds == ["text", "servercall", "text", "call"]
    assert messages.roles() == ["user", "assistant", "tool", "assistant", "tool", "tool"]
    assert [call["id"] for call in messages.history()[3]["tool_calls"]] == ["u2", "u3"]


async def test_other_server_tools_are_shown_to_who_asks_for_events(messages):
    answer = await messages.ask(turn(calls=[SEARCH_CALL]), turn("Done."), events="true")
    assert kinds(answer.whole) == ["mcp_tool_use", "mcp_tool_result", "text"]
    use, result, _ = answer.whole["content"]
    assert (use["server_name"], use["name"], use["input"]) == ("toolproxy", "web_search", {"query": "news"})
    assert (result["tool_use_id"], result["is_error"]) == (use["id"], False)
    assert "Something found." in result["content"][0]["text"]


@pytest.mark.parametrize(
    ("search", "arguments", "code"),
    [
        (Reply([b"{}"], status=500), {"query": "news"}, "unavailable"),
        (Reply([b"{}"], status=429, headers=[(b"retry-after", b"100")]), {"query": "news"}, "too_many_requests"),
        (Reply([b"{}"]), {"nothing": 1}, "invalid_tool_input"),
    ],
)
async def test_a_search_that_fails_is_an_error_block(messages, search, arguments, code):
    messages.upstream.search = search
    answer = await messages.ask(turn(calls=[("u1", "web_search", arguments)]), turn("Sorry."), search=True)
    assert answer.whole["content"][1]["content"] == {"type": "web_search_tool_result_error", "error_code": code}
    assert answer.searches == 0


async def test_calls_beyond_max_uses_are_error_blocks_and_the_answer_goes_on(messages):
    calls = [("u1", "web_search", {"query": "a"}), ("u2", "web_search", {"query": "b"})]
    answer = await messages.ask(turn(calls=calls), turn("Done."), search={"max_uses": 1})
    content = answer.whole["content"]
    assert kinds(answer.whole) == ["server_tool_use"] * 2 + ["web_search_tool_result"] * 2 + ["text"]
    assert content[3]["tool_use_id"] == content[1]["id"]
    assert content[3]["content"] == {"type": "web_search_tool_result_error", "error_code": "max_uses_exceeded"}
    assert (answer.searches, answer.whole["stop_reason"]) == (1, "end_turn")


THINKING = {"type": "enabled", "budget_tokens": 5000}


@pytest.mark.parametrize(
    ("thinking", "shown"),
    [
        (None, None),
        ({"type": "disabled"}, None),
        (THINKING, "Hm, yes."),
        ({**THINKING, "display": "omitted"}, ""),
        ({"type": "adaptive"}, "Hm, yes."),
    ],
)
async def test_thoughts_are_shown_if_they_are_asked_for_and_come_back(messages, thinking, shown):
    async with messages.proxy(turn("Yes.", thoughts="Hm, yes."), turn("Done."), profile="glm") as client:
        first = await client.ask(body={"thinking": thinking})
        assert first.of(Thoughts) == ([] if shown is None else [Thoughts(shown)])
        assert messages.upstream.requests[0]["thinking"] == {"type": "disabled" if shown is None else "enabled"}
        if shown is not None:
            assert first.whole["content"][0]["signature"]
            await client.ask(after=first, text="Sure?")
            assert messages.history()[1]["reasoning_content"] == "Hm, yes."


@pytest.mark.parametrize(
    ("body", "effort"),
    [
        ({}, "low"),
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, "low"),
        ({"thinking": {"type": "enabled", "budget_tokens": 5000}}, "medium"),
        ({"thinking": {"type": "enabled", "budget_tokens": 20000}}, "high"),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "max"}}, "high"),
    ],
)
async def test_gpt_oss_thinks_as_much_as_is_asked(messages, body, effort):
    await messages.ask(turn("Hi"), profile="gpt_oss", body=body)
    assert messages.upstream.requests[0]["reasoning_effort"] == effort
    assert "thinking" not in messages.upstream.requests[0]


@pytest.mark.parametrize(("profile", "sent"), [("openai", None), ("glm", None), ("gpt_oss", 5)])
async def test_top_k_goes_where_it_is_known(messages, profile, sent):
    await messages.ask(turn("Hi"), profile=profile, body={"top_k": 5})
    assert messages.upstream.requests[0].get("top_k") == sent


@on("messages-streamed")
async def test_an_upstream_that_writes_on_after_a_stop_sequence_is_left_at_once(surface):
    reply = stream(chunk({"content": "one two END three"}), asyncio.Event())
    async with surface.proxy(reply) as client:
        answer = await client.ask(search=True, body={"stop_sequences": ["END"]})
        await asyncio.wait_for(surface.upstream.left.wait(), 5)
    assert (answer.texts, answer.whole["stop_sequence"]) == (["one two "], "END")
    assert answer.tokens[0] > answer.tokens[1] > 3  # estimated, for the upstream has not counted
    assert len(surface.upstream.requests) == 1


@on("messages-whole")
async def test_the_upstream_may_say_at_which_sequence_it_has_stopped(surface):
    reply = completion("one ")
    reply["choices"][0]["stop_reason"] = "END"
    answer = await surface.ask(Reply([orjson.dumps(reply)]), body={"stop_sequences": ["END"]})
    assert (answer.whole["stop_reason"], answer.whole["stop_sequence"]) == ("stop_sequence", "END")


async def test_without_parallel_calls_there_is_one_whatever_the_upstream_does(messages):
    calls = [("a", "open_door", {"id": 1}), ("b", "open_door", {"id": 2})]
    choice = {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}
    bare = {"name": "open_door", "input_schema": {"type": "object"}}  # without a description
    answer = await messages.ask(turn(calls=calls), tools=[bare], body=choice)
    assert answer.calls == [("open_door", '{"id":1}')]
    assert messages.upstream.requests[0]["parallel_tool_calls"] is False


@pytest.mark.parametrize("functions", [[], ["open_door"]])
@pytest.mark.parametrize("reason", ["content_filter", "stop", "model_context_window_exceeded"])
async def test_a_finish_reason_has_its_stop_reason(messages, reason, functions):
    answer = await messages.ask(turn("x", finish=reason), profile="glm", functions=functions)
    wanted = {"content_filter": "refusal", "stop": "end_turn"}.get(reason, reason)
    assert answer.whole["stop_reason"] == wanted
    assert (answer.whole["stop_details"] is not None) == (wanted == "refusal")


async def test_usage_counts_cached_tokens_apart(messages):
    usage = {
        "prompt_tokens": 100,
        "completion_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 60},
        "completion_tokens_details": {"reasoning_tokens": 3},
    }
    answer = await messages.ask(turn(calls=[SEARCH_CALL]), turn("x", usage=usage))
    assert answer.whole["usage"] == {
        "input_tokens": 50,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 60,
        "output_tokens": 8,
        "output_tokens_details": {"thinking_tokens": 3},
    }


async def test_the_real_sdk_streams_and_carries_the_conversation_on(upstream):
    upstream.replies = [turn("Hm.", calls=[SEARCH_CALL]), turn(calls=[DOOR_CALL]), turn("It is open.")]
    async with proxy_of(upstream) as url, client(url) as sdk:
        async with sdk.messages.stream(**ASK, tools=[SEARCH, DOOR]) as events:
            first = await events.get_final_message()
        types = ["text", "server_tool_use", "web_search_tool_result", "tool_use"]
        assert [block.type for block in first.content] == types
        result = {"type": "tool_result", "tool_use_id": first.content[-1].id, "content": "ok"}
        history = [
            *ASK["messages"],
            {"role": "assistant", "content": first.content},
            {"role": "user", "content": [result]},
        ]
        async with sdk.messages.stream(**{**ASK, "messages": history}, tools=[SEARCH, DOOR]) as events:
            second = await events.get_final_message()
    assert second.content[0].text == "It is open."
    roles = [message["role"] for message in upstream.requests[2]["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "assistant", "tool"]


async def test_a_page_has_the_day_on_which_it_appeared(messages):
    found = {"organic": [{"title": "A page", "link": "https://a.example/", "snippet": "Found.", "date": "Nov 2, 2023"}]}
    messages.upstream.search = Reply([orjson.dumps(found)])
    answer = await messages.ask(turn(calls=[SEARCH_CALL]), turn("Done."), search=True)
    [result] = [block for block in answer.whole["content"] if block["type"] == "web_search_tool_result"]
    assert result["content"][0]["page_age"] == "2023-11-02"


@pytest.mark.parametrize("is_mixed", [True, False])
async def test_a_client_that_moves_its_calls_behind_the_results_gets_the_same_turns_back(messages, is_mixed):
    """As the AI SDK does. Where the calls were in a turn of their own, they stay in it."""
    turns = [turn("Let me.", calls=[SEARCH_CALL, DOOR_CALL])]
    if not is_mixed:
        turns = [turn("Let me.", calls=[SEARCH_CALL]), turn(calls=[DOOR_CALL])]
    async with messages.proxy(*turns, turn("Both done.")) as client:
        first = await client.ask(search=True, **MINE, thinking=True)
        first.folded.history[0]["content"].sort(key=lambda block: block["type"] == "tool_use")
        await client.ask(after=first, results=["open"])
    written = [one for one in messages.history() if one["role"] == "assistant"]
    names = [[call["function"]["name"] for call in one["tool_calls"]] for one in written]
    assert names == ([["web_search", "open_door"]] if is_mixed else [["web_search"], ["open_door"]])


async def test_an_answer_of_nothing_but_thoughts_is_no_message_when_it_comes_back(messages):
    blocks = [{"type": "thinking", "thinking": "Hm.", "signature": "x"}]
    history = follow_up({"content": blocks}, {"type": "text", "text": "Go on."})
    await messages.ask(turn("Hi", usage=None), body={"messages": history})
    [message] = messages.history()
    assert message["role"] == "user"
    assert message["content"].endswith("\n\nGo on.")
