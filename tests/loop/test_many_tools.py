"""Many tools: which are described, and what a run makes of calls of `find_tools` and `call_tool`."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.loop.actions import Stop
from proxy.loop.many_tools import MOST_SEARCHES, found, nearest, query_of, ranked, with_schema
from proxy.loop.offer import ToolSelection, make_offer
from proxy.loop.results import InvalidArguments, ToolResult, failure
from proxy.wire.chat import ToolSpec
from tests.playbook import Playbook, asks, call, calls, responds, results, run_of, runs, says, told

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FILE = [ToolSpec(name, f"Does {name}.", CITY) for name in ("weather", "route", "hotel")]
FORGE = [ToolSpec(f"forge_{name}", f"Does {name}.", CITY, group="forge") for name in ("merge", "close", "open")]
ALL = [*FORGE, *FILE]
NAMES = {tool.name for tool in ALL}
FUNCTION = {"type": "object"}


def names_in(offer):
    return [tool["function"]["name"] for tool in offer.tools]


def declared(name):
    return {"type": "function", "function": {"name": name, "parameters": FUNCTION}}


def offer(request=None, *, tools=ALL, above=2, **selection):
    selected = {key: frozenset(value) if key == "names" else value for key, value in selection.items()}
    return make_offer(request or {}, tools, ToolSelection(**selected), search_above=above)


@pytest.mark.parametrize(
    ("made", "described"),
    [
        (offer(above=6), list(NAMES)),
        (offer(above=None), list(NAMES)),
        (offer(above=5), ["weather", "route", "hotel", "find_tools", "call_tool"]),
        (offer(), ["weather", "route", "find_tools", "call_tool"]),
        (offer(tools=FORGE), ["find_tools", "call_tool"]),
        (offer({"tools": [declared("forge_open")]}), ["forge_open", "weather", "route", "find_tools", "call_tool"]),
        (offer({"tools": [declared("mine")]}), ["mine", "weather", "route", "find_tools", "call_tool"]),
        (offer({"tools": [declared("find_tools")]}), ["find_tools", *NAMES]),
        (offer({"tools": [declared("call_tool")]}), ["call_tool", *NAMES]),
        (offer(names=["all"]), ["weather", "route", "find_tools", "call_tool"]),
        (offer(names=["forge", "forge_open"]), ["forge_open", "find_tools", "call_tool"]),
        (offer(names=[*NAMES]), list(NAMES)),
        (offer({"tool_choice": {"type": "function", "function": {"name": "forge_open"}}}), ["forge_open"]),
    ],
)
def test_of_many_tools_the_first_of_the_file_and_those_that_a_request_names_are_described(made, described):
    assert sorted(names_in(made)) == sorted(described)
    assert made.offered


def test_the_two_tools_stand_at_the_end_and_list_each_server_on_a_line_in_a_fixed_order():
    tools = [*ALL, ToolSpec("shop_buy", "", CITY, group="shop")]
    made, other = offer(tools=tools), offer(tools=tools[::-1])
    assert names_in(made)[-2:] == ["find_tools", "call_tool"]
    lines = made.tools[-2]["function"]["description"].splitlines()[1:]
    assert lines == ["- others: hotel", "- forge: forge_close, forge_merge, forge_open", "- shop: shop_buy"]
    assert other.tools[-2]["function"]["description"].splitlines()[2:] == lines[1:]


def test_the_lines_of_many_servers_are_short():
    many = [ToolSpec(f"s{at}_tool_{number}", "", CITY, group=f"s{at}") for at in range(30) for number in range(50)]
    text = offer(tools=many).tools[-2]["function"]["description"]
    assert len(text) < 3200
    assert "- s29: s29_tool_0, s29_tool_1, s29_tool_10, s29_tool_11, s29_tool_12 and 45 more" in text


def many(**limits):
    return run_of(tools=ALL, search_above=2, **limits)


def find(query, id="f1"):  # noqa: A002
    return call("find_tools", orjson.dumps({"query": query}).decode(), id)


def use(name, arguments='{"city":"Bonn"}', id="u1"):  # noqa: A002
    return call("call_tool", f'{{"name":"{name}","arguments":{arguments}}}', id)


@pytest.mark.parametrize(
    "written",
    [
        '{"name":"forge_open","arguments":{"city":"Bonn"}}',
        '{"arguments": {"city":"Bonn"}, "name": " forge_open "}',
        '{"name":"forge_open","arguments":"{\\"city\\":\\"Bonn\\"}"}',
        '{"name":"forge_open","city":"Bonn"}',
    ],
)
def test_a_call_by_call_tool_is_that_tools_call_in_every_respect(written):
    play = Playbook(many(max_tool_calls=2)) << asks() >> calls(call("call_tool", written)) << runs("forge_open")
    assert play.pending.calls[0].arguments == '{"city":"Bonn"}'
    play >> results("opened") << told("opened") >> calls(call("forge_open", '{"city": "Bonn"}'))
    play << told("was made before") >> says("Done") << responds("Done", stop=Stop.ANSWER)
    usage = play.run.tally.as_usage()["server_tool_use"]
    assert usage == {"forge_open": 1, "turns": 3, "tool_calls": 1, "web_search_requests": 0}


def test_a_tool_that_is_not_described_runs_by_its_own_name_too():
    play = Playbook(many()) << asks() >> calls(call("forge_open", '{"city":"Bonn"}')) << runs("forge_open")
    assert play.run.tally.tool_calls == {"forge_open": 1}


@pytest.mark.parametrize("by", [use, call])
def test_a_call_of_no_tool_is_told_the_nearest_names(by):
    play = (
        Playbook(many()) << asks() >> calls(by("forge_opne")) << told("no tool named 'forge_opne'. The nearest names: ")
    )
    assert "forge_open, " in play.pending.body["messages"][-1]["content"]


@pytest.mark.parametrize("written", ["", "{}", '{"name":7}', '{"arguments":{}}', "[]", '{"name":"\ud800"', '"forge"'])
def test_call_tool_without_a_name_says_what_it_takes(written):
    Playbook(many()) << asks() >> calls(call("call_tool", written)) << told('The arguments must be {\\"name\\"')


def test_call_tool_calls_neither_itself_nor_a_function_of_the_clients():
    run = run_of({"tools": [declared("mine")]}, tools=ALL, search_above=2)
    Playbook(run) << asks() >> calls(use("call_tool"), use("mine", id="u2")) << told("no tool named", "no tool named")


def test_find_tools_may_be_called_by_call_tool():
    play = Playbook(many()) << asks() >> calls(use("find_tools", '{"query":"weather"}')) << runs("find_tools")
    assert play.run.sought(play.pending.calls[0]) == ("weather", play.run._offer.searchable)  # noqa: SLF001


def test_arguments_that_do_not_fit_are_answered_with_the_schema_byte_for_byte():
    refused = ToolResult('{"error":"They do not fit."}', failed=True, outcome=InvalidArguments.outcome)
    play = Playbook(many()) << asks() >> calls(use("forge_open", "{}")) << runs("forge_open") >> [refused]
    play << told('{"error":"They do not fit.","parameters":' + orjson.dumps(CITY).decode() + "}")
    play = Playbook(run_of(tools=ALL)) << asks() >> calls(call("forge_open", "{}")) << runs("forge_open") >> [refused]
    play << told('{"error":"They do not fit."}')


def test_a_search_for_tools_counts_as_no_call_and_no_repetition_but_uses_turns():
    play = Playbook(many(max_tool_calls=1, max_turns=4))
    for _ in range(2):
        play << asks() >> calls(find("weather")) << runs("find_tools") >> results("tools")
    play << told("tools") >> calls(find("weather")) << runs("find_tools") >> results("tools")
    play << asks("user", *("assistant", "tool") * 3, step="notice") >> says("Done") << responds(stop=Stop.MAX_TURNS)
    assert play.run.tally.as_usage()["server_tool_use"] == {"turns": 4, "tool_calls": 0, "web_search_requests": 0}


def test_tools_are_searched_at_most_eight_times():
    wanted = [find(f"tool {number}", f"f{number}") for number in range(MOST_SEARCHES + 1)]
    play = Playbook(many(max_turns=9)) << asks() >> calls(*wanted[:5]) << runs(*["find_tools"] * 5)
    play >> results(*"abcde") << asks() >> calls(*wanted[5:], use("weather")) << runs(*["find_tools"] * 3, "weather")
    play >> results(*"fgh", "sunny") << told("f", "g", "h", "budget of this request is used up", "sunny")


def test_no_tools_are_searched_that_could_not_be_called_any_more():
    play = Playbook(many(max_tool_calls=1)) << asks() >> calls(use("weather"), find("x")) << runs("weather")
    play >> results("sunny") << told("sunny", "was not run") << asks(step="notice")


@pytest.mark.parametrize(
    ("written", "query"),
    [('{"query":" mail "}', "mail"), ('{"query":"a","n":1}', "a"), (f'{{"query":"{"x" * 2000}"}}', "x" * 1000)],
)
def test_the_query_of_a_search_for_tools(written, query):
    assert query_of(written) == query


@pytest.mark.parametrize("written", [None, "", "{}", '{"query":""}', '{"query":["a"]}', "[1]", '{"query":"\ud800"}'])
def test_a_search_for_tools_without_a_query_is_refused(written):
    with pytest.raises(InvalidArguments, match="must be"):
        query_of(written)


TOOLS = {tool.name: tool for tool in ALL}


def test_what_is_found_has_descriptions_and_schemas_byte_for_byte():
    tool = ToolSpec("odd", "Two\nlines, “quoted”.", {"type": "object", "properties": {"z": {}, "a": {"minimum": 1.0}}})
    text = found("q", ["odd", "weather"], {**TOOLS, "odd": tool}, most_bytes=65536)
    written = orjson.dumps(tool.definition()["function"]["parameters"]).decode()
    assert f"\n\nodd\nTwo\nlines, “quoted”.\nArguments: {written}\n\nweather\n" in text


def test_what_has_no_room_is_named_only_and_no_schema_is_cut():
    names = list(TOOLS)
    text = found("q", names, TOOLS, most_bytes=400)
    assert len(text.encode()) < 600
    assert text.count(orjson.dumps(CITY).decode()) == 2
    assert text.endswith(f"alone: {', '.join(names[2:])}.")
    assert found("q", ["route"], TOOLS, most_bytes=50).endswith(
        "\nroute\nDoes route.\nArguments: (The schema is too long to be shown.)"
    )


def test_an_exact_name_comes_first_and_where_nothing_fits_the_nearest_are_named():
    assert ranked("use `hotel`, route", ["weather", "route"], TOOLS) == ["hotel", "route", "weather"]
    assert ranked("x", [*TOOLS], TOOLS) == [*TOOLS][:5]
    assert "nearest names: hotel, " in found("hotels", [], TOOLS, most_bytes=500)


def test_the_nearest_names_are_those_with_the_most_letters_in_common():
    assert nearest("issue_create", ["merge", "create_issue", "create_issues", "list"])[:2] == [
        "create_issue",
        "create_issues",
    ]
    assert nearest("x" * 10**6, ["a", "b"]) == ["a", "b"]
    assert nearest("", []) == []


@given(st.data())
def test_what_can_be_found_named_and_called_is_what_would_have_been_described(data):
    usable = data.draw(st.lists(st.sampled_from(ALL), unique_by=lambda tool: tool.name))
    modes = {tool.name: data.draw(st.sampled_from(["always", "declared", "on_request", "never"])) for tool in usable}
    tools = [ToolSpec(tool.name, "", CITY, offer=modes[tool.name], group=tool.group) for tool in usable]
    chosen = data.draw(st.one_of(st.none(), st.sets(st.sampled_from([*NAMES, "all"]))))
    own = [declared(name) for name in data.draw(st.sets(st.sampled_from([*NAMES, "mine"]), max_size=2))]
    request = {"tools": own} if own else {}
    selection = {"names": chosen} if chosen is not None else {"on_request": data.draw(st.booleans())}
    everything = offer(request, tools=tools, above=None, **selection)
    made = offer(request, tools=tools, above=data.draw(st.integers(1, 6)), **selection)
    assert {*made.server_tools} - {"find_tools", "call_tool"} == {*everything.server_tools}
    assert made.client_tools == everything.client_tools
    if made.searchable:
        assert {*made.searchable} == {tool.name for tool in everything.server_tools.values()}
        assert {*names_in(made)} - {"find_tools", "call_tool"} <= {*names_in(everything)}
    else:
        assert names_in(made) == names_in(everything)


def test_only_the_first_wrong_names_of_a_turn_are_told_the_nearest():
    wrong = [use(f"wrong_{number}", id=f"w{number}") for number in range(20)]
    play = Playbook(many()) << asks() >> calls(*wrong) << asks()
    answers = [message["content"] for message in play.pending.body["messages"] if message["role"] == "tool"]
    assert ["nearest names" in answer for answer in answers] == [True] * 3 + [False] * 17


def test_a_schema_is_told_beside_wrong_arguments_if_there_is_room_for_it():
    result = failure("'city' is missing.", outcome="invalid_arguments")
    told = with_schema(result, FILE[0], most_bytes=500)
    assert orjson.loads(told.content) == {**orjson.loads(result.content), "parameters": CITY}
    assert with_schema(result, FILE[0], most_bytes=20) == result
