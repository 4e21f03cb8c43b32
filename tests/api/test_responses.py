"""`/v1/responses` over real sockets, with the real `openai` SDK in front and a scripted upstream behind."""

import re

import httpx
import openai
import orjson
import pytest
from pydantic import BaseModel

from proxy.tools.tool import Tool
from tests.api.responses.asking import ASK, DOOR, HOSTED, ask, events_in, kinds, raw, reply_of, roles, texts
from tests.fakes import FakeClock, Reply, chunk, completion, stream, streamed, turn, whole
from tests.serving import CONFIG, proxy_of

SEARCH = ("u1", "web_search", {"query": "news"})
DOOR_CALL = ("u2", "open_door", {"door": 1})
GLM = CONFIG.replace("profile: openai", "profile: glm")
CLIENTS = """
clients:
  - {name: one, key: key-one}
  - {name: two, key: key-two}
  - {name: no-tools, key: key-none, tools: []}
"""


class City(BaseModel):
    city: str
    degrees: int


both = pytest.mark.parametrize("streaming", [False, True])
SCHEMA = {"type": "json_schema", "name": "city", "schema": City.model_json_schema(), "strict": True}


# -- the loop, told in items --


async def test_a_search_is_an_item_with_its_query_and_sources_and_its_use_is_counted(responses):
    sources = {"include": ["web_search_call.action.sources"]}
    answer = await responses.ask(turn(calls=[SEARCH]), turn("https://a.example/"), search=True, body=sources)
    search, message = answer.whole["output"]
    assert search["status"] == "completed"
    page = {"type": "url", "url": "https://a.example/"}
    assert search["action"] == {"type": "search", "query": "news", "queries": ["news"], "sources": [page]}
    assert message["content"][0]["annotations"] == [
        {"type": "url_citation", "start_index": 0, "end_index": 18, "title": "A page", "url": "https://a.example/"}
    ]
    assert answer.whole["usage"] == {
        "input_tokens": 20,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 2,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 22,
        "server_tool_use": {"turns": 2, "tool_calls": 1, "web_search_requests": 1, "web_search": 1},
    }
    assert (answer.whole["status"], answer.whole["error"]) == ("completed", None)


async def test_headers_say_what_happened_on_the_way(upstream, sdk):
    upstream.replies = [whole(calls=[SEARCH]), whole("Done")]
    async with proxy_of(upstream) as url, sdk(url) as client:
        others = [{"type": "file_search"}, {"type": "a\r\nx: y"}]
        reply = await client.responses.with_raw_response.create(**ASK, tools=[HOSTED, *others])
    assert {name: reply.headers[name] for name in ("x-tool-turns", "x-tool-calls", "x-tool-stop")} == {
        "x-tool-turns": "2",
        "x-tool-calls": "1",
        "x-tool-stop": "answer",
    }
    assert reply.headers["x-tools-ignored"] == "file_search,unknown"


async def test_the_sdks_helpers_read_it(upstream, sdk):
    upstream.replies = [streamed("Searching.", calls=[SEARCH]), streamed("Much"), whole('{"city":"N","degrees":1}')]
    async with proxy_of(upstream) as url, sdk(url) as client:
        async with client.responses.stream(**ASK, tools=[HOSTED]) as reading:
            types = [event.type async for event in reading]
            final = await reading.get_final_response()
        parsed = await client.responses.parse(**ASK, text_format=City)
    assert types[-1] == "response.completed"
    assert final.output_text == "Searching.Much"
    assert parsed.output_parsed == City(city="N", degrees=1)


async def test_a_request_that_may_use_no_server_tool_streams_as_well(upstream):
    upstream.replies = [streamed("Hi there", calls=[DOOR_CALL])]
    async with proxy_of(upstream) as url:
        response = await ask(url, {"tools": [DOOR]}, streaming=True, **{"x-server-tools": "none"})
    assert kinds(response) == ["message", "function_call"]
    assert roles(upstream.requests[0]) == ["user"]
    assert upstream.requests[0]["messages"][0]["role"] == "user"  # nothing is said of tools that are not there


@both
async def test_thoughts_are_told_and_come_back(upstream, streaming):
    thinking = [chunk({"reasoning_content": "Hm"}), chunk({"content": "Hi"}), chunk({}, "stop")]
    upstream.replies = [stream(*thinking) if streaming else whole("Hi", reasoning_content="Hm")]
    async with proxy_of(upstream, config=GLM) as url:
        body = {"reasoning": {"summary": "auto"}, "include": ["reasoning.encrypted_content"], "store": False}
        first = await ask(url, body, streaming=streaming)
        reasoning = first["output"][0]
        assert (reasoning["content"][0]["text"], reasoning["summary"][0]["text"]) == ("Hm", "Hm")
        bare = {"type": "reasoning", "id": reasoning["id"], "summary": []}
        bare["encrypted_content"] = reasoning["encrypted_content"]
        history = [{"role": "user", "content": "Hi"}, bare, first["output"][1], {"role": "user", "content": "Go on"}]
        await ask(url, {"input": history}, streaming=streaming)
    assert upstream.requests[1]["messages"][-2]["reasoning_content"] == "Hm"


@both
async def test_the_models_own_limit_is_incomplete(upstream, streaming):
    cut = completion("Half an ans")
    cut["choices"][0]["finish_reason"] = "length"
    whole_reply = Reply([orjson.dumps(cut)])
    upstream.replies = [stream(chunk({"content": "Half an ans"}), chunk({}, "length")) if streaming else whole_reply]
    async with proxy_of(upstream) as url:
        response = await ask(url, {"max_output_tokens": 3}, streaming=streaming)
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert response["output"][-1]["status"] == "incomplete"
    assert upstream.requests[0]["max_tokens"] == 3


async def test_the_settings_of_a_search_reach_it(upstream):
    upstream.replies = [whole(calls=[SEARCH]), whole("Done")]
    hosted = {
        **HOSTED,
        "filters": {"allowed_domains": ["b.example"]},
        "user_location": {"type": "approximate", "country": "CA", "city": "Nanaimo"},
        "search_context_size": "low",
    }
    async with proxy_of(upstream) as url:
        body = {"tools": [hosted], "include": ["web_search_call.action.sources"]}
        response = await ask(url, body, streaming=False)
    assert upstream.searches == [{"q": "news (site:b.example)", "num": 3, "gl": "ca", "location": "Nanaimo, CA"}]
    assert response["output"][0]["action"]["sources"] == []
    assert "Nanaimo" in upstream.requests[0]["messages"][0]["content"]


# -- the client's own tools --


async def test_what_a_client_carries_is_of_no_use_to_another(upstream):
    upstream.replies = [whole(calls=[SEARCH, DOOR_CALL]), whole("Done")]
    async with proxy_of(upstream, more=CLIENTS) as url:
        body = {"tools": [HOSTED, DOOR], "store": False}
        first = await ask(url, body, streaming=False, authorization="Bearer key-one")
        (call,) = [item for item in first["output"] if item["type"] == "function_call"]
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": "opened"}
        history = [{"role": "user", "content": "What?"}, *first["output"], output]
        for key in ("key-one", "key-two"):
            await ask(url, {**body, "input": history}, streaming=False, authorization=f"Bearer {key}")
    _, of_owner, of_other = map(str, upstream.requests)
    assert "https://a.example/" in of_owner
    assert "https://a.example/" not in of_other


@both
async def test_custom_tools_and_namespaces_come_back_as_they_are(upstream, streaming):
    tools = [
        {"type": "custom", "name": "patch"},
        {"type": "namespace", "name": "agents", "description": "", "tools": [{"type": "function", "name": "spawn"}]},
    ]
    calls = [("a", "patch", {"input": "raw\ntext"}), ("b", "agents__spawn", {"n": 1})]
    upstream.replies = [reply_of(streaming)("", calls=calls), reply_of(streaming)("Done")]
    async with proxy_of(upstream) as url:
        first = await ask(url, {"tools": tools}, streaming=streaming)
        patch, spawn = first["output"]
        assert (patch["type"], patch["name"], patch["input"]) == ("custom_tool_call", "patch", "raw\ntext")
        assert (spawn["name"], spawn["namespace"], spawn["arguments"]) == ("spawn", "agents", '{"n":1}')
        results = [
            {"type": "custom_tool_call_output", "call_id": patch["call_id"], "output": "ok"},
            {"type": "function_call_output", "call_id": spawn["call_id"], "output": "ok"},
        ]
        body = {"tools": tools, "previous_response_id": first["id"], "input": results}
        await ask(url, body, streaming=streaming)
    assistant = upstream.requests[1]["messages"][-3]
    assert [entry["function"]["name"] for entry in assistant["tool_calls"]] == ["patch", "agents__spawn"]


async def test_allowed_tools_are_those_only(upstream):
    upstream.replies = [whole("Done")]
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "open_door"}]}
    async with proxy_of(upstream) as url:
        close = {**DOOR, "name": "close_door"}
        await ask(url, {"tools": [HOSTED, DOOR, close], "tool_choice": choice}, streaming=False)
    assert [tool["function"]["name"] for tool in upstream.requests[0]["tools"]] == ["open_door"]


@pytest.mark.parametrize(
    "without",
    [
        {"tool_choice": "none"},
        {"max_tool_calls": 0},
        {"tools": [{**HOSTED, "external_web_access": False}, DOOR]},
    ],
)
async def test_a_client_that_wants_no_search_gets_none(upstream, without):
    upstream.replies = [whole("Done")]
    async with proxy_of(upstream) as url:
        await ask(url, {"tools": [HOSTED, DOOR], **without}, streaming=False)
    assert [tool["function"]["name"] for tool in upstream.requests[0].get("tools") or ()] == ["open_door"]


async def test_a_request_whose_search_is_taken_away_keeps_its_other_fields(upstream):
    upstream.replies = [whole("Done")]
    fields = {"max_tool_calls": 0, "temperature": 0, "parallel_tool_calls": False}
    async with proxy_of(upstream) as url:
        await ask(url, {"tools": [HOSTED, DOOR], **fields}, streaming=False)
    assert upstream.requests[0]["temperature"] == 0
    assert upstream.requests[0]["parallel_tool_calls"] is False


async def test_where_there_is_no_search_the_rest_goes_on(upstream):
    upstream.replies = [whole("Done")]
    async with proxy_of(upstream, more=CLIENTS) as url:
        key = {"authorization": "Bearer key-none"}
        only = await raw(url, {**ASK, "tools": [HOSTED]}, **key)
        fine = await raw(url, {**ASK, "tools": [HOSTED, DOOR]}, **key)
    assert (only.status_code, only.json()["error"]["param"]) == (400, "tools")
    assert "web_search" in only.json()["error"]["message"]
    assert (fine.status_code, fine.headers["x-tools-ignored"]) == (200, "web_search")


CODEX = {
    "model": "m",
    "stream": True,
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "reasoning": {"summary": "auto"},
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "prompt_cache_key": "k",
    "client_metadata": {"session_id": "s"},
    "tools": [
        {"type": "function", "name": "exec_command", "parameters": {"type": "object"}, "strict": False},
        {"type": "namespace", "name": "agents", "description": "", "tools": [{"type": "function", "name": "spawn"}]},
        {"type": "web_search", "external_web_access": True},
    ],
}


async def test_a_coding_agent_that_keeps_everything_itself_loses_nothing(upstream):
    exec_call = ("u2", "exec_command", {"cmd": "ls"})
    thinking = chunk({"reasoning_content": "I need both."})
    mixed = streamed("", calls=[SEARCH, exec_call])
    upstream.replies = [stream(thinking, *mixed.body, done=False), streamed("Done")]
    history = [
        {"type": "message", "role": "developer", "id": "msg_d", "content": [{"type": "input_text", "text": "Rules"}]},
        {"type": "message", "role": "user", "id": "msg_u", "content": [{"type": "input_text", "text": "Go"}]},
    ]
    async with proxy_of(upstream, config=GLM) as url:
        first = await ask(url, {**CODEX, "input": history}, streaming=True)
        assert sorted(kinds(first)) == ["function_call", "reasoning", "reasoning", "web_search_call"]
        (call,) = [item for item in first["output"] if item["type"] == "function_call"]
        picture = [{"type": "input_image", "image_url": "data:image/png;base64,AA"}]
        result = {"type": "function_call_output", "id": "fco_1", "call_id": call["call_id"], "output": picture}
        await ask(url, {**CODEX, "input": [*history, *first["output"], result]}, streaming=True)
    second = upstream.requests[1]["messages"]
    assert [message["role"] for message in second] == ["system", "user", "assistant", "tool", "tool", "user"]
    assert second[2]["reasoning_content"] == "I need both."
    assert [entry["id"] for entry in second[2]["tool_calls"]] == ["u1", "u2"]
    assert second[5]["content"][1] == {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}


@both
async def test_whole_items_with_nulls_and_fields_of_the_sdks_own_come_back(upstream, sdk, streaming):
    reply = reply_of(streaming)
    upstream.replies = [reply("Let me.", calls=[SEARCH, DOOR_CALL]), reply("Done")]
    hosted = {"type": "web_search", "filters": None, "user_location": None, "search_context_size": "medium"}
    async with proxy_of(upstream) as url, sdk(url) as client:
        options = {"model": "m", "tools": [hosted, DOOR], "include": []}
        if streaming:
            async with client.responses.stream(**options, input="Go") as reading:
                first = await reading.get_final_response()
        else:
            first = await client.responses.create(**options, input="Go")
        (call,) = [item for item in first.output if item.type == "function_call"]
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "opened"}
        items = [{"role": "user", "content": "Go"}, *(item.model_dump() for item in first.output), result]
        second = await client.responses.create(**options, input=items, stream=streaming)
        if streaming:
            async for _ in second:
                pass
    assert roles(upstream.requests[1]) == ["user", "assistant", "tool", "tool"]


@both
@pytest.mark.parametrize(
    "declared",
    [
        {"type": "custom", "name": "web_search"},
        {"type": "custom", "name": "webSearch"},
        {"type": "namespace", "name": "crm", "description": "", "tools": [{"type": "function", "name": "web_search"}]},
        {"type": "namespace", "name": "browser", "description": "", "tools": [{"type": "custom", "name": "look_up"}]},
    ],
)
async def test_a_custom_tool_or_one_in_a_namespace_never_becomes_the_servers(upstream, streaming, declared):
    ran = []

    async def look_up(arguments):
        ran.append(arguments)
        return "found"

    def call_the_clients(request):
        """A call of the tool that stands where the client's does."""
        name = next(tool["function"]["name"] for tool in request["tools"])
        return reply_of(streaming)(calls=[("u1", name, {"input": "x"})])

    server = Tool(name="browser__look_up", description="", parameters={"type": "object"}, run=look_up)
    upstream.replies = [call_the_clients]
    async with proxy_of(upstream, tools=[server]) as url:
        response = await ask(url, {"tools": [declared]}, streaming=streaming)
    (call,) = response["output"]
    inner = declared.get("tools", [declared])[0]
    assert (call["type"], call["name"]) == (f"{inner['type']}_call".replace("custom", "custom_tool"), inner["name"])
    assert call.get("namespace") == (declared["name"] if "tools" in declared else None)
    assert (ran, upstream.searches) == ([], [])
    names = [tool["function"]["name"] for tool in upstream.requests[0]["tools"]]
    assert len(set(names)) == len(names) == 3


async def test_a_server_tool_may_be_chosen_without_being_declared(upstream):
    more = "  time: {type: clock, offer: declared}\n"
    async with proxy_of(upstream, more=more + CLIENTS) as url:
        for choice, kind in (
            ({"type": "function", "name": "time"}, "time"),
            ({"type": "web_search_preview"}, "web_search"),
        ):
            upstream.restart([whole(calls=[("u1", kind, {"query": "news"})]), whole("Done")])
            body = {"tool_choice": choice, "max_tool_calls": 2}
            response = await ask(url, body, streaming=False, authorization="Bearer key-one")
            assert kinds(response) == (["message"] if kind == "time" else ["web_search_call", "message"])
            assert upstream.requests[0]["tool_choice"] == {"type": "function", "function": {"name": kind}}
            assert kind in [tool["function"]["name"] for tool in upstream.requests[0]["tools"]]
            refused = await raw(url, {**ASK, "tool_choice": choice}, authorization="Bearer key-none")
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tool_choice")


@both
async def test_what_opens_a_clients_server_is_neither_kept_nor_echoed(upstream, streaming):
    server = {"type": "mcp", "server_label": "s", "server_url": "https://s.example/mcp"}
    secret = {**server, "authorization": "sesame-one", "headers": {"X-Key": "sesame-two"}}
    upstream.replies = [reply_of(streaming)("Hello")]
    added = {"type": "additional_tools", "role": "developer", "tools": [secret]}
    async with proxy_of(upstream) as url:
        body = {"tools": [DOOR, secret], "input": [{"role": "user", "content": "Hi"}, added], "stream": streaming}
        response = await raw(url, {**ASK, **body})
        identity = f"resp_{response.text.partition('resp_')[2][:32]}"
        kept = await raw(url, None, method="GET", path=f"/{identity}")
        items = await raw(url, None, method="GET", path=f"/{identity}/input_items")
    assert [answer.status_code for answer in (response, kept, items)] == [200, 200, 200]
    for answer in (response, kept, items):
        assert "s.example" in answer.text
        assert "sesame" not in answer.text
    assert "sesame" not in str(upstream.requests)


@both
@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"include": ["message.output_text.logprobs"]}, "include"),
        ({"include": ["message.output_text.logprobs"], "top_logprobs": 2}, "top_logprobs"),
    ],
)
async def test_a_fault_names_the_field_that_was_sent(upstream, streaming, body, param):
    async with proxy_of(upstream, config=GLM) as url:
        response = await raw(url, {**ASK, **body, "stream": streaming})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param)
    assert error["message"].startswith(f"'{param}' ")


async def test_what_an_upstream_says_of_a_field_is_said_of_the_one_that_was_sent(upstream):
    async with proxy_of(upstream) as url:
        for theirs, param in (("max_tokens", "max_output_tokens"), ("messages[0].content", "input"), ("user", "user")):
            error = {"error": {"message": f"Invalid '{theirs}': no.", "param": theirs, "type": "x", "code": "y"}}
            upstream.restart([Reply([orjson.dumps(error)], status=400)])
            told = (await raw(url, ASK)).json()["error"]
            assert (told["param"], told["message"]) == (param, f"Invalid '{param}': no.")


# -- JSON that fits a schema --


@both
async def test_fields_too_deep_to_be_echoed_are_refused_before_the_model_is_asked(upstream, streaming):
    upstream.replies = [reply_of(streaming)("Yes.")]
    answered = refused = 0
    async with proxy_of(upstream) as url:
        for depth in range(245, 256):
            deep = orjson.loads("[" * depth + "]" * depth)
            response = await raw(url, {**ASK, "metadata": {"a": deep}, "stream": streaming})
            if response.status_code == 400:
                refused += 1
                assert response.json()["error"]["code"] == "invalid_json"
            else:
                answered += 1
                assert '"status":"completed"' in response.text
    assert (answered > 0, refused > 0) == (True, True)
    assert len(upstream.requests) == answered


async def test_a_call_of_the_clients_is_not_held_to_the_schema(upstream):
    upstream.replies = [streamed("Not JSON", calls=[DOOR_CALL])]
    async with proxy_of(upstream, config=GLM) as url:
        body = {"tools": [DOOR], "text": {"format": SCHEMA}}
        response = await ask(url, body, streaming=True, **{"x-server-tools": "none"})
    assert sorted(kinds(response)) == ["function_call", "message"]


# -- state --


@both
async def test_a_conversation_goes_on_from_a_response(upstream, streaming):
    reply = reply_of(streaming)
    upstream.replies = [reply("Hello"), reply("Again"), reply("Third")]
    async with proxy_of(upstream) as url:
        first = await ask(url, {"input": "One", "instructions": "Be brief."}, streaming=streaming)
        body = {"input": "Two", "previous_response_id": first["id"]}
        second = await ask(url, body, streaming=streaming)
        await ask(url, {"input": "Three", "previous_response_id": second["id"]}, streaming=streaming)
    assert roles(upstream.requests[2]) == ["user", "assistant", "user", "assistant", "user"]
    assert "Be brief." not in str(upstream.requests[1])
    assert second["previous_response_id"] == first["id"]


@pytest.fixture(params=["memory", "redis"])
def state(request):
    """What `state:` says, with room for more."""
    url = "memory://" if request.param == "memory" else request.getfixturevalue("redis_server").url
    return f"state: {{url: {url}}}\n"


async def chain(url, upstream, *, length=3, search_in=None, streaming=False):
    """Responses each of which continues the one before; one of them searches."""
    reply = reply_of(streaming)
    answers = [reply(f"Answer-{number}") for number in range(length)]
    if search_in is not None:
        answers.insert(search_in, reply("Let me see.", calls=[SEARCH]))
    upstream.restart(answers)
    made = [{"id": None}]
    for number in range(length):
        body = {"input": f"Question {number}", "previous_response_id": made[-1]["id"]}
        made.append(await ask(url, body, streaming=streaming))
    return made[1:]


async def continued(url, response):
    return await raw(url, {**ASK, "previous_response_id": response["id"]})


@both
async def test_what_the_model_has_found_earlier_in_a_chain_is_before_it_again(upstream, streaming, state):
    async with proxy_of(upstream, more=state) as url:
        await chain(url, upstream, search_in=1, streaming=streaming)
    said = [message for message in upstream.requests[-1]["messages"] if message["role"] != "system"]
    assert [m["role"] for m in said] == ["user", "assistant", "user", "assistant", "tool", "assistant", "user"]
    searched = [m for m in upstream.requests[2]["messages"] if m["role"] in ("assistant", "tool")][1:]
    assert [m["role"] for m in searched] == ["assistant", "tool"]
    assert said[3] == searched[0]
    assert said[4]["tool_call_id"] == searched[1]["tool_call_id"]
    assert "example" in said[4]["content"]
    assert said[5]["content"] == "Answer-1"


@both
@pytest.mark.parametrize("calls", [[SEARCH], [SEARCH, DOOR_CALL]])
async def test_what_was_found_earlier_in_a_chain_may_be_cited(upstream, streaming, calls):
    reply = reply_of(streaming)
    upstream.replies = [reply("Let me.", calls=calls), *[reply("See https://a.example/")] * 3]
    async with proxy_of(upstream) as url:
        response = await ask(url, {"tools": [HOSTED, DOOR]}, streaming=streaming)
        for _ in range(2):
            calls = [item for item in response["output"] if item["type"] == "function_call"]
            given = [{"type": "function_call_output", "call_id": call["call_id"], "output": "ok"} for call in calls]
            body = {"tools": [HOSTED, DOOR], "previous_response_id": response["id"], "input": given or "Where?"}
            response = await ask(url, body, streaming=streaming)
    ((cited,),) = [part["annotations"] for part in response["output"][0]["content"]]
    assert (cited["url"], cited["title"]) == ("https://a.example/", "A page")


def cut_off(streaming, *calls, **message):
    """A reply that ends because of its length."""
    if streaming:
        entries = [
            {**call, "index": at}
            for at, call in enumerate(completion(calls=calls)["choices"][0]["message"].get("tool_calls", ()))
        ]
        return stream(chunk({**message, "tool_calls": entries}), chunk({}, "length"))
    cut = completion(calls=calls, **message)
    cut["choices"][0]["finish_reason"] = "length"
    return Reply([orjson.dumps(cut)])


async def test_a_prefix_that_asks_for_tools_holds_where_a_result_is_a_picture(upstream):
    upstream.replies = [whole(calls=[DOOR_CALL]), whole("Done")]
    async with proxy_of(upstream, more='offer: {mode: on_request, prefix: "//"}') as url:
        first = await ask(url, {"input": "// Look", "tools": [DOOR]}, streaming=False)
        picture = [{"type": "input_image", "image_url": "data:image/png;base64,AA"}]
        output = {"type": "function_call_output", "call_id": first["output"][0]["call_id"], "output": picture}
        body = {"tools": [DOOR], "previous_response_id": first["id"], "input": [output]}
        await ask(url, body, streaming=False)
    assert [tool["function"]["name"] for tool in upstream.requests[1]["tools"]] == ["open_door", "web_search"]
    assert "// Look" not in str(upstream.requests[1])


@both
async def test_a_call_that_was_cut_off_after_a_search_takes_its_output_in_a_chain(upstream, streaming):
    upstream.replies = [reply_of(streaming)("", calls=[SEARCH]), cut_off(streaming, DOOR_CALL), whole("Open.")]
    async with proxy_of(upstream) as url:
        first = await ask(url, {"tools": [HOSTED, DOOR]}, streaming=streaming)
        (call,) = [item for item in first["output"] if item["type"] == "function_call"]
        assert (first["status"], call["status"]) == ("incomplete", "incomplete")
        body = {"model": "m", "tools": [HOSTED, DOOR], "previous_response_id": first["id"]}
        without = await raw(url, {**body, "input": "Go on"})
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": "opened"}
        assert (await raw(url, {**body, "input": [output]})).status_code == 200
    assert (without.status_code, without.json()["error"]["param"]) == (400, "input")
    assert roles(upstream.requests[-1]) == ["user", "assistant", "tool", "assistant", "tool"]
    assert upstream.requests[-1]["messages"][-1]["content"] == "opened"


@both
async def test_thoughts_that_were_cut_off_after_a_search_are_no_message_of_a_chain(upstream, streaming):
    upstream.replies = [
        reply_of(streaming)("", calls=[SEARCH]),
        cut_off(streaming, reasoning_content="Hm"),
        whole("Fine."),
    ]
    async with proxy_of(upstream) as url:
        first = await ask(url, {"tools": [HOSTED]}, streaming=streaming)
        await ask(url, {"previous_response_id": first["id"]}, streaming=False)
    assert roles(upstream.requests[-1]) == ["user", "assistant", "tool", "user"]


async def test_each_response_of_a_chain_is_kept_by_itself(upstream, state):
    sizes = []
    async with proxy_of(upstream, more=state) as url, httpx.AsyncClient() as client:
        for length in (1, 20):
            last = (await chain(url, upstream, length=length))[-1]
            if "redis" in state:
                continue
            metrics = (await client.get(f"{url}/metrics")).text
            sizes.append(float(re.search(r"^toolproxy_state_bytes (\S+)$", metrics, re.MULTILINE)[1]))
        items = (await raw(url, None, method="GET", path=f"/{last['id']}/input_items?limit=100")).json()["data"]
    assert [item["content"][0]["text"] for item in items][:3] == ["Question 19", "Answer-18", "Question 18"]
    assert len(items) == 39
    if sizes:
        assert sizes[1] < 1.2 * 21 * sizes[0]


async def test_a_chain_lives_as_long_as_it_is_continued(upstream):
    clock = FakeClock()
    upstream.replies = [whole("Hello")]
    async with proxy_of(upstream, more="state: {ttl: 60}", clock=clock) as url:
        last = await ask(url, {}, streaming=False)
        for _ in range(4):
            clock.now += 50
            last = await ask(url, {"previous_response_id": last["id"]}, streaming=False)
        assert len(roles(upstream.requests[-1])) == 9
        clock.now += 61
        assert (await continued(url, last)).status_code == 400


async def test_a_chain_of_which_one_is_deleted_can_be_read_and_not_continued(upstream, state):
    async with proxy_of(upstream, more=state) as url:
        first, _, third = await chain(url, upstream)
        await raw(url, None, method="DELETE", path=f"/{first['id']}")
        refused = await continued(url, third)
        assert (await raw(url, None, method="GET", path=f"/{third['id']}")).json() == third
        items = (await raw(url, None, method="GET", path=f"/{third['id']}/input_items?order=asc")).json()["data"]
    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (400, "previous_response_not_found")
    assert first["id"] in error["message"]
    assert [item["content"][0]["text"] for item in items] == ["Question 1", "Answer-1", "Question 2"]


async def test_large_responses_of_one_client_push_out_none_of_anothers(upstream, state):
    upstream.replies = [whole("Hello")]
    one, two = {"authorization": "Bearer key-one"}, {"authorization": "Bearer key-two"}
    more = CLIENTS + state.replace("}", ", max_bytes: 1000000}")
    async with proxy_of(upstream, more=more) as url:
        kept = await ask(url, {}, streaming=False, **one)
        large = [await ask(url, {"input": "x" * 280_000}, streaming=False, **two) for _ in range(10)]
        statuses = [
            (await raw(url, None, method="GET", path=f"/{response['id']}", **key)).status_code
            for response, key in [(kept, one), *((response, two) for response in large)]
        ]
    assert statuses == [200, *[404] * 7, *[200] * 3]


async def test_what_is_read_of_a_chain_takes_memory_as_a_body_does(upstream):
    upstream.replies = [whole("Hello")]
    async with proxy_of(upstream, more="server: {max_body_memory: 1000000}") as url:
        first = await ask(url, {"input": "x" * 200_000}, streaming=False)
        second = await continued(url, first)
        assert second.status_code == 200
        long = await raw(url, {"model": "m", "input": "x" * 200_000, "previous_response_id": second.json()["id"]})
        assert (long.status_code, long.json()["error"]["code"]) == (413, "request_too_large")
        assert (await continued(url, first)).status_code == 200


async def test_a_kept_response_can_be_read_and_deleted(upstream, sdk):
    upstream.replies = [whole("Hello")]
    async with proxy_of(upstream) as url, sdk(url) as client:
        first = await client.responses.create(model="m", input="One", metadata={"a": "b"})
        assert await client.responses.retrieve(first.id) == first
        items = await client.responses.input_items.list(first.id)
        assert [(item.type, item.content[0].text) for item in items.data] == [("message", "One")]
        await client.responses.delete(first.id)
        for gone in (client.responses.retrieve, client.responses.delete, client.responses.input_items.list):
            with pytest.raises(openai.NotFoundError):
                await gone(first.id)
        with pytest.raises(openai.BadRequestError) as fault:
            await client.responses.create(**ASK, previous_response_id=first.id)
    assert (fault.value.code, fault.value.param) == ("previous_response_not_found", "previous_response_id")


async def test_input_items_have_every_field_that_lists_of_openai_have(upstream):
    upstream.replies = [whole("Hello")]
    picture = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
    given = [
        {"role": "user", "content": ["-", {**picture, "detail": None}, {**picture, "detail": "low"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "Hm."}]},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"type": "function_call", "call_id": "c", "name": "open_door", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": [picture], "status": "incomplete"},
    ]
    given[0]["content"][0] = {"type": "input_text", "text": "Look."}
    async with proxy_of(upstream) as url:
        first = (await raw(url, {**ASK, "input": given})).json()
        items = (await raw(url, None, method="GET", path=f"/{first['id']}/input_items?order=asc")).json()["data"]
    message, answer, thought, call, output = items
    assert [item.get("status") for item in items] == ["completed", "completed", None, "completed", "incomplete"]
    assert [part.get("detail") for part in message["content"]] == [None, "auto", "low"]
    assert answer["content"] == [{"type": "output_text", "text": "Hm.", "annotations": [], "logprobs": []}]
    assert thought == given[2]
    assert call["arguments"] == "{}"
    assert output["output"] == [{**picture, "detail": "auto"}]


@pytest.mark.parametrize("field", ["max_output_tokens", "max_tool_calls", "top_logprobs"])
async def test_a_whole_number_may_be_written_with_a_fraction(upstream, field):
    upstream.replies = [whole("Hello")]
    async with proxy_of(upstream) as url:
        answers = [await raw(url, {**ASK, field: value}) for value in (10.0, 10.5)]
    assert [answer.status_code for answer in answers] == [200, 400]
    assert isinstance(answers[0].json()[field], int)


async def test_input_items_come_in_pages(upstream, sdk):
    upstream.replies = [whole("Hello")]
    messages = [{"role": "user", "content": str(n)} for n in range(5)]
    async with proxy_of(upstream) as url, sdk(url) as client:
        first = await client.responses.create(model="m", input=messages)
        pages = client.responses.input_items.list(first.id, limit=2, order="asc")
        assert [item.content[0].text async for item in pages] == ["0", "1", "2", "3", "4"]
        newest = await client.responses.input_items.list(first.id, limit=2)
        assert [item.content[0].text for item in newest.data] == ["4", "3"]
        for wrong in (
            {"limit": 0},
            {"limit": 101},
            {"limit": "0" * 8 + "155"},
            {"limit": "0" * 8 + "1" + "9" * 5000},
            {"order": "x"},
            {"after": "msg_x"},
        ):
            with pytest.raises(openai.BadRequestError) as fault:
                await client.responses.input_items.list(first.id, **wrong)
            assert fault.value.param in wrong


async def test_references_to_items_are_resolved_as_the_ai_sdk_makes_them(upstream):
    upstream.replies = [whole(calls=[SEARCH, DOOR_CALL], content="Hm", reasoning_content="Thinking"), whole("Done")]
    async with proxy_of(upstream) as url:
        tools = [HOSTED, DOOR]
        first = await ask(url, {"tools": tools}, streaming=False)
        history = [{"role": "user", "content": [{"type": "input_text", "text": "What is new?"}]}]
        for item in first["output"]:
            if item["type"] == "function_call":
                history.append({key: item[key] for key in ("type", "call_id", "name", "arguments")})
                output = {"type": "function_call_output", "call_id": item["call_id"], "output": "opened"}
            else:
                history.append({"type": "item_reference", "id": item["id"]})
        await ask(url, {"tools": tools, "input": [*history, output]}, streaming=False)
    restored = [m for m in upstream.requests[1]["messages"] if m["role"] != "system"]
    assert [m["role"] for m in restored] == ["user", "assistant", "tool", "tool"]
    assert restored[1]["reasoning_content"] == "Thinking"


async def test_an_item_that_is_in_the_conversation_already_is_not_said_twice(upstream):
    upstream.replies = [whole("Hello"), whole("Again")]
    async with proxy_of(upstream) as url:
        first = await ask(url, {}, streaming=False)
        reference = {"type": "item_reference", "id": first["output"][0]["id"]}
        body = {"previous_response_id": first["id"], "input": [reference, {"role": "user", "content": "Two"}]}
        await ask(url, body, streaming=False)
    assert roles(upstream.requests[1]) == ["user", "assistant", "user"]


async def test_what_the_chain_has_already_may_be_given_again(upstream, sdk):
    upstream.replies = [whole("Hello", calls=[DOOR_CALL]), whole("Again"), whole("Third")]
    mine = {"id": "msg_mine", "type": "message", "role": "user", "content": "One"}
    async with proxy_of(upstream) as url, sdk(url) as client:
        first = await client.responses.create(model="m", input=[mine], tools=[DOOR])
        output = {"type": "function_call_output", "call_id": first.output[-1].call_id, "output": "opened"}
        again = [mine, *first.output, output]
        second = await client.responses.create(model="m", input=again, previous_response_id=first.id, tools=[DOOR])
        other = [{**mine, "content": "Another"}]
        third = await client.responses.create(model="m", input=other, previous_response_id=second.id, tools=[DOOR])
        for order in ("asc", "desc"):
            pages = client.responses.input_items.list(third.id, limit=1, order=order)
            listed = [item.id async for item in pages]
            assert len(listed) == len(set(listed)) == 5
    assert roles(upstream.requests[1]) == ["user", "assistant", "tool"]
    assert roles(upstream.requests[2]) == ["user", "assistant", "tool", "assistant", "user"]


async def test_nothing_is_kept_without_store_and_nothing_after_it_has_expired(upstream):
    clock = FakeClock()
    upstream.replies = [whole("Hello")]
    async with proxy_of(upstream, more="state: {ttl: 60}", clock=clock) as url:
        unkept = await ask(url, {"store": False}, streaming=False)
        kept = await ask(url, {}, streaming=False)
        assert (await raw(url, None, method="GET", path=f"/{unkept['id']}")).status_code == 404
        assert (await raw(url, None, method="GET", path=f"/{kept['id']}")).status_code == 200
        reference = [{"type": "item_reference", "id": unkept["output"][0]["id"]}]
        missing = await raw(url, {**ASK, "input": reference})
        clock.now += 61
        assert (await raw(url, None, method="GET", path=f"/{kept['id']}")).status_code == 404
    error = missing.json()["error"]
    assert (missing.status_code, error["param"], error["code"]) == (404, "input", None)


async def test_nothing_of_one_client_is_seen_by_another(upstream):
    upstream.replies = [whole("Hello")]
    one, two = {"authorization": "Bearer key-one"}, {"authorization": "Bearer key-two"}
    async with proxy_of(upstream, more=CLIENTS) as url:
        first = await ask(url, {}, streaming=False, **one)
        path = f"/{first['id']}"
        reference = [{"type": "item_reference", "id": first["output"][0]["id"]}]
        answers = [
            await raw(url, None, method="GET", path=path, **two),
            await raw(url, None, method="DELETE", path=path, **two),
            await raw(url, None, method="GET", path=f"{path}/input_items", **two),
            await raw(url, {**ASK, "input": reference}, **two),
            await raw(url, {**ASK, "previous_response_id": first["id"]}, **two),
        ]
        assert (await raw(url, None, method="GET", path=path, **one)).status_code == 200
    assert [answer.status_code for answer in answers] == [404, 404, 404, 404, 400]


async def test_a_response_is_kept_before_its_last_event_goes_out(upstream, sdk):
    upstream.replies = [streamed("Hello"), whole("Again")]
    async with proxy_of(upstream) as url, sdk(url) as client:
        async for event in await client.responses.create(**ASK, stream=True):
            if event.type == "response.completed":
                again = await client.responses.create(**ASK, previous_response_id=event.response.id)
    assert again.output_text == "Again"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "", 405),
        ("POST", "/compact", 404),
        ("POST", "/input_tokens", 404),
        ("POST", f"/resp_{'a' * 32}/cancel", 404),
        ("GET", f"/resp_{'a' * 32}/cancel", 405),
        ("POST", f"/resp_{'a' * 32}", 405),
        ("GET", f"/resp_{'a' * 32}", 404),
        ("GET", "/one:resp_x", 404),
        ("GET", f"/resp_{'a' * 32}?stream=true", 400),
    ],
)
async def test_what_is_not_served_is_not_handed_to_an_upstream_either(upstream, method, path, status):
    async with proxy_of(upstream) as url, httpx.AsyncClient() as client:
        for root in ("/v1/responses", "/responses"):
            response = await client.request(method, url + root + path, json=ASK)
            assert response.status_code == status
    assert upstream.requests == []


@pytest.mark.parametrize("path", ["/v1/conversations", "/v1/conversations/conv_1", "/v1/conversations/conv_1/items"])
async def test_there_are_no_conversations(upstream, path):
    async with proxy_of(upstream) as url, httpx.AsyncClient() as client:
        for method in ("GET", "POST", "DELETE"):
            response = await client.request(method, url + path, json=ASK)
            assert (response.status_code, response.json()["error"]["code"]) == (404, "not_found")
    assert upstream.requests == []


async def test_a_response_that_exists_cannot_be_cancelled(upstream, sdk):
    upstream.replies = [whole("Hello")]
    async with proxy_of(upstream) as url, sdk(url) as client:
        first = await client.responses.create(**ASK)
        with pytest.raises(openai.BadRequestError):
            await client.responses.cancel(first.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.cancel(f"resp_{'a' * 32}")


async def test_the_paths_need_no_version(upstream, sdk):
    upstream.replies = [whole("Hello")]
    async with proxy_of(upstream) as url, openai.AsyncOpenAI(base_url=url, api_key="x") as client:
        first = await client.responses.create(**ASK)
        assert (await client.responses.retrieve(first.id)).output_text == "Hello"
        assert len((await client.responses.input_items.list(first.id)).data) == 1
        await client.responses.delete(first.id)


# -- faults --


async def test_a_fault_in_the_middle_is_an_error_and_a_failed_response(upstream, sdk):
    upstream.replies = [stream(chunk({"content": "Hel"}), None)]
    async with proxy_of(upstream) as url, sdk(url) as client:
        response = await raw(url, {**ASK, "stream": True})
        with pytest.raises(openai.APIError):
            async for _ in await client.responses.create(**ASK, stream=True):
                pass
        *_, error, failed = events_in(response.text)
        assert (await raw(url, None, method="GET", path=f"/{failed['response']['id']}")).status_code == 404
    assert error["error"]["code"] == error["code"] == "upstream_error"
    assert (failed["type"], failed["response"]["status"]) == ("response.failed", "failed")
    assert failed["response"]["error"]["code"] == "server_error"
    [item] = failed["response"]["output"]
    assert (item["content"][0]["text"], item["status"]) == ("Hel", "incomplete")
    [done] = [event["item"] for event in events_in(response.text) if event["type"] == "response.output_item.done"]
    assert done == item
    assert response.text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"background": True}, "background"),
        ({"conversation": "c"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"input": [{"type": "compaction"}]}, "input[0]"),
        ({"tools": [{"type": "code_interpreter"}]}, "tools"),
        ({"model": ""}, "model"),
        ({"previous_response_id": "resp_x"}, "previous_response_id"),
    ],
)
async def test_what_cannot_be_done_is_a_clear_400(upstream, body, param):
    async with proxy_of(upstream) as url:
        response = await raw(url, {**ASK, **body})
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


async def test_an_unknown_model_is_404(upstream):
    async with proxy_of(upstream) as url:
        response = await raw(url, {**ASK, "model": "x"})
    assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")


async def test_tools_that_are_ignored_are_in_the_log(upstream, logged):
    upstream.replies = [whole("Hi")]
    async with proxy_of(upstream) as url:
        await raw(url, {**ASK, "tools": [DOOR, {"type": "mcp", "server_url": "http://x"}]})
    (line,) = [line for line in logged() if line["event"] == "request.completed"]
    assert line["tools_ignored"] == ["mcp"]


def in_characters(text, *calls):
    """A streamed answer whose text comes a character at a time."""
    *rest, finish = streamed(calls=calls).body[1:-2]
    return stream(*(chunk({"content": character}) for character in text), *rest, finish)


def cut_or_whole(streaming, text, *calls):
    return in_characters(text, *calls) if streaming else whole(text, calls=calls)


@both
async def test_a_message_before_a_search_ends_with_one_blank_line_at_most(upstream, streaming):
    upstream.replies = [
        cut_or_whole(streaming, "\n \nOne.\n\n\n\n", SEARCH),
        cut_or_whole(streaming, " \n\n  Two.\n\n\n"),
    ]
    async with proxy_of(upstream) as url:
        response = await ask(url, {"tools": [HOSTED]}, streaming=streaming)
    assert texts(response) == ["One.\n\n", "  Two.\n\n\n"]


@both
@pytest.mark.parametrize("format_", [{}, {"text": {"format": {"type": "json_object"}}}, {"text": {"format": SCHEMA}}])
async def test_annotations_of_the_upstreams_own_are_flat_and_name_no_page_twice(upstream, streaming, format_):
    def cited(url, **more):
        return {"type": "url_citation", "url_citation": {"url": url, "start_index": 0, "end_index": 0, **more}}

    given = [
        cited("https://b.example/", title="B", content="Words", end_index=900),
        cited("https://b.example/", title="B", end_index=900),
        cited("https://a.example/", title="A"),
        cited("https://c.example/", title=""),
        {"type": "url_citation"},
        {"type": "file_citation", "index": 0},
    ]
    text = '{"city":"https://a.example/","degrees":1}'
    answer = [chunk({"content": "", "annotations": given}), chunk({"content": text}), chunk({}, "stop")]
    upstream.replies = [
        reply_of(streaming)("", calls=[SEARCH]),
        stream(*answer) if streaming else whole(text, annotations=given),
    ]
    async with proxy_of(upstream, config=GLM) as url:
        response = await ask(url, {"tools": [HOSTED], **format_}, streaming=streaming)
    (part,) = response["output"][-1]["content"]
    assert part["annotations"] == [
        {"type": "url_citation", "start_index": 9, "end_index": 27, "title": "A page", "url": "https://a.example/"},
        {"type": "url_citation", "start_index": 0, "end_index": 41, "title": "B", "url": "https://b.example/"},
        {
            "type": "url_citation",
            "start_index": 0,
            "end_index": 0,
            "title": "https://c.example/",
            "url": "https://c.example/",
        },
    ]


async def test_a_call_that_was_cut_off_is_incomplete_although_a_search_had_begun_early(upstream):
    searching = {
        "index": 0,
        "id": "c0",
        "type": "function",
        "function": {"name": "web_search", "arguments": '{"query":"x"}'},
    }
    door = {"index": 1, "id": "c1", "type": "function", "function": {"name": "open_door", "arguments": '{"n":'}}
    upstream.replies = [
        stream(
            chunk({"content": "let"}),
            chunk({"tool_calls": [searching]}),
            chunk({"tool_calls": [door]}),
            chunk(finish_reason="length"),
        )
    ]
    tools = [{"type": "web_search"}, {"type": "function", "name": "open_door", "parameters": {"type": "object"}}]
    async with proxy_of(upstream) as url, httpx.AsyncClient(timeout=20) as client:
        body = {"model": "m", "input": "x", "stream": True, "tools": tools}
        lines = (await client.post(f"{url}/v1/responses", json=body)).text.splitlines()
    events = [orjson.loads(line[6:]) for line in lines if line.startswith("data: {")]
    response = events[-1]["response"]
    statuses = {item["type"]: item["status"] for item in response["output"]}
    assert (response["status"], statuses["function_call"], statuses["web_search_call"]) == (
        "incomplete",
        "incomplete",
        "failed",
    )


async def test_where_no_allowed_tool_is_available_a_demand_is_refused_and_an_offer_is_not(upstream):
    upstream.replies = [whole("Hi")]
    body = {**ASK, "tools": [DOOR]}
    choice = {"type": "allowed_tools", "tools": [{"type": "file_search"}]}
    async with proxy_of(upstream) as url:
        refused = await raw(url, {**body, "tool_choice": {**choice, "mode": "required"}})
        fine = await raw(url, {**body, "tool_choice": choice})
    error = refused.json()["error"]
    assert (refused.status_code, error["param"], "file_search" in error["message"]) == (400, "tool_choice", True)
    assert (fine.status_code, fine.headers["x-tools-ignored"]) == (200, "file_search")
    assert "tools" not in upstream.requests[0]


async def test_a_function_and_a_custom_tool_of_one_name_are_told_apart(upstream):
    upstream.replies = [whole("Done")]
    tools = [{**DOOR, "name": "x"}, {"type": "custom", "name": "x"}]
    history = [
        {"role": "user", "content": "Hi"},
        {"type": "function_call", "call_id": "c", "name": "x", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "done"},
    ]
    body = {"tools": tools, "tool_choice": {"type": "function", "name": "x"}, "input": history}
    async with proxy_of(upstream) as url:
        await ask(url, body, streaming=False)
    (request,) = upstream.requests
    (call,) = [m["tool_calls"][0] for m in request["messages"] if m.get("tool_calls")]
    assert (request["tool_choice"]["function"]["name"], call["function"]["name"]) == ("x", "x")


async def test_the_newest_definition_of_a_tool_counts_wherever_it_stands(upstream):
    def adding(description):
        return {"type": "additional_tools", "role": "developer", "tools": [{**DOOR, "description": description}]}

    def shown():
        return [tool["function"]["description"] for tool in upstream.requests[-1]["tools"]]

    upstream.replies = [whole("Fine")]
    async with proxy_of(upstream) as url:
        said = {"role": "user", "content": "Hi"}
        no_search = {"x-server-tools": "none"}
        first = await ask(url, {"tools": [], "input": [adding("v1"), said]}, streaming=False, **no_search)
        body = {"tools": [{**DOOR, "description": "v2"}], "previous_response_id": first["id"]}
        second = await ask(url, body, streaming=False, **no_search)
        assert shown() == ["v2"]
        body = {**body, "previous_response_id": second["id"], "input": [adding("v3"), said]}
        await ask(url, body, streaming=False, **no_search)
        assert shown() == ["v3"]
        wrong = {"type": "additional_tools", "role": "developer", "tools": [{"type": "file_search"}]}
        fault = await raw(url, {**ASK, "input": [wrong, said]})
    assert (fault.status_code, fault.json()["error"]["param"]) == (400, "input")
