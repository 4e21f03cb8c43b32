"""`/v1/responses`: what its client sees in items, what is kept, and what it brings back."""

import re

import httpx
import openai
import orjson
import pytest
from pydantic import BaseModel

from proxy.tools.tool import Tool
from tests.api.answer import Call
from tests.api.responses.asking import ASK, DOOR, HOSTED, events_in, raw
from tests.api.surfaces import CITY, SEARCH, on
from tests.api.surfaces import DOOR as DOOR_CALL
from tests.fakes import FakeClock, Reply, chunk, stream, streamed, turn, whole
from tests.serving import proxy_of

MINE = {"functions": ["open_door"]}
CLIENTS = """
clients:
  - {name: one, key: key-one}
  - {name: two, key: key-two}
  - {name: no-tools, key: key-none, tools: []}
"""


class City(BaseModel):
    city: str
    degrees: int


async def get(client, path, method="GET", **headers):
    """A request by the id of a response."""
    return await raw(client.url, None, method=method, path=path, **headers)


def offered(surface):
    return [tool["function"]["name"] for tool in surface.upstream.requests[0].get("tools") or ()]


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


async def test_a_hidden_search_is_shown_to_who_asks_for_events_as_a_call_of_our_server(responses):
    answer = await responses.ask(turn(calls=[SEARCH]), turn("Done"), events="true")
    call, _ = answer.whole["output"]
    assert (call["type"], call["server_label"]) == ("mcp_call", "toolproxy")


async def test_headers_say_which_tools_are_ignored(upstream):
    upstream.replies = [turn("Done")]
    async with proxy_of(upstream) as url:
        answer = await raw(url, {**ASK, "tools": [HOSTED, {"type": "file_search"}, {"type": "a\r\nx: y"}]})
    assert answer.headers["x-tools-ignored"] == "file_search,unknown"


async def test_the_sdks_helpers_read_it(upstream, sdk):
    upstream.replies = [turn("Searching.", calls=[SEARCH]), turn("Much"), turn('{"city":"N","degrees":1}')]
    async with proxy_of(upstream) as url, sdk(url) as client:
        async with client.responses.stream(**ASK, tools=[HOSTED]) as reading:
            types = [event.type async for event in reading]
            final = await reading.get_final_response()
        parsed = await client.responses.parse(**ASK, text_format=City)
    assert types[-1] == "response.completed"
    assert final.output_text == "Searching.Much"
    assert parsed.output_parsed == City(city="N", degrees=1)


async def test_a_request_that_may_use_no_server_tool_is_told_in_items_as_well(responses):
    answer = await responses.ask(turn("Hi there", calls=[DOOR_CALL]), **MINE, server_tools="none")
    assert answer.kinds == ["text", "call"]
    [message] = responses.upstream.requests[0]["messages"]
    assert message["role"] == "user"  # nothing is said of tools that are not there


async def test_thoughts_are_told_and_come_back(responses):
    async with responses.proxy(turn("Hi", thoughts="Hm"), profile="glm") as client:
        first = await client.ask(thinking=True)
        thoughts = first.whole["output"][0]
        assert (thoughts["content"][0]["text"], thoughts["summary"][0]["text"]) == ("Hm", "Hm")
        sealed = {key: thoughts[key] for key in ("type", "id", "encrypted_content")}
        first.folded.history[0] = {**sealed, "summary": []}
        await client.ask(after=first, text="Go on")
    assert responses.history()[-2]["reasoning_content"] == "Hm"


async def test_the_models_own_limit_is_incomplete(responses):
    answer = await responses.ask(turn("Half an ans", finish="length"), most=3)
    assert (answer.whole["status"], answer.whole["incomplete_details"]) == (
        "incomplete",
        {"reason": "max_output_tokens"},
    )
    assert answer.whole["output"][-1]["status"] == "incomplete"
    assert responses.upstream.requests[0]["max_tokens"] == 3


async def test_the_settings_of_a_search_reach_it(responses):
    settings = {
        "filters": {"allowed_domains": ["b.example"]},
        "user_location": {"type": "approximate", "country": "CA", "city": "Nanaimo"},
        "search_context_size": "low",
    }
    sources = {"include": ["web_search_call.action.sources"]}
    answer = await responses.ask(turn(calls=[SEARCH]), turn("Done"), search=settings, body=sources)
    sent = {"q": "news (site:b.example)", "num": 3, "gl": "ca", "location": "Nanaimo, CA"}
    assert responses.upstream.searches == [sent]
    assert answer.whole["output"][0]["action"]["sources"] == []
    assert "Nanaimo" in responses.upstream.requests[0]["messages"][0]["content"]


async def test_a_message_before_a_search_ends_with_one_blank_line_at_most(responses):
    replies = turn("\n \nOne.\n\n\n\n", calls=[SEARCH], size=1), turn(" \n\n  Two.\n\n\n", size=1)
    answer = await responses.ask(*replies, search=True)
    assert answer.texts == ["One.\n\n", "  Two.\n\n\n"]


@pytest.mark.parametrize("format_", [None, {"type": "json_object"}, "schema"])
async def test_annotations_of_the_upstreams_own_are_flat_and_name_no_page_twice(responses, format_):
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
    reply = lambda request: (  # noqa: E731 - annotations before the text
        stream(chunk({"content": "", "annotations": given}), chunk({"content": text}), chunk({}, "stop"))
        if request.get("stream")
        else whole(text, annotations=given)
    )
    form = {"schema": CITY} if format_ == "schema" else {"body": {"text": {"format": format_}} if format_ else {}}
    answer = await responses.ask(turn(calls=[SEARCH]), reply, profile="glm", search=True, **form)
    [part] = answer.whole["output"][-1]["content"]
    a, c = "https://a.example/", "https://c.example/"
    assert part["annotations"] == [
        {"type": "url_citation", "start_index": 9, "end_index": 27, "title": "A page", "url": a},
        {"type": "url_citation", "start_index": 0, "end_index": 41, "title": "B", "url": "https://b.example/"},
        {"type": "url_citation", "start_index": 0, "end_index": 0, "title": c, "url": c},
    ]


# -- the client's own tools --


async def test_what_a_client_carries_is_of_no_use_to_another(responses):
    async with responses.proxy(turn(calls=[SEARCH, DOOR_CALL]), turn("Done"), more=CLIENTS) as client:
        first = await client.ask(search=True, **MINE, body={"store": False}, key="key-one")
        for key in ("key-one", "key-two"):
            await client.ask(after=first, results=["opened"], headers={"authorization": f"Bearer {key}"})
    _, of_owner, of_other = map(str, responses.upstream.requests)
    assert "https://a.example/" in of_owner
    assert "https://a.example/" not in of_other


async def test_custom_tools_and_namespaces_come_back_as_they_are(responses):
    tools = [
        {"type": "custom", "name": "patch"},
        {"type": "namespace", "name": "agents", "description": "", "tools": [{"type": "function", "name": "spawn"}]},
    ]
    calls = [("a", "patch", {"input": "raw\ntext"}), ("b", "agents__spawn", {"n": 1})]
    async with responses.proxy(turn(calls=calls), turn("Done")) as client:
        first = await client.ask(tools=tools)
        patch, spawn = first.whole["output"]
        assert (patch["type"], patch["name"], patch["input"]) == ("custom_tool_call", "patch", "raw\ntext")
        assert (spawn["name"], spawn["namespace"], spawn["arguments"]) == ("spawn", "agents", '{"n":1}')
        results = [
            {"type": "custom_tool_call_output", "call_id": patch["call_id"], "output": "ok"},
            {"type": "function_call_output", "call_id": spawn["call_id"], "output": "ok"},
        ]
        await client.ask(tools=tools, body={"previous_response_id": first.whole["id"], "input": results})
    assistant = responses.history()[-3]
    assert [entry["function"]["name"] for entry in assistant["tool_calls"]] == ["patch", "agents__spawn"]


@on("responses-whole")
async def test_allowed_tools_are_those_only(surface):
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "open_door"}]}
    await surface.ask(turn("Done"), search=True, functions=["open_door", "close_door"], body={"tool_choice": choice})
    assert offered(surface) == ["open_door"]


@on("responses-whole")
@pytest.mark.parametrize(
    ("search", "without"),
    [(True, {"tool_choice": "none"}), (True, {"max_tool_calls": 0}), ({"external_web_access": False}, {})],
)
async def test_a_client_that_wants_no_search_gets_none_and_keeps_its_other_fields(surface, search, without):
    fields = {"temperature": 0, "parallel_tool_calls": False}
    await surface.ask(turn("Done"), search=search, **MINE, body={**without, **fields})
    assert offered(surface) == ["open_door"]
    assert surface.upstream.requests[0].items() >= fields.items()


CODEX = {
    "model": "m",
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


@on("responses-streamed")
async def test_a_coding_agent_that_keeps_everything_itself_loses_nothing(surface):
    mixed = turn(thoughts="I need both.", calls=[SEARCH, ("u2", "exec_command", {"cmd": "ls"})])
    history = [
        {"type": "message", "role": "developer", "id": "msg_d", "content": [{"type": "input_text", "text": "Rules"}]},
        {"type": "message", "role": "user", "id": "msg_u", "content": [{"type": "input_text", "text": "Go"}]},
    ]
    async with surface.proxy(mixed, turn("Done"), profile="glm") as client:
        first = await client.ask(body={**CODEX, "input": history})
        types = sorted(item["type"] for item in first.whole["output"])
        assert types == ["function_call", "reasoning", "reasoning", "web_search_call"]
        [call] = first.of(Call)
        picture = [{"type": "input_image", "image_url": "data:image/png;base64,AA"}]
        result = {"type": "function_call_output", "id": "fco_1", "call_id": call.id, "output": picture}
        await client.ask(body={**CODEX, "input": [*history, *first.whole["output"], result]})
    second = surface.upstream.requests[1]["messages"]
    assert [message["role"] for message in second] == ["system", "user", "assistant", "tool", "tool", "user"]
    assert second[2]["reasoning_content"] == "I need both."
    assert [entry["id"] for entry in second[2]["tool_calls"]] == ["u1", "u2"]
    assert second[5]["content"][1] == {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}


@pytest.mark.parametrize("streaming", [False, True])
async def test_whole_items_with_nulls_and_fields_of_the_sdks_own_come_back(upstream, sdk, streaming):
    upstream.replies = [turn("Let me.", calls=[SEARCH, DOOR_CALL]), turn("Done")]
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
    assert [one["role"] for one in upstream.requests[1]["messages"]][1:] == ["user", "assistant", "tool", "tool"]


@pytest.mark.parametrize(
    "declared",
    [
        {"type": "custom", "name": "web_search"},
        {"type": "custom", "name": "webSearch"},
        {"type": "namespace", "name": "crm", "description": "", "tools": [{"type": "function", "name": "web_search"}]},
        {"type": "namespace", "name": "browser", "description": "", "tools": [{"type": "custom", "name": "look_up"}]},
    ],
)
async def test_a_custom_tool_or_one_in_a_namespace_never_becomes_the_servers(responses, declared):
    ran = []

    async def look_up(arguments):
        ran.append(arguments)
        return "found"

    def call_the_clients(request):
        """A call of the tool that stands where the client's does."""
        name = next(tool["function"]["name"] for tool in request["tools"])
        return turn(calls=[("u1", name, {"input": "x"})])(request)

    server = Tool(name="browser__look_up", description="", parameters={"type": "object"}, run=look_up)
    answer = await responses.ask(call_the_clients, server=[server], tools=[declared])
    [call] = answer.whole["output"]
    inner = declared.get("tools", [declared])[0]
    assert (call["type"], call["name"]) == (f"{inner['type']}_call".replace("custom", "custom_tool"), inner["name"])
    assert call.get("namespace") == (declared["name"] if "tools" in declared else None)
    assert (ran, responses.upstream.searches) == ([], [])
    assert len({*offered(responses)}) == len(offered(responses)) == 3


@on("responses-whole")
@pytest.mark.parametrize(
    ("choice", "kind"),
    [({"type": "function", "name": "time"}, "time"), ({"type": "web_search_preview"}, "web_search")],
)
async def test_a_server_tool_may_be_chosen_without_being_declared(surface, choice, kind):
    more = "  time: {type: clock, offer: declared}\n" + CLIENTS
    replies = turn(calls=[("u1", kind, {"query": "news"})]), turn("Done")
    async with surface.proxy(*replies, more=more) as client:
        answer = await client.ask(body={"tool_choice": choice, "max_tool_calls": 2}, key="key-one")
        refused = await client.ask(body={"tool_choice": choice}, key="key-none")
    assert answer.kinds == (["text"] if kind == "time" else ["servercall", "text"])
    first, second = surface.upstream.requests
    assert first["tool_choice"] == {"type": "function", "function": {"name": kind}}
    assert second.get("tool_choice", "auto") == "auto"
    assert kind in offered(surface)
    assert (refused.status, refused.error["param"]) == (400, "tool_choice")


async def test_what_opens_a_clients_server_is_neither_kept_nor_echoed(responses):
    server = {"type": "mcp", "server_label": "s", "server_url": "https://s.example/mcp"}
    secret = {**server, "authorization": "sesame-one", "headers": {"X-Key": "sesame-two"}}
    added = {"type": "additional_tools", "role": "developer", "tools": [secret]}
    async with responses.proxy(turn("Hello")) as client:
        answer = await client.ask(**MINE, tools=[secret], body={"input": [{"role": "user", "content": "Hi"}, added]})
        kept = [await get(client, f"/{answer.whole['id']}{path}") for path in ("", "/input_items")]
    assert [one.status_code for one in kept] == [200, 200]
    for text in (answer.raw, *(one.text for one in kept)):
        assert "s.example" in text
        assert "sesame" not in text
    assert "sesame" not in str(responses.upstream.requests)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"include": ["message.output_text.logprobs"]}, "include"),
        ({"include": ["message.output_text.logprobs"], "top_logprobs": 2}, "top_logprobs"),
    ],
)
async def test_a_fault_names_the_field_that_was_sent(responses, body, param):
    answer = await responses.ask(profile="glm", body=body)
    assert (answer.status, answer.error["param"]) == (400, param)
    assert answer.error["message"].startswith(f"'{param}' ")


@pytest.mark.parametrize(
    ("theirs", "param"), [("max_tokens", "max_output_tokens"), ("messages[0].content", "input"), ("user", "user")]
)
async def test_what_an_upstream_says_of_a_field_is_said_of_the_one_that_was_sent(responses, theirs, param):
    error = {"error": {"message": f"Invalid '{theirs}': no.", "param": theirs, "type": "x", "code": "y"}}
    answer = await responses.ask(Reply([orjson.dumps(error)], status=400))
    assert (answer.error["param"], answer.error["message"]) == (param, f"Invalid '{param}': no.")


async def test_fields_too_deep_to_be_echoed_are_refused_before_the_model_is_asked(responses):
    answered = refused = 0
    async with responses.proxy(turn("Yes.")) as client:
        for depth in range(245, 256):
            deep = orjson.loads("[" * depth + "]" * depth)
            answer = await raw(client.url, {**ASK, "metadata": {"a": deep}, "stream": responses.streaming})
            if answer.status_code == 400:
                refused += 1
                assert answer.json()["error"]["code"] == "invalid_json"
            else:
                answered += 1
                assert '"status":"completed"' in answer.text
    assert (answered > 0, refused > 0) == (True, True)
    assert len(responses.upstream.requests) == answered


async def test_a_call_of_the_clients_is_not_held_to_the_schema(responses):
    answer = await responses.ask(
        turn("Not JSON", calls=[DOOR_CALL]), profile="glm", **MINE, schema=CITY, server_tools="none"
    )
    assert answer.kinds == ["call"]


# -- state --


def after(answer, **fields):
    """The body of a request that goes on from a response by its id."""
    return {"body": {"previous_response_id": answer.whole["id"], **fields}}


async def test_a_conversation_goes_on_from_a_response(responses):
    async with responses.proxy(turn("Hello"), turn("Again"), turn("Third")) as client:
        first = await client.ask(text="One", body={"instructions": "Be brief."})
        second = await client.ask(text="Two", **after(first))
        await client.ask(text="Three", **after(second))
    assert responses.roles() == ["user", "assistant", "user", "assistant", "user"]
    assert "Be brief." not in str(responses.upstream.requests[1])
    assert second.whole["previous_response_id"] == first.whole["id"]


@pytest.fixture(params=["memory", "redis"])
def state(request):
    """What `state:` says, with room for more."""
    url = "memory://" if request.param == "memory" else request.getfixturevalue("redis_server").url
    return f"state: {{url: {url}}}\n"


async def chain(client, *, length=3, search_in=None):
    """Responses each of which continues the one before; one of them searches."""
    replies = [turn(f"Answer-{number}") for number in range(length)]
    if search_in is not None:
        replies.insert(search_in, turn("Let me see.", calls=[SEARCH]))
    client.surface.upstream.restart(replies)
    made = [await client.ask(text="Question 0")]
    for number in range(1, length):
        made.append(await client.ask(text=f"Question {number}", **after(made[-1])))
    return made


async def test_what_the_model_has_found_earlier_in_a_chain_is_before_it_again(responses, state):
    async with responses.proxy(more=state) as client:
        await chain(client, search_in=1)
    said = responses.history()
    assert [m["role"] for m in said] == ["user", "assistant", "user", "assistant", "tool", "assistant", "user"]
    assistant, result = responses.history(2)[3:]
    assert (said[3], said[4]["tool_call_id"]) == (assistant, result["tool_call_id"])
    assert "example" in said[4]["content"]
    assert said[5]["content"] == "Answer-1"


@pytest.mark.parametrize("calls", [[SEARCH], [SEARCH, DOOR_CALL]])
async def test_what_was_found_earlier_in_a_chain_may_be_cited(responses, calls):
    async with responses.proxy(turn("Let me.", calls=calls), *[turn("See https://a.example/")] * 3) as client:
        answer = await client.ask(search=True, **MINE)
        for _ in range(2):
            given = [{"type": "function_call_output", "call_id": call.id, "output": "ok"} for call in answer.of(Call)]
            answer = await client.ask(search=True, **MINE, **after(answer, input=given or "Where?"))
    assert [(one.url, one.title) for one in answer.citations] == [("https://a.example/", "A page")]


@on("responses-whole")
async def test_a_prefix_that_asks_for_tools_holds_where_a_result_is_a_picture(surface):
    more = 'offer: {mode: on_request, prefix: "//"}'
    async with surface.proxy(turn(calls=[DOOR_CALL]), turn("Done"), more=more) as client:
        first = await client.ask(text="// Look", **MINE)
        picture = [{"type": "input_image", "image_url": "data:image/png;base64,AA"}]
        output = {"type": "function_call_output", "call_id": first.of(Call)[0].id, "output": picture}
        await client.ask(**MINE, **after(first, input=[output]))
    request = surface.upstream.requests[1]
    assert [tool["function"]["name"] for tool in request["tools"]] == ["open_door", "web_search"]
    assert "// Look" not in str(request)


async def test_a_call_that_was_cut_off_after_a_search_takes_its_output_in_a_chain(responses):
    replies = turn(calls=[SEARCH]), turn(calls=[DOOR_CALL], finish="length"), turn("Open.")
    async with responses.proxy(*replies) as client:
        first = await client.ask(search=True, **MINE)
        call = first.whole["output"][-1]
        assert (first.finish, call["status"]) == ("length", "incomplete")
        without = await client.ask(search=True, **MINE, **after(first))
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": "opened"}
        assert (await client.ask(search=True, **MINE, **after(first, input=[output]))).status == 200
    assert (without.status, without.error["param"]) == (400, "input")
    assert responses.roles() == ["user", "assistant", "tool", "assistant", "tool"]
    assert responses.history()[-1]["content"] == "opened"


async def test_thoughts_that_were_cut_off_after_a_search_are_no_message_of_a_chain(responses):
    replies = turn(calls=[SEARCH]), turn(thoughts="Hm", finish="length"), turn("Fine.")
    async with responses.proxy(*replies) as client:
        await client.ask(**after(await client.ask(search=True)))
    assert responses.roles() == ["user", "assistant", "tool", "user"]


@on("responses-whole")
async def test_each_response_of_a_chain_is_kept_by_itself(surface, state):
    sizes = []
    async with surface.proxy(more=state) as client, httpx.AsyncClient() as http:
        for length in (1, 20):
            last = (await chain(client, length=length))[-1]
            if "redis" in state:
                continue
            metrics = (await http.get(f"{client.url}/metrics")).text
            sizes.append(float(re.search(r"^toolproxy_state_bytes (\S+)$", metrics, re.MULTILINE)[1]))
        items = (await get(client, f"/{last.whole['id']}/input_items?limit=100")).json()["data"]
    assert [item["content"][0]["text"] for item in items][:3] == ["Question 19", "Answer-18", "Question 18"]
    assert len(items) == 39
    if sizes:
        assert sizes[1] < 1.2 * 21 * sizes[0]


@on("responses-whole")
async def test_a_chain_lives_as_long_as_it_is_continued(surface):
    clock = FakeClock()
    async with surface.proxy(turn("Hello"), more="state: {ttl: 60}", clock=clock) as client:
        last = await client.ask()
        for _ in range(4):
            clock.now += 50
            last = await client.ask(**after(last))
        assert len(surface.roles()) == 9
        clock.now += 61
        assert (await client.ask(**after(last))).status == 400


@on("responses-whole")
async def test_a_chain_of_which_one_is_deleted_can_be_read_and_not_continued(surface, state):
    async with surface.proxy(more=state) as client:
        first, _, third = await chain(client)
        await get(client, f"/{first.whole['id']}", "DELETE")
        refused = await client.ask(**after(third))
        assert (await get(client, f"/{third.whole['id']}")).json() == third.whole
        items = (await get(client, f"/{third.whole['id']}/input_items?order=asc")).json()["data"]
    assert (refused.status, refused.error["code"]) == (400, "previous_response_not_found")
    assert first.whole["id"] in refused.error["message"]
    assert [item["content"][0]["text"] for item in items] == ["Question 1", "Answer-1", "Question 2"]


@on("responses-whole")
async def test_large_responses_of_one_client_push_out_none_of_anothers(surface, state):
    more = CLIENTS + state.replace("}", ", max_bytes: 1000000}")
    async with surface.proxy(turn("Hello"), more=more) as client:
        kept = await client.ask(key="key-one")
        large = [await client.ask(text="x" * 280_000, key="key-two") for _ in range(10)]
        statuses = [
            (await get(client, f"/{answer.whole['id']}", authorization=f"Bearer {key}")).status_code
            for answer, key in [(kept, "key-one"), *((answer, "key-two") for answer in large)]
        ]
    assert statuses == [200, *[404] * 7, *[200] * 3]


@on("responses-whole")
async def test_what_is_read_of_a_chain_takes_memory_as_a_body_does(surface):
    async with surface.proxy(turn("Hello"), more="server: {max_body_memory: 1000000}") as client:
        first = await client.ask(text="x" * 200_000)
        second = await client.ask(**after(first))
        assert second.status == 200
        long = await client.ask(text="x" * 200_000, **after(second))
        assert (long.status, long.error["code"]) == (413, "request_too_large")
        assert (await client.ask(**after(first))).status == 200


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


@on("responses-whole")
async def test_input_items_have_every_field_that_lists_of_openai_have(surface):
    picture = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
    text = {"type": "input_text", "text": "Look."}
    given = [
        {"role": "user", "content": [text, {**picture, "detail": None}, {**picture, "detail": "low"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "Hm."}]},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"type": "function_call", "call_id": "c", "name": "open_door", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": [picture], "status": "incomplete"},
    ]
    async with surface.proxy(turn("Hello")) as client:
        first = await client.ask(body={"input": given})
        items = (await get(client, f"/{first.whole['id']}/input_items?order=asc")).json()["data"]
    message, answer, thought, call, output = items
    assert [item.get("status") for item in items] == ["completed", "completed", None, "completed", "incomplete"]
    assert [part.get("detail") for part in message["content"]] == [None, "auto", "low"]
    assert answer["content"] == [{"type": "output_text", "text": "Hm.", "annotations": [], "logprobs": []}]
    assert thought == given[2]
    assert call["arguments"] == "{}"
    assert output["output"] == [{**picture, "detail": "auto"}]


@on("responses-whole")
@pytest.mark.parametrize("field", ["max_output_tokens", "max_tool_calls", "top_logprobs"])
async def test_a_whole_number_may_be_written_with_a_fraction(surface, field):
    async with surface.proxy(turn("Hello")) as client:
        fine, wrong = [await client.ask(body={field: value}) for value in (10.0, 10.5)]
    assert (fine.status, wrong.status) == (200, 400)
    assert isinstance(fine.whole[field], int)


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


@on("responses-whole")
async def test_references_to_items_are_resolved_as_the_ai_sdk_makes_them(surface):
    async with surface.proxy(turn("Hm", thoughts="Thinking", calls=[SEARCH, DOOR_CALL]), turn("Done")) as client:
        first = await client.ask(search=True, **MINE)
        first.folded.history = [
            {key: item[key] for key in ("type", "call_id", "name", "arguments")}
            if item["type"] == "function_call"
            else {"type": "item_reference", "id": item["id"]}
            for item in first.whole["output"]
        ]
        await client.ask(after=first, results=["opened"])
    assert surface.roles() == ["user", "assistant", "tool", "tool"]
    assert surface.history()[1]["reasoning_content"] == "Thinking"


@on("responses-whole")
async def test_an_item_that_is_in_the_conversation_already_is_not_said_twice(surface):
    async with surface.proxy(turn("Hello"), turn("Again")) as client:
        first = await client.ask()
        reference = {"type": "item_reference", "id": first.whole["output"][0]["id"]}
        await client.ask(**after(first, input=[reference, {"role": "user", "content": "Two"}]))
    assert surface.roles() == ["user", "assistant", "user"]


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
    said = [[one["role"] for one in request["messages"]][1:] for request in upstream.requests[1:]]
    assert said == [["user", "assistant", "tool"], ["user", "assistant", "tool", "assistant", "user"]]


@on("responses-whole")
async def test_nothing_is_kept_without_store_and_nothing_after_it_has_expired(surface):
    clock = FakeClock()
    async with surface.proxy(turn("Hello"), more="state: {ttl: 60}", clock=clock) as client:
        unkept, kept = await client.ask(body={"store": False}), await client.ask()
        assert (await get(client, f"/{unkept.whole['id']}")).status_code == 404
        assert (await get(client, f"/{kept.whole['id']}")).status_code == 200
        reference = {"type": "item_reference", "id": unkept.whole["output"][0]["id"]}
        missing = await client.ask(body={"input": [reference]})
        clock.now += 61
        assert (await get(client, f"/{kept.whole['id']}")).status_code == 404
    assert (missing.status, missing.error["param"], missing.error["code"]) == (404, "input", None)


@on("responses-whole")
async def test_nothing_of_one_client_is_seen_by_another(surface):
    one, two = {"authorization": "Bearer key-one"}, {"authorization": "Bearer key-two"}
    async with surface.proxy(turn("Hello"), more=CLIENTS) as client:
        first = await client.ask(key="key-one")
        path = f"/{first.whole['id']}"
        reference = {"type": "item_reference", "id": first.whole["output"][0]["id"]}
        by_id = [await get(client, path, **two), await get(client, path, "DELETE", **two)]
        by_id.append(await get(client, f"{path}/input_items", **two))
        asked = [
            await client.ask(body={"input": [reference]}, key="key-two"),
            await client.ask(**after(first), key="key-two"),
        ]
        assert (await get(client, path, **one)).status_code == 200
    assert [answer.status_code for answer in by_id] == [404] * 3
    assert [answer.status for answer in asked] == [404, 400]


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


@on("responses-streamed")
async def test_a_fault_in_the_middle_is_an_error_and_a_failed_response(surface):
    async with surface.proxy(stream(chunk({"content": "Hel"}), None)) as client:
        answer = await client.ask()
        *_, error, failed = events_in(answer.raw)
        assert (await get(client, f"/{failed['response']['id']}")).status_code == 404
    assert error["error"]["code"] == error["code"] == "upstream_error"
    assert (failed["type"], failed["response"]["status"]) == ("response.failed", "failed")
    assert failed["response"]["error"]["code"] == "server_error"
    [item] = failed["response"]["output"]
    assert (item["content"][0]["text"], item["status"]) == ("Hel", "incomplete")
    [done] = [event["item"] for event in events_in(answer.raw) if event["type"] == "response.output_item.done"]
    assert done == item
    assert answer.raw.endswith("data: [DONE]\n\n")


@on("responses-whole")
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
async def test_what_cannot_be_done_is_a_clear_400(surface, body, param):
    answer = await surface.ask(body=body)
    assert (answer.status, answer.error["param"]) == (400, param)


@on("responses-whole")
async def test_tools_that_are_ignored_are_in_the_log(surface, logged):
    await surface.ask(turn("Hi"), **MINE, tools=[{"type": "mcp", "server_label": "x", "server_url": "http://x"}])
    [line] = [line for line in logged() if line["event"] == "request.completed"]
    assert line["tools_ignored"] == ["mcp"]


@on("responses-whole")
async def test_where_no_allowed_tool_is_available_a_demand_is_refused_and_an_offer_is_not(surface):
    choice = {"type": "allowed_tools", "tools": [{"type": "file_search"}]}
    async with surface.proxy(turn("Hi")) as client:
        refused = await client.ask(**MINE, body={"tool_choice": {**choice, "mode": "required"}})
        fine = await raw(client.url, {**ASK, "tools": [DOOR], "tool_choice": choice})
    assert (refused.status, refused.error["param"]) == (400, "tool_choice")
    assert "file_search" in refused.error["message"]
    assert (fine.status_code, fine.headers["x-tools-ignored"]) == (200, "file_search")
    assert "tools" not in surface.upstream.requests[0]


@on("responses-whole")
async def test_a_function_and_a_custom_tool_of_one_name_are_told_apart(surface):
    history = [
        {"role": "user", "content": "Hi"},
        {"type": "function_call", "call_id": "c", "name": "x", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "done"},
    ]
    both = {"functions": ["x"], "tools": [{"type": "custom", "name": "x"}]}
    await surface.ask(turn("Done"), **both, choice="x", body={"input": history})
    [call] = [m["tool_calls"][0] for m in surface.history() if m.get("tool_calls")]
    chosen = surface.upstream.requests[0]["tool_choice"]["function"]["name"]
    assert (chosen, call["function"]["name"]) == ("x", "x")


@on("responses-whole")
async def test_the_newest_definition_of_a_tool_counts_wherever_it_stands(surface):
    def adding(description):
        return {"type": "additional_tools", "role": "developer", "tools": [{**DOOR, "description": description}]}

    def shown():
        return [tool["function"]["description"] for tool in surface.upstream.requests[-1]["tools"]]

    said = {"role": "user", "content": "Hi"}
    async with surface.proxy(turn("Fine")) as client:
        first = await client.ask(server_tools="none", body={"tools": [], "input": [adding("v1"), said]})
        newer = {"server_tools": "none", "tools": [{**DOOR, "description": "v2"}]}
        second = await client.ask(**newer, **after(first))
        assert shown() == ["v2"]
        await client.ask(**newer, **after(second, input=[adding("v3"), said]))
        assert shown() == ["v3"]
        wrong = {"type": "additional_tools", "role": "developer", "tools": [{"type": "file_search"}]}
        fault = await client.ask(body={"input": [wrong, said]})
    assert (fault.status, fault.error["param"]) == (400, "input")
