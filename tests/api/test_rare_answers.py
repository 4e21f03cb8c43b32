"""Answers of upstreams that are legal and rare, on Chat Completions and Responses."""

import httpx
import orjson
import pytest

from tests.fakes import Reply, chunk, completion, stream, streamed, whole
from tests.serving import CONFIG, proxy_of

BOTH = pytest.mark.parametrize("streaming", [False, True])
HI = {"model": "m", "input": "Hi"}
CHAT = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
FORMAT = {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA, "strict": True}}
SEARCHED = {"tools": [{"type": "web_search"}], "include": ["web_search_call.action.sources"]}
DOOR = {"type": "function", "function": {"name": "open_door", "parameters": {"type": "object"}}}


async def post(url, path, body, **headers):
    async with httpx.AsyncClient() as http:
        return await http.post(f"{url}{path}", json=body, headers=headers)


async def respond(url, streaming, **body):
    """The finished response, and its status where it is whole."""
    response = await post(url, "/v1/responses", {**HI, **body, "stream": streaming})
    if not streaming:
        return response.json()
    events = [line[6:] for line in response.text.splitlines() if line.startswith("data: {")]
    return orjson.loads(events[-1])["response"]


def page_of(query):
    found = {"title": "A page", "link": f"https://{query['q']}.example/", "snippet": "Words."}
    return Reply([orjson.dumps({"organic": [found]})])


def replies(streaming, *turns):
    make = streamed if streaming else whole
    return [make(turn) if isinstance(turn, str) else make(calls=turn) for turn in turns]


@BOTH
@pytest.mark.parametrize("in_one_turn", [False, True])
async def test_searches_under_one_id_have_each_their_own_sources(upstream, streaming, in_one_turn):
    upstream.search = page_of
    calls = [("c1", "web_search", {"query": "aa"}), ("c1", "web_search", {"query": "bb"})]
    turns = [calls] if in_one_turn else [[call] for call in calls]
    upstream.replies = replies(streaming, *turns, "https://aa.example/\nhttps://bb.example/")
    async with proxy_of(upstream) as url:
        response = await respond(url, streaming, **SEARCHED)
    searches = [item["action"] for item in response["output"] if item["type"] == "web_search_call"]
    assert [(one["query"], one["sources"][0]["url"]) for one in searches] == [
        ("aa", "https://aa.example/"),
        ("bb", "https://bb.example/"),
    ]
    [part] = response["output"][-1]["content"]
    assert [one["url"] for one in part["annotations"]] == ["https://aa.example/", "https://bb.example/"]


@BOTH
async def test_a_refusal_where_a_schema_is_asked_for_is_a_refusal(upstream, streaming):
    refusal = completion(None, refusal="I can't.")
    parts = [chunk({"refusal": "I can't."}), chunk({}, "stop")]
    upstream.replies = [stream(*parts) if streaming else Reply([orjson.dumps(refusal)])]
    async with proxy_of(upstream) as url:
        response = await respond(url, streaming, text=FORMAT, **SEARCHED)
    assert response["status"] == "completed"
    assert response["output"][0]["content"] == [{"type": "refusal", "refusal": "I can't."}]
    assert len(upstream.requests) == 1


async def test_a_second_answer_that_is_cut_off_is_incomplete(upstream):
    second = completion('{"a"')
    second["choices"][0]["finish_reason"] = "length"
    upstream.replies = [whole('{"b": 1}'), Reply([orjson.dumps(second)])]
    async with proxy_of(upstream) as url:
        response = await respond(url, streaming=False, text=FORMAT, max_output_tokens=40, **SEARCHED)
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}


async def test_an_empty_answer_is_not_repeated_to_the_model_that_is_to_mend_it(upstream):
    config = CONFIG.replace("profile: openai", "profile: glm")
    upstream.replies = replies(False, "", '{"a": 1}')
    async with proxy_of(upstream, config=config) as url:
        response = await post(url, "/v1/responses", {**HI, "text": FORMAT}, **{"x-server-tools": "none"})
    assert response.json()["output"][0]["content"][0]["text"] == '{"a": 1}'
    assert [one["role"] for one in upstream.requests[1]["messages"]] == ["system", "user", "user"]


@pytest.mark.parametrize("events", ["true", None])
async def test_a_turn_is_not_asked_for_again_once_one_of_its_calls_was_shown(upstream, events):
    config = CONFIG.replace("retries: 0", "retries: 1")
    call = {
        "index": 0,
        "id": "c1",
        "type": "function",
        "function": {"name": "web_search", "arguments": '{"query":"x"}'},
    }
    upstream.replies = [stream(chunk({"tool_calls": [call]}), None), *replies(True, "Done.")]
    async with proxy_of(upstream, config=config) as url:
        response = await post(
            url, "/v1/chat/completions", {**CHAT, "stream": True}, **({"x-tool-events": events} if events else {})
        )
    assert ('"error"' in response.text, "Done." in response.text) == (bool(events), not events)
    assert len(upstream.requests) == (1 if events else 2)


@BOTH
@pytest.mark.parametrize("reason", ["eos", "STOP"])
async def test_an_unknown_finish_reason_beside_calls_is_tool_calls_where_they_are_relayed(upstream, streaming, reason):
    answer = completion(calls=[("c1", "open_door", {})])
    answer["choices"][0]["finish_reason"] = reason
    call = {**answer["choices"][0]["message"]["tool_calls"][0], "index": 0}
    parts = stream(chunk({"tool_calls": [call]}), chunk({}, reason))
    upstream.replies = [parts if streaming else Reply([orjson.dumps(answer)])]
    async with proxy_of(upstream) as url:
        body = {**CHAT, "tools": [DOOR], "stream": streaming}
        response = await post(url, "/v1/chat/completions", body, **{"x-server-tools": "none"})
    assert '"finish_reason":"tool_calls"' in response.text


async def test_a_tool_that_the_header_names_is_offered_whatever_function_is_demanded(upstream):
    upstream.replies = replies(False, "Hi")
    choice = {"type": "function", "function": {"name": "open_door"}}
    async with proxy_of(upstream) as url:
        body = {**CHAT, "tools": [DOOR], "tool_choice": choice}
        await post(url, "/v1/chat/completions", body, **{"x-server-tools": "web_search"})
    assert [tool["function"]["name"] for tool in upstream.requests[0]["tools"]] == ["open_door", "web_search"]
    assert upstream.requests[0]["tool_choice"] == choice


async def test_a_file_in_a_plain_data_url_is_read(upstream):
    upstream.replies = replies(False, "Hi")
    part = {"type": "input_file", "filename": "a.txt", "file_data": "data:text/plain,hello%20world"}
    async with proxy_of(upstream) as url:
        await respond(url, streaming=False, input=[{"role": "user", "content": [part]}])
    assert "hello world" in orjson.dumps(upstream.requests[0]["messages"]).decode()


async def test_a_checked_answer_that_comes_in_many_chunks_is_all_of_its_text(upstream):
    upstream.replies = [streamed('{"a": 1234, "b": 5}')]
    async with proxy_of(upstream, config=CONFIG.replace("openai", "glm")) as url:
        body = {**HI, "text": FORMAT, "stream": True}
        response = await post(url, "/v1/responses", body, **{"x-server-tools": "none"})
    events = [orjson.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]
    deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
    assert "".join(deltas) == '{"a":1234,"b":5}'
    assert events[-1]["response"]["output"][-1]["content"][0]["text"] == '{"a":1234,"b":5}'


@pytest.mark.parametrize("tools", ["none", "all"])
async def test_a_whole_answer_of_the_loop_says_that_there_is_no_refusal(upstream, tools):
    upstream.replies = [whole("Done.")]
    async with proxy_of(upstream) as url:
        response = await post(url, "/v1/chat/completions", CHAT, **{"x-server-tools": tools})
    [choice] = response.json()["choices"]
    assert choice["message"].get("refusal", "absent") == (None if tools == "all" else "absent")
