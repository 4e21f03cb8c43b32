"""Python functions as tools: from their hints, from the configuration, from installed distributions."""

import asyncio
import contextvars
import functools
import sys
import threading
from dataclasses import dataclass, field
from datetime import date
from enum import Enum
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import orjson
import pytest

from proxy import Tool, ToolError, ToolOutput, ToolUnavailable
from proxy.app import create_app, origins_of, tool_client
from proxy.app.configuration import parse
from proxy.config.loaded import Loaded
from proxy.config.model import Config
from proxy.loop.call_context import CallContext
from proxy.loop.results import InvalidArguments, ToolTimeout
from proxy.tools import catalog
from proxy.tools.kinds.python import python_tool, unused_entry_points
from proxy.tools.python.function import MOST_THREADS
from proxy.tools.registry import Registry
from proxy.tools.schema import schema_of
from proxy.tools.tool_type import Resources
from proxy.wire.chat import ToolCall
from proxy.wire.errors import ConfigurationError
from tests.fakes import FakeClock, FakeUpstream, streamed
from tests.serving import proxy_of


class Size(Enum):
    SMALL = "small"
    LARGE = "large"


@dataclass
class Point:
    """A place on the map."""

    x: int
    y: int = 0


@dataclass
class Route:
    start: Point
    unit: str = field(default="km", init=False)
    ends: int = field(init=False)
    _secret: str = "s"


@dataclass
class Circle:
    radius: int

    def __post_init__(self):
        self.diameter = 2 * self.radius
        self._drawn = False


class Options(TypedDict, total=False):
    deep: bool


@dataclass
class Tree:
    """A tree."""

    children: "list[Tree]"


async def execute(tool, default_timeout=5, **arguments):
    registry = Registry([tool], clock=FakeClock())
    asked = ToolCall("id", tool.name, orjson.dumps(arguments).decode())
    return (await registry.execute(asked, CallContext("me", default_timeout=default_timeout))).text


def brew(
    city: str,
    count: int,
    share: Annotated[float, "how much of it"] = 0.5,
    *,
    strong: bool = False,
    tags: list[str] = ["a"],  # noqa: B006 - a default that cannot be hashed
    extra: dict[str, Any] | None = None,
    kind: Literal["tea", "coffee"] = "tea",
    size: Size = Size.SMALL,
    at: Point | None = None,
    options: Options | None = None,
    on: date | None = None,
    anything=object,
    **others,
):
    """Brews something hot
    in a city.

    More that the model need not read.

    Args:
        city: where
        count (int): how many cups,
            one for each guest: none
            is left out
        *others: ignored
        share: not this, the hint comes first

    Returns:
        text: what became of it
    """
    return [city, count, share, strong, tags, extra, kind, size.name, at and at.x, options, on and on.year]


def test_the_schema_comes_from_hints_and_docstring():
    tool = Tool.from_function(brew)
    assert (tool.name, tool.description) == ("brew", "Brews something hot in a city.")
    schema = tool.parameters
    assert {key: schema[key] for key in ("type", "required", "additionalProperties")} == {
        "type": "object",
        "required": ["city", "count"],
        "additionalProperties": False,
    }
    assert set(schema) == {"type", "properties", "required", "additionalProperties"}
    point = {
        "title": "Point",
        "description": "A place on the map.",
        "type": "object",
        "properties": {"x": {"type": "integer"}, "y": {"type": "integer", "default": 0}},
        "required": ["x"],
    }
    told = "how many cups, one for each guest: none is left out"
    properties = schema["properties"]
    on, options, size = properties.pop("on"), properties.pop("options"), properties.pop("size")
    assert on["anyOf"][0]["type"] == "string"
    assert options["anyOf"][0]["properties"] == {"deep": {"type": "boolean"}}
    assert (size["enum"], size["default"]) == (["large", "small"], "small")
    assert properties == {
        "city": {"type": "string", "description": "where"},
        "count": {"type": "integer", "description": told},
        "share": {"type": "number", "description": "how much of it", "default": 0.5},
        "strong": {"type": "boolean", "default": False},
        "tags": {"type": "array", "items": {"type": "string"}, "default": ["a"]},
        "extra": {"anyOf": [{"type": "object"}, {"type": "null"}]},
        "kind": {"enum": ["coffee", "tea"], "default": "tea"},
        "at": {"anyOf": [point, {"type": "null"}]},
        "anything": {},
    }


async def test_arguments_arrive_as_the_hints_say_and_defaults_stay_the_functions():
    tool = Tool.from_function(brew)
    assert await execute(tool, city="N", count=2.0) == '["N",2,0.5,false,["a"],null,"tea","SMALL",null,null,null]'
    told = await execute(tool, city="N", count=1, size="large", at={"x": 3.0}, options={"deep": True}, on="2024-01-31")
    assert orjson.loads(told)[7:] == ["LARGE", 3, {"deep": True}, 2024]
    for wrong in ({"city": "N"}, {"city": 1, "count": 1}, {"city": "N", "count": 1, "nope": 1}, {"size": "huge"}):
        with pytest.raises(InvalidArguments):
            await execute(tool, **wrong)
    with pytest.raises(InvalidArguments, match=r"do not fit: .*\$\.on"):  # what a schema does not say
        await execute(tool, city="N", count=1, on="soon")


async def test_a_type_that_holds_itself_keeps_its_reference():
    def count(tree: Tree, trees: list[Tree] = []) -> int:  # noqa: B006 - as above
        return len(tree.children) + len(trees)

    tool = Tool.from_function(count)
    assert schema_of(tool.parameters).is_valid({"tree": {"children": [{"children": []}]}})
    assert not schema_of(tool.parameters).is_valid({"tree": {"children": [{"children": [1]}]}})
    assert await execute(tool, tree={"children": [{"children": []}]}) == "1"


def test_the_name_is_the_functions_own_and_has_to_be_one_that_models_can_call():
    class Roller:
        def __call__(self):
            return 4

    assert Tool.from_function(functools.partial(brew, "N")).name == "brew"
    assert Tool.from_function(Roller()).name == "Roller"
    with pytest.raises(ValueError, match="name may have letters"):
        Tool.from_function(lambda: 1)


def test_without_a_docstring_the_name_tells_what_it_does():
    def roll_dice():
        return 4

    def other():
        """Args:
        none: at all
        """

    assert Tool.from_function(roll_dice).description == "Roll dice."
    assert Tool.from_function(other).description == "Other."


def test_terms_may_be_said_beside_the_function():
    tool = Tool.from_function(brew, name="b", description="d", timeout=3, max_calls=1, aliases=("c",), eager=False)
    assert (tool.name, tool.description, tool.timeout, tool.max_calls) == ("b", "d", 3, 1)
    assert (tool.aliases, tool.eager) == (("c",), False)


class Unknown:
    pass


def unknown(x: Unknown):
    return x


def unreadable(x: "Nope"):  # noqa: F821 - the point
    return x


def positional(x, /):
    return x


def generator():
    yield 1


async def async_generator():
    yield 1


def two_dicts(x: Point | Options):
    return x


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (unknown, "no JSON Schema"),
        (unreadable, "signature cannot be read: NameError"),
        (positional, "positional-only"),
        (generator, "is a generator"),
        (async_generator, "is a generator"),
        (two_dicts, "no JSON Schema"),
        (Unknown, "not a function"),
        (7, "not a function"),
    ],
)
def test_a_function_that_no_model_could_call_is_refused(function, why):
    with pytest.raises(ValueError, match=why):
        Tool.from_function(function)


def test_a_schema_that_is_given_has_to_fit_the_function():
    def function(a, b=1):
        return a, b

    def open_ended(**rest):
        return rest

    good = {"properties": {"a": {}}, "required": ["a"]}
    assert Tool.from_function(function, parameters=good).parameters == good
    assert Tool.from_function(open_ended, parameters=good).parameters == good
    for parameters, why in (
        ({"properties": {"a": {}, "c": {}}, "required": ["a"]}, "has 'c'"),
        ({"properties": {"a": {}}}, "needs 'a'"),
        ({"properties": {"a": {"type": "nope"}}, "required": ["a"]}, "not a JSON Schema"),
    ):
        with pytest.raises(ValueError, match=why):
            Tool.from_function(function, parameters=parameters)


async def test_with_a_schema_of_ones_own_arguments_are_json_values():
    def kind(x: Unknown):
        return type(x).__name__

    tool = Tool.from_function(kind, parameters={"type": "object", "properties": {"x": {}}, "required": ["x"]})
    assert await execute(tool, x={"a": 1}) == "dict"


@pytest.mark.parametrize(
    ("result", "told"),
    [("text", "text"), (None, "null"), ({"a": [1]}, '{"a":[1]}'), (ToolOutput("t", {"u": "t"}), "t"), (Point(1), '{"x":1,"y":0}'),
     ([Route(Point(1))], '[{"start":{"x":1,"y":0},"unit":"km"}]'), (Circle(1), '{"radius":1,"diameter":2}')],
)  # fmt: skip
async def test_a_result_is_text_a_tool_output_or_json(result, told):
    def function():
        return result

    async def coroutine():
        return result

    class Caller:
        async def __call__(self):
            return result

    for one in (function, coroutine, functools.partial(coroutine), lambda: asyncio.sleep(0, result), Caller()):
        assert await execute(Tool.from_function(one, name="t")) == told


@pytest.mark.parametrize("result", [Point, [object()]])
async def test_a_result_that_has_no_json_is_a_bug_of_the_function(result):
    with pytest.raises(TypeError):
        await execute(Tool.from_function(lambda: result, name="t"))


async def test_only_what_is_not_async_runs_in_a_thread_with_the_context_of_its_call():
    variable = contextvars.ContextVar("variable")
    variable.set("mine")

    def here():
        return f"{variable.get()} {threading.current_thread() is threading.main_thread()}"

    async def there():
        return here()

    assert await execute(Tool.from_function(here)) == "mine False"
    assert await execute(Tool.from_function(there)) == "mine True"


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (ToolError("said"), ToolError),
        (ToolUnavailable("said"), ToolUnavailable),
        (ZeroDivisionError("said"), ZeroDivisionError),
        (SystemExit(3), RuntimeError),
        (KeyboardInterrupt(), RuntimeError),
        (StopIteration(), RuntimeError),
        (TimeoutError(), RuntimeError),
        (asyncio.CancelledError(), RuntimeError),
    ],
)
async def test_what_a_function_raises_ends_its_call_and_nothing_else(raised, kind):
    def function():
        raise raised

    async def coroutine():
        raise raised

    for one in (function, coroutine):
        with pytest.raises(kind) as found:
            await execute(Tool.from_function(one))
        assert type(found.value) is kind


async def test_a_thread_that_hangs_is_left_behind_and_too_many_of_them_are_refused():
    release = threading.Event()

    def hang():
        release.wait(30)
        return "late"

    tool = Tool.from_function(hang)
    calls = (execute(tool, default_timeout=0.01) for _ in range(MOST_THREADS))
    failures = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(failure) for failure in failures} == {ToolTimeout}
    with pytest.raises(ToolUnavailable, match="have not ended"):
        await execute(tool)
    hanging = [thread for thread in threading.enumerate() if thread.name == "toolproxy-tool"]
    assert [thread.daemon for thread in hanging] == [True] * MOST_THREADS
    release.set()
    for thread in hanging:
        thread.join()
    await asyncio.sleep(0)  # the loop hears of it
    assert await execute(tool) == "late"


async def test_a_call_that_is_cancelled_stays_cancelled():
    async def forever():
        await asyncio.Event().wait()

    with pytest.raises(ToolTimeout):
        await execute(Tool.from_function(forever), default_timeout=0.01)


MODULE = '''
from proxy import Tool

def roll_dice(sides: int = 6) -> int:
    """Rolls a die."""
    return sides

class Dice:
    @staticmethod
    def roll() -> str:
        return "four"

ready = Tool.from_function(roll_dice, name="other", description="Ready.", timeout=7, aliases=("die", "t"))
broken = Tool.from_function(roll_dice, name="broken", aliases=("die",))
'''


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Installs distributions: `installed(name, {entry point: value})`; the module `dice_tools` is there."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "dice_tools.py").write_text(MODULE)
    (tmp_path / "broken_tools.py").write_text("import no_such_module\n")
    (tmp_path / "leaving_tools.py").write_text("raise SystemExit('I leave\\nat once')\n")

    def install(name, points):
        folder = tmp_path / f"{name.replace('-', '_')}-1.2.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
        lines = [f"{point} = {value}" for point, value in points.items()]
        (folder / "entry_points.txt").write_text("\n".join(["[toolproxy.tools]", *lines, ""]))

    yield install
    for module in ("dice_tools", "broken_tools", "leaving_tools"):
        sys.modules.pop(module, None)


RESOURCES = Resources(tool_client(), FakeClock())


def made(entry):
    config = parse(f"tools: {{t: {{type: python, {entry}}}}}", {}).config
    return python_tool("t", config.tools["t"], RESOURCES)


async def test_a_function_is_named_by_module_and_attribute(installed):
    tool = made('function: "dice_tools:roll_dice"')
    assert (tool.name, tool.description, tool.origin) == ("t", "Rolls a die.", "dice_tools:roll_dice")
    assert await execute(tool, sides=8) == "8"
    assert await execute(made('function: "dice_tools:Dice.roll"')) == "four"
    said = made('function: "dice_tools:roll_dice", description: Mine., parameters: {type: object}')
    assert (said.description, said.parameters) == ("Mine.", {"type": "object"})


def test_the_attribute_may_be_a_tool_whose_terms_hold_where_the_configuration_says_nothing(installed):
    more = "  die_roll: {type: python, function: 'dice_tools:ready', max_calls: 3}"
    config = parse(f"tools:\n{more}", {})
    app_tools = {tool.name: tool for tool in tools_of(config)}
    tool = app_tools["die_roll"]
    assert (tool.description, tool.timeout, tool.max_calls) == ("Ready.", 7, 3)
    assert tool.aliases == ("die", "t")


def tools_of(config):
    return catalog.tools_of(config, RESOURCES)


async def test_an_installed_entry_point_is_taken_by_the_tools_name_or_by_its_own(installed):
    installed(
        "dice-dist", {"t": "dice_tools:roll_dice", "a.dotted-name": "dice_tools:ready", "idle": "dice_tools:ready"}
    )
    tool = made("")
    assert tool.origin == "entry point t of dice-dist 1.2"
    assert await execute(tool) == "6"
    assert made("function: a.dotted-name").description == "Ready."


def test_an_entry_point_is_offered_only_where_the_configuration_names_it(installed):
    installed("dice-dist", {"t": "dice_tools:roll_dice", "idle": "broken_tools:x"})
    loaded = parse("tools: {t: {type: python}}", {})
    assert origins_of(loaded) == {"t": "entry point t of dice-dist 1.2"}
    assert unused_entry_points(loaded.config.tools.items()) == ["entry point idle of dice-dist 1.2"]
    assert origins_of(Loaded(Config())) == {}


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ("", "there is no entry point 't'"),
        ("function: nothing", "there is no entry point 'nothing'"),
        ("function: 'no_such_module:x'", "no_such_module:x cannot be imported: ModuleNotFoundError: No module"),
        ("function: 'broken_tools:x'", "cannot be imported: ModuleNotFoundError"),
        ("function: 'leaving_tools:x'", "cannot be imported: SystemExit: I leave at once"),
        ("function: 'dice_tools:nope'", "cannot be imported: AttributeError"),
        ("function: 'dice_tools:Dice'", "it is not a function"),
        (
            "function: 'dice_tools:roll_dice', parameters: {properties: {x: {}}}",
            "'x', which the function does not take",
        ),
    ],
)
def test_what_cannot_be_had_is_one_line(installed, entry, why):
    with pytest.raises(ConfigurationError) as raised:
        made(entry)
    (fault,) = raised.value.faults
    assert fault.startswith("tools.t.function: ")
    assert why in fault
    assert "\n" not in fault


def test_an_entry_point_of_two_distributions_is_refused(installed):
    installed("one-dist", {"t": "dice_tools:roll_dice"})
    installed("two-dist", {"t": "dice_tools:ready"})
    with pytest.raises(ConfigurationError, match="there are several: entry point t of"):
        made("")


@pytest.mark.parametrize("function", ["a b", "a:", ":b", "a:b:c", "a/b"])
def test_a_function_that_is_no_name_is_refused_with_its_line(function):
    with pytest.raises(ConfigurationError, match=r"config.yaml:1: tools\.t\.function: "):
        parse(f"tools: {{t: {{type: python, function: '{function}'}}}}", {})


def test_a_name_that_appears_twice_is_refused_at_start(installed):
    entry = "t: {type: python, function: 'dice_tools:ready'}, u: {type: python, function: 'dice_tools:broken'}"
    with pytest.raises(ConfigurationError, match=r"^config.yaml:1: tools: there are two tools named 'die'$"):
        create_app(parse(f"tools: {{{entry}}}", {}))
    clock = Tool(name="now", description="", parameters={"type": "object"}, run=brew)
    with pytest.raises(ConfigurationError, match="two tools named 'now'"):
        create_app(parse("tools: {now: {type: clock}}", {}), tools=[clock])


async def test_a_conversation_uses_a_python_tool_and_the_place_of_its_crash_is_in_the_log_only(installed, sdk, logged):
    upstream = FakeUpstream([
        streamed(calls=[("c1", "roll_dice", {"sides": 20}), ("c2", "crash", {})]), streamed("Done."),
    ])  # fmt: skip

    def crash() -> None:
        raise ValueError("canary")

    more = "  roll_dice: {type: python, function: 'dice_tools:roll_dice'}"
    tools = [Tool.from_function(crash)]
    async with proxy_of(upstream, more=more, tools=tools) as url, sdk(url) as client:
        ask = {"model": "m", "messages": [{"role": "user", "content": "?"}]}
        stream = await client.chat.completions.create(**ask, stream=True)
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])
    assert text == "Done."
    rolled, crashed = (message["content"] for message in upstream.requests[1]["messages"][-2:])
    assert "\n20\n" in rolled
    assert orjson.loads(crashed)["error"] == "The tool failed."
    (line,) = [line for line in logged() if line["event"] == "tool.crashed"]
    assert line["exception"].startswith("ValueError\n  at ")
    assert "canary" not in str(line)  # what an exception says may quote what it was given


def test_constraints_of_msgspec_are_in_the_schema():
    def roll(sides: Annotated[int, msgspec.Meta(ge=2), "faces"]) -> int:
        return sides

    assert Tool.from_function(roll).parameters["properties"] == {
        "sides": {"type": "integer", "minimum": 2, "description": "faces"}
    }
