import orjson
import pytest

from proxy.api.responses.search import ConfiguredSearch, SearchSettings, query_of, read_settings
from proxy.loop.chat import ToolCall, ToolOutput
from proxy.loop.errors import RequestError
from tests.playbook import SEARCH, TIME

KNOWN = {"query": {}, "num_results": {}, "gl": {}}


def test_everything_may_be_null():
    declared = {"type": "web_search", "filters": None, "user_location": None, "search_context_size": None}
    assert read_settings(declared) == SearchSettings()


def test_settings_are_read():
    settings = read_settings({
        "type": "web_search",
        "filters": {"allowed_domains": ["BC.ca", "example.org"]},
        "user_location": {"type": "approximate", "city": "Nanaimo", "region": None, "country": "CA"},
        "search_context_size": "high",
    })  # fmt: skip
    assert settings == SearchSettings(("bc.ca", "example.org"), 10, "ca", "Nanaimo, CA")
    assert settings.instruction == "The user is approximately here: Nanaimo, CA."


@pytest.mark.parametrize(
    "wrong",
    [
        {"search_context_size": "huge"},
        {"search_context_size": ["low"]},
        {"filters": []},
        {"filters": {"allowed_domains": "bc.ca"}},
        {"filters": {"allowed_domains": ["a.ca OR site:b.ca"]}},
        {"filters": {"allowed_domains": ["a.ca"] * 21}},
        {"user_location": "here"},
    ],
)
def test_settings_that_are_none_are_a_fault(wrong):
    with pytest.raises(RequestError) as fault:
        read_settings({"type": "web_search", **wrong})
    assert fault.value.param == "tools"


def test_settings_go_into_a_calls_arguments_but_not_over_the_models_own():
    settings = SearchSettings(("a.ca", "b.ca"), 3, "ca")
    assert settings.applied({"query": "ferry", "gl": "us"}, KNOWN) == {
        "query": "ferry (site:a.ca OR site:b.ca)",
        "num_results": 3,
        "gl": "us",
    }
    assert settings.applied({"q": "ferry"}, {}) == {"q": "ferry (site:a.ca OR site:b.ca)"}
    assert SearchSettings().applied({"query": "ferry"}, KNOWN) == {"query": "ferry"}


class Toolset:
    def __init__(self):
        self.specs = {"web_search": SEARCH, "current_time": TIME}
        self.asked = []

    async def execute(self, call, *, patience, at_most, scope):
        self.asked.append(call.arguments)
        return ToolOutput("found", {"https://a.ca/x": "A", "https://notb.ca/": "N", "https://www.b.ca/": "B"})


async def test_a_search_runs_under_the_settings_and_only_their_pages_are_sources():
    inner = Toolset()
    tools = ConfiguredSearch(inner, SearchSettings(("a.ca", "b.ca")))
    output = await tools.execute(ToolCall("c1", "web_search", '{"query":"x"}'), patience=1, at_most=9, scope="s")
    assert orjson.loads(inner.asked[0]) == {"query": "x (site:a.ca OR site:b.ca)"}
    assert list(output.sources) == ["https://a.ca/x", "https://www.b.ca/"]
    assert tools.found == {"c1": output.sources}
    assert tools.specs is inner.specs


@pytest.mark.parametrize("arguments", ["{", "[1]", "", '{"query": "x", "y": ' + "[" * 300 + "]" * 300 + "}"])
async def test_arguments_that_are_no_object_are_left_for_the_tool_to_judge(arguments):
    inner = Toolset()
    await ConfiguredSearch(inner, SearchSettings(("a.ca",))).execute(
        ToolCall("c", "web_search", arguments), patience=1, at_most=9, scope="s"
    )
    assert inner.asked == [arguments]


async def test_other_tools_are_as_they_are():
    inner = Toolset()
    output = await ConfiguredSearch(inner, SearchSettings(("a.ca",))).execute(
        ToolCall("c", "current_time", '{"query":"x"}'), patience=1, at_most=9, scope="s"
    )
    assert inner.asked == ['{"query":"x"}']
    assert len(output.sources) == 3


@pytest.mark.parametrize(
    ("arguments", "query"), [('{"query":"a"}', "a"), ('{"q":"b"}', "b"), ("{", ""), ("[]", ""), ('{"query":1}', "")]
)
def test_what_a_search_looks_for_is_read_from_its_arguments(arguments, query):
    assert query_of(arguments) == query
