"""Searches and other tools of the server's on every API: what the model is told, and what a client sees of it."""

import asyncio

import orjson
import pytest

from proxy.tools.tool import Tool
from tests.api.answer import ServerCall
from tests.api.surfaces import DOOR, EACH, ITEMS_OR_BLOCKS, SEARCH, on
from tests.fakes import Reply, turn

ANOTHER = ("u3", "web_search", {"query": "weather"})
NEWS = ServerCall("web_search", {"query": "news"}, pages=("https://a.example/",))


async def test_a_question_that_needs_a_search_is_one_answer(surface):
    answer = await surface.ask(turn("Searching.", calls=[SEARCH]), turn("Much is new."), search=True)
    assert (answer.text, answer.finish, answer.calls) == ("Much is new.", "stop", [])
    assert (answer.tokens, answer.searches) == ((20, 2), 1)
    assert surface.upstream.searches == [{"q": "news", "num": 5}]
    if answer.kind == "chat":
        assert answer.texts == [["Much is new."], ["Searching.\n\nMuch is new."]][surface.streaming]
        assert answer.whole["usage"]["server_tool_use"] == {
            "turns": 2, "tool_calls": 1, "web_search_requests": 1, "web_search": 1,
        }  # fmt: skip
    else:
        assert answer.kinds == ["text", "servercall", "text"]
    if not surface.streaming:
        counts = {name: answer.headers[name] for name in ("x-tool-turns", "x-tool-calls", "x-tool-stop")}
        assert counts == {"x-tool-turns": "2", "x-tool-calls": "1", "x-tool-stop": "answer"}


async def test_the_model_reads_its_turn_as_it_wrote_it_and_then_the_results(surface):
    first = turn("I'll search.", calls=[SEARCH, ANOTHER], thoughts="Hm", vendor=[1], number=2)
    await surface.ask(first, turn("Done"), search=True)
    _, assistant, *results = surface.history()
    calls = [
        (call["id"], call["function"]["name"], orjson.loads(call["function"]["arguments"]))
        for call in assistant.pop("tool_calls")
    ]
    assert assistant == {
        "role": "assistant",
        "content": "I'll search.",
        "reasoning_content": "Hm",
        "vendor": [1],
        "number": 2,
    }
    assert calls == [SEARCH, ANOTHER]
    assert [(message["role"], message["tool_call_id"]) for message in results] == [("tool", "u1"), ("tool", "u3")]
    assert "https://a.example/" in results[0]["content"]


@pytest.mark.parametrize("events", [None, "results"])
async def test_a_search_that_only_the_server_offers_is_hidden_but_from_those_who_ask_for_events(surface, events):
    answer = await surface.ask(turn(calls=[SEARCH]), turn("Done."), events=events)
    assert [one.name for one in answer.server_calls] == ["web_search"] * bool(events)
    assert answer.text == "Done."
    if events:
        assert [one.arguments for one in answer.server_calls] == [{"query": "news"}]
    else:
        assert not any(word in answer.raw for word in ("news", '"tool_calls":[', "tool_event", "turn.started"))


async def test_a_declared_search_is_shown_with_its_pages(surface):
    sources = {"include": ["web_search_call.action.sources"]} if surface.kind == "responses" else {}
    answer = await surface.ask(turn(calls=[SEARCH]), turn("Done."), search=True, events="results", body=sources)
    assert answer.server_calls == [NEWS]


@EACH
@pytest.mark.parametrize(
    "arguments", ['{"search_query":"cats"}', '"{\\"query\\":\\"cats\\"}"', "{'query': 'cats'}", '{"query":"cats"']
)
async def test_a_search_is_run_and_shown_with_its_query_however_the_model_has_written_it(surface, arguments):
    answer = await surface.ask(turn(calls=[("u1", "web_search", arguments)]), turn("Done"), search=True)
    assert [one["q"] for one in surface.upstream.searches] == ["cats"]
    if answer.kind != "chat":
        assert [[*one.arguments.values()] for one in answer.server_calls] == [["cats"]]
    assert answer.whole["model"] == ("m" if answer.kind == "messages" else "the-upstream-model")


async def test_a_search_that_fails_is_told_and_the_model_answers(surface):
    surface.upstream.search = Reply([b"{}"], status=403)
    answer = await surface.ask(turn(calls=[SEARCH]), turn("Without."), search=True, events="true")
    assert answer.text == "Without."
    assert answer.server_calls == [ServerCall("web_search", {"query": "news"}, failed=True)]
    assert answer.searches == (0 if answer.kind == "messages" else 1)


@on("chat-whole")
@pytest.mark.parametrize(
    ("search", "told"),
    [
        (Reply([b'{"message":"Unauthorized.","statusCode":403}'], status=403), "its key was refused"),
        (Reply([b'{"message":"Not enough credits"}'], status=400), "credit is used up"),
        (Reply([b"{}"], status=429), "busy"),
        (Reply([b"<html>"]), "does not work"),
        (Reply([b'{"organic":', None]), "could not be reached"),
    ],
)
async def test_why_a_search_has_failed_is_told_to_the_model_without_secrets(surface, search, told):
    surface.upstream.search = search
    answer = await surface.ask(turn(calls=[SEARCH]), turn("Without searching: ..."))
    assert answer.text == "Without searching: ..."
    assert told in orjson.loads(surface.results()[0])["error"]
    assert "serper-secret" not in str(surface.upstream.requests)


@EACH
@pytest.mark.parametrize("arguments", ["{broken", "[]", "{}", '{"query": 7}'])
async def test_arguments_that_do_not_fit_are_never_run(surface, arguments):
    answer = await surface.ask(turn(calls=[("c", "web_search", arguments)]), turn("Done"), search=True, events="true")
    assert [one.failed for one in answer.server_calls] == [True]
    assert "arguments" in orjson.loads(surface.results()[0])["error"]
    assert surface.upstream.searches == []


async def test_several_searches_of_one_turn_run_at_the_same_time(surface):
    both = asyncio.Event()

    def search(_):
        if len(surface.upstream.searches) == 2:
            both.set()
        return Reply([both, b"{}"])  # no search is answered before the other has been asked

    surface.upstream.search = search
    assert (await surface.ask(turn(calls=[SEARCH, ANOTHER]), turn("Done"))).text == "Done"


async def test_another_server_tool_stays_hidden(surface):
    async def look_up(_):
        return "found"

    tool = Tool(name="look_up", description="", parameters={"type": "object"}, run=look_up)
    replies = turn(calls=[("a", "look_up", {})]), turn("{}")  # which might be the arguments of a call
    answer = await surface.ask(*replies, search=True, server=[tool])
    assert (answer.kinds, answer.texts) == (["text"], ["{}"])


async def test_a_search_may_be_forced_and_is_so_once(surface):
    forced = {"type": "function", "function": {"name": "web_search"}}
    await surface.ask(turn(calls=[SEARCH]), turn("Done"), search=True, functions=["open_door"], choice="web_search")
    assert [request["tool_choice"] for request in surface.upstream.requests] == [forced, "auto"]


@pytest.mark.parametrize("most", [0, 1])
async def test_max_tool_calls_lowers_the_limit(surface, most):
    replies = [turn(calls=[SEARCH, ANOTHER])] * most + [turn("Done.")]
    answer = await surface.ask(*replies, search=True, functions=["open_door"], body={"max_tool_calls": most})
    assert (answer.text, len(surface.upstream.searches)) == ("Done.", most)
    assert not any("max_tool_calls" in request for request in surface.upstream.requests)


async def test_the_clients_own_calls_reach_it(surface):
    answer = await surface.ask(turn(calls=[DOOR]), functions=["open_door"])
    assert (answer.calls, answer.finish) == ([("open_door", '{"id":1}')], "tool_calls")
    assert surface.upstream.searches == []


@ITEMS_OR_BLOCKS
async def test_a_client_that_may_not_search_is_refused_or_goes_without(surface):
    more = "clients: [{name: app, key: k, tools: []}]"
    async with surface.proxy(turn("Done"), more=more) as client:
        alone = await client.ask(search=True, key="k")
        beside = await client.ask(search=True, functions=["open_door"], key="k")
    assert (alone.status, beside.status) == (400, 200)
    assert "web_search" in alone.error["message"]
    assert beside.headers["x-tools-ignored"].startswith("web_search")
    assert [tool["function"]["name"] for tool in surface.upstream.requests[0]["tools"]] == ["open_door"]


@pytest.mark.parametrize("name", ["web_search", "webSearch"])
async def test_a_function_named_like_a_server_tool_is_the_servers_and_hidden(surface, name):
    answer = await surface.ask(turn(calls=[("u1", name, {"query": "x"})]), turn("Done."), functions=[name])
    assert (answer.kinds, len(surface.upstream.searches)) == (["text"], 1)
