"""Arguments that a model nests deeper than any parser reads are answered like broken ones, and reach a client as text."""

import orjson
import pytest

from tests.api.answer import Call
from tests.api.test_many_tools import proxy_with_260
from tests.fakes import turn

# What orjson writes, what Python's stack bears, what orjson reads, and far more.
DEPTHS = [150, 240, 600, 985, 1100, 100_000]


def nested(depth, brackets="[]"):
    opened, closed = brackets[0], brackets[-1]
    return '{"x":' + opened * depth + closed * depth + "}" if brackets == "[]" else '{"x":' * depth + "1" + "}" * depth


@pytest.mark.parametrize("brackets", ["[]", "{}"])
@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("name", ["web_search", "nobody_has_this"])
async def test_a_call_with_deeply_nested_arguments_is_answered_as_a_broken_one(surface, name, depth, brackets):
    answer = await surface.ask(
        turn(calls=[("c1", name, nested(depth, brackets))], size=4096), turn("Sorry."), search=True
    )
    assert (answer.status, answer.text) == (200, "Sorry.")
    [result] = surface.results()
    assert "error" in result
    [arguments] = [call["function"]["arguments"] for call in surface.history()[1]["tool_calls"]]
    assert isinstance(orjson.loads(arguments), dict)
    assert surface.upstream.searches == []


@pytest.mark.parametrize("depth", DEPTHS)
async def test_a_clients_own_call_with_deeply_nested_arguments_goes_to_it_as_text(surface, depth):
    given = nested(depth)
    answer = await surface.ask(
        turn(calls=[("c1", "open_door", given)], size=4096), functions=["open_door"], search=True
    )
    assert answer.status == 200
    [call] = answer.of(Call)
    if surface.kind == "messages" and depth > 200:
        assert orjson.loads(call.arguments) == {"INVALID_JSON": given}
    else:
        assert "".join(call.arguments.split()) == given


LEAKS = {
    "glm": "<tool_call>web_search<arg_key>x</arg_key><arg_value>{value}</arg_value></tool_call>",
    "glm-object": "<tool_call>web_search{object}</tool_call>",
    "hermes": '<tool_call>{{"name": "web_search", "arguments": {object}}}</tool_call>',
    "harmony": "<|channel|>commentary to=functions.web_search <|message|>{object}<|call|>",
    "bare": '{{"name": "web_search", "arguments": {object}}}',
}


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("syntax", LEAKS)
async def test_a_leaked_call_with_deeply_nested_arguments_is_answered_as_a_broken_one(surface, syntax, depth):
    depth = min(depth, 30_000)  # a longer text is no leak
    given = nested(depth)
    leak = LEAKS[syntax].format(object=given, value=given[5:-1])
    answer = await surface.ask(turn(leak, size=4096), turn("Sorry."), search=True)
    assert (answer.status, answer.text, len(surface.results())) == (200, "Sorry.", 1)
    if syntax != "glm" or depth <= 200:  # there a value that is no JSON is a text
        assert "error" in surface.results()[0]


@pytest.mark.parametrize("depth", DEPTHS)
async def test_find_tools_and_call_tool_with_deeply_nested_arguments_are_answered_as_broken_ones(surface, depth):
    calls = [
        ("c1", "find_tools", nested(depth)),
        ("c2", "call_tool", nested(depth)),
        ("c3", "call_tool", f'{{"name": "forge_create_issue", "arguments": {nested(depth)}}}'),
        ("c4", "call_tool", {"name": "forge_create_issue", "arguments": nested(depth)}),
    ]
    surface.upstream.replies = [turn(calls=calls, size=4096), turn("Sorry.")]
    async with proxy_with_260(surface.upstream) as url, surface.at(url) as client:
        answer = await client.ask()
    assert (answer.status, answer.text) == (200, "Sorry.")
    assert ["error" in result for result in surface.results()] == [True] * 4
