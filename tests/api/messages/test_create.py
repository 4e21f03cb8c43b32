"""`/v1/messages` over real sockets: what a client sees, whole and streamed alike."""

import asyncio

import orjson
import pytest

from proxy.loop.results import fenced
from tests.api.messages.asking import ASK, DOOR, DOOR_CALL, SEARCH, SEARCH_CALL, ask, client, follow_up, kinds, raw
from tests.fakes import Reply, chunk, completion, event, stream, streamed, whole
from tests.serving import CONFIG, proxy_of

BOTH = pytest.mark.parametrize("streaming", [False, True])
GLM = CONFIG.replace("profile: openai", "profile: glm")
GPT_OSS = CONFIG.replace("profile: openai", "profile: gpt_oss")


def replies(streaming, *answers):
    make = streamed if streaming else whole
    return [make(*args, **kwargs) for args, kwargs in answers]


def says(*args, **kwargs):
    return args, kwargs


@BOTH
async def test_an_answer_is_one_message(upstream, streaming):
    upstream.replies = replies(streaming, says("Hello"))
    async with proxy_of(upstream) as url:
        message = await ask(url, streaming=streaming)
    assert message["content"] == [{"type": "text", "text": "Hello"}]
    assert (message["stop_reason"], message["stop_sequence"], message["model"]) == ("end_turn", None, "m")
    assert message["usage"]["input_tokens"] == 10
    assert "server_tool_use" not in message["usage"]


@BOTH
async def test_a_declared_search_is_shown_with_its_pages(upstream, streaming):
    upstream.replies = replies(streaming, says("Looking.", calls=[SEARCH_CALL]), says("Done."))
    async with proxy_of(upstream) as url:
        message = await ask(url, streaming=streaming, tools=[SEARCH])
    assert kinds(message) == ["text", "server_tool_use", "web_search_tool_result", "text"]
    _, use, result, _ = message["content"]
    assert use["id"].startswith("srvtoolu_")
    assert (use["name"], use["input"]) == ("web_search", {"query": "news"})
    assert result["tool_use_id"] == use["id"]
    (page,) = result["content"]
    assert (page["url"], page["title"], page["page_age"]) == ("https://a.example/", "A page", None)
    assert page["encrypted_content"]
    assert message["usage"]["server_tool_use"] == {"web_search_requests": 1, "web_fetch_requests": 0}
    assert message["usage"]["input_tokens"] == 20


@BOTH
async def test_a_page_of_an_earlier_answers_search_is_cited_alike(upstream, streaming):
    named = says("https://a.example/")
    upstream.replies = replies(streaming, says(calls=[SEARCH_CALL]), named, named)
    async with proxy_of(upstream) as url:
        first = await ask(url, streaming=streaming, tools=[SEARCH])
        messages = follow_up(first, {"type": "text", "text": "Say it again."})
        second = await ask(url, streaming=streaming, tools=[SEARCH], messages=messages)
    was, is_now = (message["content"][-1]["citations"][0] for message in (first, second))
    assert {**was, "encrypted_index": ""} == {**is_now, "encrypted_index": ""}


@BOTH
async def test_what_the_model_read_comes_back_with_the_blocks_and_without_a_store(upstream, streaming):
    upstream.replies = replies(streaming, says("Hm.", calls=[SEARCH_CALL]), says("Done."), says("Yes."))
    async with proxy_of(upstream) as url:
        first = await ask(url, streaming=streaming, tools=[SEARCH])
    async with proxy_of(upstream) as url:  # another process
        await ask(
            url, streaming=streaming, tools=[SEARCH], messages=follow_up(first, {"type": "text", "text": "Sure?"})
        )
    _, then, later = (request["messages"] for request in upstream.requests)
    assert [message["role"] for message in later] == ["system", "user", "assistant", "tool", "assistant", "user"]
    assert later[3]["content"] == then[3]["content"]
    assert later[2]["content"] == "Hm."
    assert later[2]["tool_calls"][0]["function"] == {"name": "web_search", "arguments": '{"query":"news"}'}
    assert later[4]["content"] == "Done."


@BOTH
async def test_what_a_search_found_without_a_page_comes_back_too(upstream, streaming):
    upstream.replies = replies(streaming, says(calls=[SEARCH_CALL]), says("42."), says("Yes."))
    upstream.search = Reply([orjson.dumps({"answerBox": {"answer": "The answer is 42."}})])
    async with proxy_of(upstream) as url:
        first = await ask(url, streaming=streaming, tools=[SEARCH])
        assert first["content"][1]["content"] == []
        messages = follow_up(first, {"type": "text", "text": "Sure?"})
        await ask(url, streaming=streaming, tools=[SEARCH], messages=messages)
        del messages[1]["content"][1]["encrypted_content"]
        await ask(url, streaming=streaming, tools=[SEARCH], messages=messages)
    _, then, later, without = (request["messages"] for request in upstream.requests)
    assert "The answer is 42." in later[3]["content"]
    assert later[3]["content"] == then[3]["content"]
    assert without[3]["content"] == "(The search found no pages.)"


@BOTH
async def test_a_changed_or_foreign_result_leaves_title_and_url(upstream, streaming):
    upstream.replies = replies(streaming, says("Yes."))
    page = {
        "type": "web_search_result",
        "url": "https://x.example",
        "title": "X",
        "encrypted_content": "EoAB",
        "page_age": None,
    }
    blocks = [
        {"type": "server_tool_use", "id": "srvtoolu_01A", "name": "web_search", "input": {"query": "x"}},
        {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_01A", "content": [page]},
        {"type": "text", "text": "It is X."},
    ]
    async with proxy_of(upstream) as url:
        await ask(
            url,
            streaming=streaming,
            tools=[SEARCH],
            messages=follow_up({"content": blocks}, {"type": "text", "text": "?"}),
        )
    assert upstream.requests[0]["messages"][3]["content"] == fenced("web_search", "X\nhttps://x.example")


@BOTH
async def test_visible_and_hidden_calls_of_one_run_come_back_once(upstream, streaming):
    upstream.replies = replies(
        streaming,
        says("First.", calls=[SEARCH_CALL]),
        says("Then.", calls=[DOOR_CALL, ("u3", "current_time", {})]),
        says("All done."),
    )
    more = "  current_time: {type: clock}"
    async with proxy_of(upstream, more=more) as url:
        message = await ask(url, streaming=streaming, tools=[SEARCH, DOOR])
        assert kinds(message) == ["text", "server_tool_use", "web_search_tool_result", "text", "tool_use"]
        result = {"type": "tool_result", "tool_use_id": message["content"][-1]["id"], "content": "open"}
        await ask(url, streaming=streaming, tools=[SEARCH, DOOR], messages=follow_up(message, result))
    roles = [message["role"] for message in upstream.requests[2]["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "assistant", "tool", "tool"]
    assert [call["id"] for call in upstream.requests[2]["messages"][4]["tool_calls"]] == ["u2", "u3"]


@BOTH
async def test_other_server_tools_are_shown_to_who_asks_for_events(upstream, streaming):
    upstream.replies = replies(streaming, says(calls=[SEARCH_CALL]), says("Done."))
    async with proxy_of(upstream) as url:
        message = await ask(url, streaming=streaming, headers={"x-tool-events": "true"})
    assert kinds(message) == ["mcp_tool_use", "mcp_tool_result", "text"]
    use, result, _ = message["content"]
    assert (use["server_name"], use["name"], use["input"]) == ("toolproxy", "web_search", {"query": "news"})
    assert (result["tool_use_id"], result["is_error"]) == (use["id"], False)
    assert "Something found." in result["content"][0]["text"]


@BOTH
async def test_calls_beyond_max_uses_are_error_blocks_and_the_answer_goes_on(upstream, streaming):
    calls = [("u1", "web_search", {"query": "a"}), ("u2", "web_search", {"query": "b"})]
    upstream.replies = replies(streaming, says(calls=calls), says("Done."))
    async with proxy_of(upstream) as url:
        message = await ask(url, streaming=streaming, tools=[{**SEARCH, "max_uses": 1}])
    assert kinds(message) == ["server_tool_use"] * 2 + ["web_search_tool_result"] * 2 + ["text"]
    failed = message["content"][3]
    assert failed["tool_use_id"] == message["content"][1]["id"]
    assert failed["content"] == {"type": "web_search_tool_result_error", "error_code": "max_uses_exceeded"}
    assert message["usage"]["server_tool_use"]["web_search_requests"] == 1
    assert message["stop_reason"] == "end_turn"


@BOTH
async def test_a_search_that_fails_is_an_error_block(upstream, streaming):
    upstream.search = Reply([b"{}"], status=500)
    upstream.replies = replies(streaming, says(calls=[SEARCH_CALL]), says("Sorry."))
    async with proxy_of(upstream) as url:
        message = await ask(url, streaming=streaming, tools=[SEARCH])
    assert message["content"][1]["content"] == {"type": "web_search_tool_result_error", "error_code": "unavailable"}
    assert message["usage"]["server_tool_use"]["web_search_requests"] == 0


@BOTH
async def test_arguments_that_fit_no_schema_are_invalid_tool_input(upstream, streaming):
    upstream.replies = replies(streaming, says(calls=[("u1", "web_search", {"nothing": 1})]), says("Sorry."))
    async with proxy_of(upstream) as url:
        message = await ask(url, streaming=streaming, tools=[SEARCH])
    assert message["content"][1]["content"]["error_code"] == "invalid_tool_input"


THINKING = {"type": "enabled", "budget_tokens": 5000}


def thinks(streaming):
    if streaming:
        return stream(
            chunk({"reasoning_content": "Hm, "}),
            chunk({"reasoning_content": "yes."}),
            chunk({"content": "Yes."}),
            chunk({}, "stop"),
        )
    return whole("Yes.", reasoning_content="Hm, yes.")


@BOTH
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
async def test_thoughts_are_shown_if_they_are_asked_for_and_come_back(upstream, streaming, thinking, shown):
    upstream.replies = [thinks(streaming), *replies(streaming, says("Done."))]
    async with proxy_of(upstream, config=GLM) as url:
        message = await ask(url, streaming=streaming, thinking=thinking)
        assert kinds(message) == (["text"] if shown is None else ["thinking", "text"])
        asked = upstream.requests[0]
        if shown is None:
            assert asked["thinking"] == {"type": "disabled"}
            return
        assert asked["thinking"] == {"type": "enabled"}
        block = message["content"][0]
        assert block["thinking"] == shown
        assert block["signature"]
        await ask(url, streaming=streaming, messages=follow_up(message, {"type": "text", "text": "Sure?"}))
    assert upstream.requests[1]["messages"][2]["reasoning_content"] == "Hm, yes."


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
async def test_gpt_oss_thinks_as_much_as_is_asked(upstream, body, effort):
    upstream.replies = [whole("Hi")]
    async with proxy_of(upstream, config=GPT_OSS) as url:
        await ask(url, streaming=False, **body)
    assert upstream.requests[0]["reasoning_effort"] == effort
    assert "thinking" not in upstream.requests[0]


@pytest.mark.parametrize(("config", "sent"), [(CONFIG, None), (GLM, None), (GPT_OSS, 5)])
async def test_top_k_goes_where_it_is_known(upstream, config, sent):
    upstream.replies = [whole("Hi")]
    async with proxy_of(upstream, config=config) as url:
        await ask(url, streaming=False, top_k=5)
    assert upstream.requests[0].get("top_k") == sent


@BOTH
async def test_the_text_never_goes_past_a_stop_sequence(upstream, streaming):
    if streaming:
        upstream.replies = [
            stream(*(chunk({"content": text}) for text in ("one E", "N", "D two", " END")), chunk({}, "stop"))
        ]
    else:
        upstream.replies = [whole("one END two END")]
    async with proxy_of(upstream) as url:
        message = await ask(url, streaming=streaming, stop_sequences=["END", "never"])
    assert message["content"][0]["text"] == "one "
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "END")
    assert upstream.requests[0]["stop"] == ["END", "never"]


async def test_an_upstream_that_writes_on_after_a_stop_sequence_is_left_at_once(upstream):
    upstream.replies = [stream(chunk({"content": "one two END three"}), asyncio.Event())]
    async with proxy_of(upstream) as url:
        message = await ask(url, streaming=True, stop_sequences=["END"], tools=[SEARCH])
        await asyncio.wait_for(upstream.left.wait(), 5)
    assert (message["content"][0]["text"], message["stop_sequence"]) == ("one two ", "END")
    usage = message["usage"]  # estimated, for the upstream has not counted
    assert usage["input_tokens"] > usage["output_tokens"] > 3
    assert len(upstream.requests) == 1


async def test_the_upstream_may_say_at_which_sequence_it_has_stopped(upstream):
    answer = completion("one ")
    answer["choices"][0]["stop_reason"] = "END"
    upstream.replies = [Reply([orjson.dumps(answer)])]
    async with proxy_of(upstream) as url:
        message = await ask(url, streaming=False, stop_sequences=["END"])
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "END")


@BOTH
async def test_without_parallel_calls_there_is_one_whatever_the_upstream_does(upstream, streaming):
    upstream.replies = replies(
        streaming, says(calls=[("a", "open_door", {"door": 1}), ("b", "open_door", {"door": 2})])
    )
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    async with proxy_of(upstream) as url:
        message = await ask(url, streaming=streaming, tools=[DOOR], tool_choice=choice)
    assert [block["input"] for block in message["content"]] == [{"door": 1}]
    assert upstream.requests[0]["parallel_tool_calls"] is False


@pytest.mark.parametrize(
    ("reason", "wanted"), [("length", "max_tokens"), ("content_filter", "refusal"), ("stop", "end_turn")]
)
async def test_a_finish_reason_has_its_stop_reason(upstream, reason, wanted):
    upstream.replies = [stream(chunk({"content": "x"}), chunk({}, reason))]
    async with proxy_of(upstream) as url:
        message = await ask(url, streaming=True)
    assert message["stop_reason"] == wanted
    assert (message["stop_details"] is not None) == (wanted == "refusal")


@BOTH
@pytest.mark.parametrize("tools", [[], [DOOR]])
async def test_glms_exceeded_window_is_itself(upstream, streaming, tools):
    reason = "model_context_window_exceeded"
    answer = completion("x")
    answer["choices"][0]["finish_reason"] = reason
    body = stream(chunk({"content": "x"}), chunk({}, reason)) if streaming else Reply([orjson.dumps(answer)])
    upstream.replies = [body]
    async with proxy_of(upstream, config=GLM) as url:
        message = await ask(url, streaming=streaming, tools=tools)
    assert message["stop_reason"] == reason


@BOTH
async def test_arguments_that_are_no_json_are_handed_on_as_they_are(upstream, streaming):
    upstream.replies = replies(streaming, says(calls=[("a", "open_door", "door one")]))
    async with proxy_of(upstream) as url:
        response = await raw(url, {**ASK, "tools": [DOOR], "stream": streaming})
    if streaming:
        assert '"partial_json":"door one"' in response.text
    else:
        assert response.json()["content"][0]["input"] == {"INVALID_JSON": "door one"}


@BOTH
async def test_usage_counts_cached_tokens_apart(upstream, streaming):
    usage = {
        "prompt_tokens": 100,
        "completion_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 60},
        "completion_tokens_details": {"reasoning_tokens": 3},
    }
    if streaming:
        upstream.replies = [stream(chunk({"content": "x"}), chunk({}, "stop"), event({"choices": [], "usage": usage}))]
    else:
        upstream.replies = [Reply([orjson.dumps({**completion("x"), "usage": usage})])]
    async with proxy_of(upstream) as url:
        message = await ask(url, streaming=streaming)
    assert message["usage"] == {
        "input_tokens": 40,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 60,
        "output_tokens": 7,
        "output_tokens_details": {"thinking_tokens": 3},
    }


async def test_the_real_sdk_streams_and_carries_the_conversation_on(upstream):
    upstream.replies = replies(True, says("Hm.", calls=[SEARCH_CALL]), says(calls=[DOOR_CALL]), says("It is open."))
    async with proxy_of(upstream) as url, client(url) as sdk:
        async with sdk.messages.stream(**ASK, tools=[SEARCH, DOOR]) as events:
            first = await events.get_final_message()
        assert [block.type for block in first.content] == [
            "text",
            "server_tool_use",
            "web_search_tool_result",
            "tool_use",
        ]
        messages = [*ASK["messages"], {"role": "assistant", "content": first.content}]
        messages.append(
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": first.content[-1].id, "content": "ok"}]}
        )
        async with sdk.messages.stream(**{**ASK, "messages": messages}, tools=[SEARCH, DOOR]) as events:
            second = await events.get_final_message()
    assert second.content[0].text == "Itisopen."
    assert [message["role"] for message in upstream.requests[2]["messages"]] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
        "tool",
    ]


@BOTH
async def test_a_page_has_the_day_on_which_it_appeared(upstream, streaming):
    found = {"organic": [{"title": "A page", "link": "https://a.example/", "snippet": "Found.", "date": "Nov 2, 2023"}]}
    upstream.search = Reply([orjson.dumps(found)])
    upstream.replies = replies(streaming, says("Looking.", calls=[SEARCH_CALL]), says("Done."))
    async with proxy_of(upstream) as url:
        message = await ask(url, streaming=streaming, tools=[SEARCH])
    [result] = [block for block in message["content"] if block["type"] == "web_search_tool_result"]
    assert result["content"][0]["page_age"] == "2023-11-02"


@BOTH
@pytest.mark.parametrize("is_mixed", [True, False])
async def test_a_client_that_moves_its_calls_behind_the_results_gets_the_same_turns_back(upstream, streaming, is_mixed):
    """As the AI SDK does. Where the calls were in a turn of their own, they stay in it."""
    turns = [says("Let me.", calls=[SEARCH_CALL, DOOR_CALL])]
    if not is_mixed:
        turns = [says("Let me.", calls=[SEARCH_CALL]), says(calls=[DOOR_CALL])]
    upstream.replies = replies(streaming, *turns, says("Both done."))
    async with proxy_of(upstream) as url:
        message = await ask(url, streaming=streaming, tools=[SEARCH, DOOR], thinking={"type": "adaptive"})
        moved = [block for block in message["content"] if block["type"] == "tool_use"]
        message["content"] = [block for block in message["content"] if block["type"] != "tool_use"] + moved
        result = {"type": "tool_result", "tool_use_id": moved[0]["id"], "content": "open"}
        await ask(url, streaming=streaming, tools=[SEARCH, DOOR], messages=follow_up(message, result))
    written = [one for one in upstream.requests[-1]["messages"] if one["role"] == "assistant"]
    names = [[call["function"]["name"] for call in one["tool_calls"]] for one in written]
    assert names == ([["web_search", "open_door"]] if is_mixed else [["web_search"], ["open_door"]])


async def test_an_answer_of_nothing_but_thoughts_is_no_message_when_it_comes_back(upstream):
    upstream.replies = [Reply([orjson.dumps({**completion("Hi"), "usage": None})])]
    blocks = [{"type": "thinking", "thinking": "Hm.", "signature": "x"}]
    async with proxy_of(upstream) as url:
        await ask(url, streaming=False, messages=follow_up({"content": blocks}, {"type": "text", "text": "Go on."}))
    (message,) = [one for one in upstream.requests[0]["messages"] if one["role"] != "system"]
    assert message["role"] == "user"
    assert message["content"].endswith("\n\nGo on.")
