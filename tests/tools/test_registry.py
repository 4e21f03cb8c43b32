import asyncio

import pytest

from proxy.core.chat import ToolCall, ToolSpec
from proxy.core.errors import InvalidArguments, ToolError, ToolTimeout
from proxy.tools.registry import Registry, Tool, parse_arguments

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def tool(run=None, *, name="t", parameters=SCHEMA, **fields):
    async def echo(arguments):
        return str(arguments)

    return Tool(spec=ToolSpec(name=name, description="", parameters=parameters), run=run or echo, **fields)


async def execute(registry, arguments='{"n":1}', name="t", patience=5):
    return (await registry.execute(ToolCall("id", name, arguments), patience=patience)).text


async def test_a_call_runs_the_tool_of_its_name_with_its_arguments():
    assert await execute(Registry([tool()])) == "{'n': 1}"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ("{broken", "not valid JSON"),
        ('{"n":1}{"n":2}', "not valid JSON"),
        ("[1]", "one JSON object"),
        ("null", "one JSON object"),
        ("{}", '"n" is a required property'),
        ('{"n":"one"}', "n: "),
        ("[" * 2000, "not valid JSON"),
    ],
)
async def test_arguments_that_do_not_fit_are_told_and_nothing_is_run(arguments, why):
    async def never(_):
        raise AssertionError

    with pytest.raises(InvalidArguments, match=why):
        await execute(Registry([tool(never)]), arguments)


def test_no_arguments_at_all_are_an_empty_object():
    assert parse_arguments(" ") == {}


async def test_a_tools_own_repair_comes_before_the_check():
    registry = Registry([tool(repair=lambda arguments: {"n": int(arguments["n"])})])
    assert await execute(registry, '{"n":"7"}') == "{'n': 7}"


async def test_a_name_that_is_not_on_the_whitelist_is_never_run():
    with pytest.raises(ToolError, match="no tool named 'rm'"):
        await execute(Registry([tool()]), name="rm")


@pytest.mark.parametrize(("own", "patience"), [(None, 0.01), (0.01, 60)])
async def test_a_tool_that_hangs_is_stopped_after_its_own_timeout_or_the_requests(own, patience):
    async def hang(_):
        await asyncio.Event().wait()

    with pytest.raises(ToolTimeout, match=r"0\.01 seconds"):
        await execute(Registry([tool(hang, timeout=own)]), patience=patience)


async def broken(_):
    raise ToolError("its key was refused")


async def test_when_a_tool_fails_its_fallback_is_tried_with_the_same_arguments():
    heard = []
    tools = [tool(broken, fallback="other"), tool(name="other")]
    registry = Registry(tools, observe=lambda event, /, **fields: heard.append((event, fields["to"])))
    assert await execute(registry) == "{'n': 1}"
    assert heard == [("tool.fell_back", "other")]


async def test_a_fallback_is_not_tried_for_arguments_that_do_not_fit_and_has_none_of_its_own():
    registry = Registry([tool(broken, fallback="other"), tool(broken, name="other", fallback="t")])
    with pytest.raises(InvalidArguments):
        await execute(registry, "{}")
    with pytest.raises(ToolError, match="key was refused"):
        await execute(registry)


def test_two_tools_of_one_name_are_refused():
    with pytest.raises(ValueError, match="two tools named 't'"):
        Registry([tool(), tool()])


def test_a_schema_that_refers_to_another_server_is_refused_without_asking_it():
    with pytest.raises(Exception, match="remote references are not followed"):
        Registry([tool(parameters={"$ref": "http://127.0.0.1:1/schema.json"})])
