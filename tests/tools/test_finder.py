"""The search for tools by what they do."""

import pytest

from proxy.tools.finder import ToolIndex
from proxy.tools.registry import Registry
from proxy.tools.tool import Tool
from proxy.wire.chat import ToolSpec
from tests.fakes import FakeClock
from tests.tools.many import tasks, tools

MANY = [tool for group in tools().values() for tool in group]
INDEX = ToolIndex(MANY)
NAMES = {tool.name for tool in MANY}


def found_of(tasks_):
    found = [INDEX.best(task, NAMES, most=5) for task, _ in tasks_]
    return sum(any(one.endswith(name) for one in five) for five, (_, name) in zip(found, tasks_, strict=True))


def test_the_right_one_of_260_tools_is_among_five_for_tasks_that_share_a_word_stem_with_it():
    assert len(MANY) == 260
    assert len(tasks()["shared stem"]) == 100
    assert found_of(tasks()["shared stem"]) >= 95


def test_only_tools_among_the_given_ones_are_found():
    assert INDEX.best("open an issue", {"forge_lock_issue"}, most=5) == ["forge_lock_issue"]
    assert INDEX.best("open an issue", (), most=5) == []
    assert INDEX.best("zzz", NAMES, most=5) == []


@pytest.mark.parametrize(
    ("query", "texts"),
    [
        ("flight gates", {"description": "Gate of a flight."}),
        ("airline", {"name": "airline_info"}),
        ("airlines", {"name": "airlineInfo"}),
        ("airport", {"group": "airports"}),
        ("iata", {"aliases": ("iata.lookup",)}),
        ("departure", {"parameters": {"properties": {"departure": {}}}}),
        ("departure", {"parameters": {"properties": {"at": {"description": "Departures after it."}}}}),
        ("seat", {"parameters": {"properties": {"who": {"properties": {"seats": {"type": "array"}}}}}}),
        ("seat", {"parameters": {"properties": {"who": {"items": {"properties": {"seats": {}}}}}}}),
        ("航班查询", {"description": "查询航班"}),
    ],
)
def test_a_tool_is_found_by_its_name_texts_server_and_parameters(query, texts):
    fields = {"name": "it", "description": "", "parameters": {}, **texts}
    index = ToolIndex([ToolSpec("other", "Nothing of that.", {}), ToolSpec(**fields)])
    assert index.best(query, {"other", fields["name"]}, most=5) == [fields["name"]]


@pytest.mark.parametrize(
    "schema",
    [{"properties": []}, {"properties": {"a": 7, "b": {"description": []}}}, {"items": [1]}, {"properties": None}],
)
def test_an_odd_schema_is_no_hindrance(schema):
    assert ToolIndex([ToolSpec("it", "Odd.", schema)]).best("odd", {"it"}, most=5) == ["it"]


def test_of_a_long_tool_only_the_beginning_is_read():
    deep = {"properties": {"x": {}}}
    for _ in range(2000):
        deep = {"properties": {"deep": deep}}
    index = ToolIndex([ToolSpec("it", "word " * 10**5 + "end", deep), ToolSpec("other", "end", {})])
    assert index.best("end", {"it", "other"}, most=5) == ["other"]


async def test_the_index_is_made_when_tools_have_changed_and_not_for_each_search(monkeypatch):
    made = []
    monkeypatch.setattr("proxy.tools.registry.ToolIndex", lambda tools: made.append(1) or ToolIndex(tools))
    registry = Registry(MANY[:3], clock=FakeClock())
    for _ in range(3):
        assert await registry.find("issue", NAMES)
    assert len(made) == 1
    registry.put_group("office", [tool for tool in MANY if tool.group == "office"])
    assert "office_send_email" in await registry.find("send a mail", NAMES)
    assert len(made) == 2


@pytest.mark.parametrize("names", [{"name": "find_tools"}, {"name": "x", "aliases": ("call_tool",)}])
def test_no_tool_has_a_name_of_the_proxys_own(names):
    with pytest.raises(ValueError, match="one of the proxy's own"):
        Registry([Tool(description="", parameters={"type": "object"}, run=None, **names)], clock=FakeClock())
