"""260 tools over every surface: ten are described, and the model finds and calls the others."""

from contextlib import asynccontextmanager

import orjson
import pytest
from httpx import AsyncClient

from proxy.app import create_app
from proxy.app.configuration import parse
from proxy.loop.many_tools import nearest
from proxy.server.process import uvicorn_config
from proxy.wire.tokens import count_tokens
from tests.fakes import streamed, turn, whole
from tests.serving import CONFIG, serving, serving_of
from tests.tools.many import tools

ASKED = {"model": "m", "messages": [{"role": "user", "content": "Open an issue about the login page."}]}
FIND = ("1", "find_tools", {"query": "open an issue"})
CALL = ("2", "call_tool", {"name": "forge_create_issue", "arguments": {"owner": "acme"}})
OFFER = "offer: {{search_above: {above}}}\n"


@asynccontextmanager
async def proxy_with_260(upstream, *, above=10, more=""):
    """The proxy in front of the fake upstream, with 260 tools beside its `web_search`."""
    found = tools()
    async with serving(upstream, lifespan="off") as upstream_url:
        text = CONFIG.format(upstream=upstream_url, more=more) + OFFER.format(above=above)
        loaded = parse(text, {})
        app = create_app(loaded, tools=found.pop("http"))
        for server, of_server in found.items():
            app.current.registry.put_group(server, of_server)
        async with serving_of(uvicorn_config(loaded.config, app)) as url:
            yield url


def told(upstream, number=-1):
    """What the model was told by the results of tools, by the id of the call."""
    return {m["tool_call_id"]: m["content"] for m in upstream.requests[number]["messages"] if m["role"] == "tool"}


async def test_the_described_tokens_fall_by_nine_tenths_and_the_cached_prefix_of_a_turn_is_all_of_the_one_before(
    upstream, sdk
):
    described = [tool.definition() for group in tools().values() for tool in group]
    upstream.restart(
        [
            whole(calls=[FIND]),
            whole(calls=[CALL]),
            whole(calls=[("3", "office_list_tasks", {"list_id": "7"})]),
            whole("Done"),
        ]
    )
    async with proxy_with_260(upstream) as url, sdk(url) as client:
        answer = await client.chat.completions.create(**ASKED)
    first, *later = upstream.requests
    assert [len(described), len(first["tools"])] == [260, 12]
    before, now = (count_tokens({"messages": [], "tools": one}) for one in (described, first["tools"]))
    assert now < before / 10
    for one, following in zip(upstream.requests, later, strict=False):
        assert following["tools"] == one["tools"]
        assert following["messages"][: len(one["messages"])] == one["messages"]
    names = [tool["function"]["name"] for tool in first["tools"]]
    assert names[0] == "web_search"
    assert names[-2:] == ["find_tools", "call_tool"]
    results = told(upstream)
    schema = next(t["function"] for t in described if t["function"]["name"] == "forge_create_issue")
    written = f"{schema['description']}\nArguments: {orjson.dumps(schema['parameters']).decode()}"
    assert f"\nforge_create_issue\n{written}" in results["1"]
    assert 'forge_create_issue ran with {"owner":"acme"}' in results["2"]
    assert 'office_list_tasks ran with {"list_id":"7"}' in results["3"]
    use = answer.usage.server_tool_use
    assert use == {
        "forge_create_issue": 1,
        "office_list_tasks": 1,
        "turns": 4,
        "tool_calls": 2,
        "web_search_requests": 0,
    }


async def test_a_search_for_tools_is_seen_in_progress_events_and_debug_only(upstream, sdk):
    events = {"x-tool-events": "true"}
    async with proxy_with_260(upstream) as url, sdk(url) as client, AsyncClient(base_url=url) as http:
        for replies in (
            [whole(calls=[FIND]), whole(calls=[CALL]), whole("Done")],
            [streamed(calls=[FIND]), streamed(calls=[CALL]), streamed("Done")],
        ):
            upstream.restart(replies)
            plain = await client.chat.completions.with_raw_response.create(**ASKED)
            assert plain.headers["x-tool-calls"] == "1"
            assert b"find_tools" not in plain.content
            upstream.restart(replies)
            seen = (await client.chat.completions.create(**ASKED, extra_headers=events)).tool_events
            named = [(one["type"], one["tool"]) for one in seen if "tool" in one]
            assert named == [
                ("tool.started", "find_tools"),
                ("tool.completed", "find_tools"),
                ("tool.started", "forge_create_issue"),
                ("tool.completed", "forge_create_issue"),
            ]
            assert seen[4 if seen[3]["type"] == "turn.started" else 3]
        metrics = (await http.get("/metrics")).text
        assert 'toolproxy_tool_searches_total{outcome="found"} 4.0' in metrics
        assert 'tool="forge_create_issue"' in metrics
        assert 'tool="find_tools"' not in metrics
        assert 'tool="call_tool"' not in metrics
        record = await http.get(
            f"/debug/requests/{plain.headers['x-request-id']}", headers={"accept": "application/json"}
        )
        assert "find_tools" in record.text
        assert "forge_create_issue" in record.text


async def test_debug_shows_what_find_tools_was_asked_and_what_it_found(surface):
    surface.upstream.replies = [turn(calls=[FIND]), turn("Done")]
    async with (
        proxy_with_260(surface.upstream, more="\ntelemetry: {log_content: true}") as url,
        surface.at(url) as client,
        AsyncClient(base_url=url) as http,
    ):
        answer = await client.ask()
        place = f"/debug/requests/{answer.headers['x-request-id']}"
        page, record = await http.get(place), (await http.get(f"{place}?format=json")).json()
    [note] = [one for one in record["notes"] if one["event"] == "tools.searched"]
    assert note["query"] == "open an issue"
    assert "forge_create_issue" in note["found"]
    assert "open an issue" in page.text
    assert note["found"] in page.text


async def test_the_nearest_names_are_looked_for_three_times_a_turn_however_many_names_are_wrong(surface, monkeypatch):
    looked = []

    def counting(text, names):
        looked.append(text)
        return nearest(text, names)

    monkeypatch.setattr("proxy.loop.many_tools.nearest", counting)
    wrong = [(f"w{at}", "call_tool", {"name": f"forge_wrong_{at}", "arguments": {}}) for at in range(120)]
    surface.upstream.replies = [turn(calls=wrong), turn("Done")]
    async with proxy_with_260(surface.upstream) as url, surface.at(url) as client:
        assert (await client.ask()).text == "Done"
    assert looked == ["forge_wrong_0", "forge_wrong_1", "forge_wrong_2"]
    assert ["nearest names" in one for one in surface.results()] == [True] * 3 + [False] * 117


@pytest.mark.parametrize(("own", "described"), [(0, 128), (100, 28), (127, 1), (128, 0), (200, 0)])
async def test_no_more_server_tools_are_described_than_make_128_with_the_clients_own(surface, own, described, logged):
    mine = ["find_tools", *(f"mine_{number}" for number in range(own - 1))][:own]
    async with proxy_with_260(surface.upstream, above="null") as url, surface.at(url) as client:
        surface.upstream.replies = [turn("Done")]
        await client.ask(functions=mine)
    [request] = surface.upstream.requests
    names = [tool["function"]["name"] for tool in request.get("tools", ())]
    assert [sorted(names[:own]), len(names)] == [sorted(mine), own + described]
    assert ["web_search"][:described] == names[own : own + 1]
    line = next(line for line in logged() if line["event"] == "request.completed")
    assert line["tools_not_described"] == 261 - described


@pytest.mark.parametrize(("own", "described"), [(100, 12), (118, 10), (127, 0)])
async def test_of_many_tools_those_that_find_the_others_are_described_before_all_others(surface, own, described):
    mine = [f"mine_{number}" for number in range(own)]
    async with proxy_with_260(surface.upstream) as url, surface.at(url) as client:
        surface.upstream.replies = [turn("Done")]
        await client.ask(functions=mine)
    names = [tool["function"]["name"] for tool in surface.upstream.requests[0]["tools"]][own:]
    assert len(names) == described
    assert names[-2:] == ["find_tools", "call_tool"][:described]


@pytest.mark.parametrize(("events", "shown"), [(None, []), ("true", ["find_tools", "forge_create_issue"])])
async def test_a_search_for_tools_is_shown_to_those_who_ask(surface, events, shown):
    surface.upstream.replies = [turn(calls=[FIND]), turn(calls=[CALL]), turn("Done")]
    async with proxy_with_260(surface.upstream) as url, surface.at(url) as client:
        answer = await client.ask(events=events)
    assert ([one.name for one in answer.server_calls], answer.text) == (shown, "Done")


async def test_a_wrong_name_is_told_the_nearest_and_wrong_arguments_the_schema(upstream, sdk):
    wrong = [
        ("1", "call_tool", {"name": "forge_creat_issue", "arguments": {}}),
        ("2", "call_tool", {"name": "forge_create_issue", "arguments": {"owner": 7}}),
        ("3", "find_tools", {"query": "qqqq"}),
        ("4", "find_tools", {}),
        ("5", "forge_create_issue", {"owner": ["x"]}),
    ]
    upstream.replies = [whole(calls=wrong), whole("Done")]
    async with proxy_with_260(upstream) as url, sdk(url) as client:
        answer = await client.chat.completions.create(**ASKED)
    results = told(upstream)
    assert "The nearest names: forge_create_issue, " in results["1"]
    for one in "25":
        assert (
            '"parameters":{"type":"object","properties":{"owner":{"type":"string","description":"owner of the'
            in results[one]
        )
    assert results["3"].startswith("No tool fits. Search with other words")
    assert '{\\"query\\": words' in results["4"]
    assert answer.usage.server_tool_use["tool_calls"] == 2


async def test_call_tool_leaked_into_the_text_is_read_as_a_call(upstream, sdk):
    leak = '<tool_call>call_tool<arg_key>name</arg_key><arg_value>forge_create_issue</arg_value><arg_key>arguments</arg_key><arg_value>{"owner":"acme"}</arg_value></tool_call>'
    upstream.replies = [whole(leak), whole("Done")]
    async with proxy_with_260(upstream) as url, sdk(url) as client:
        answer = await client.chat.completions.create(**ASKED)
    assert answer.choices[0].message.content == "Done"
    assert answer.usage.server_tool_use["forge_create_issue"] == 1


async def test_limits_of_a_tool_hold_for_calls_by_call_tool(upstream, sdk):
    searches = [(str(n), "call_tool", {"name": "web_search", "arguments": {"query": f"q{n}"}}) for n in range(3)]
    upstream.replies = [whole(calls=searches), whole("Done")]
    limited = "limits: {max_tool_calls: 2}\n"
    async with proxy_with_260(upstream, more=limited) as url, sdk(url) as client:
        answer = await client.chat.completions.with_raw_response.create(**ASKED)
    assert answer.headers["x-tool-stop"] == "max_tool_calls"
    assert orjson.loads(answer.content)["usage"]["server_tool_use"]["web_search_requests"] == 2
    assert {search["q"] for search in upstream.searches} == {"q0", "q1"}
