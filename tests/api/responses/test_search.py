import pytest

from proxy.api.responses.search import RecordingToolset, query_of
from proxy.loop.chat import ToolCall
from proxy.loop.results import ToolOutput
from proxy.loop.search import SearchFilters
from tests.playbook import SEARCH, TIME


class Toolset:
    def __init__(self):
        self.specs = {"web_search": SEARCH, "current_time": TIME}
        self.asked = []

    async def execute(self, call, *, default_timeout, max_timeout, scope, filters):
        self.asked.append((call, default_timeout, max_timeout, scope, filters))
        return ToolOutput("found", {"https://a.ca/x": "A"})


async def test_the_pages_of_each_call_are_recorded():
    inner, call, filters = Toolset(), ToolCall("c1", "web_search", "{}"), SearchFilters(("a.ca",))
    tools = RecordingToolset(inner)
    output = await tools.execute(call, default_timeout=1, max_timeout=9, scope="s", filters=filters)
    assert inner.asked == [(call, 1, 9, "s", filters)]
    assert tools.found == {"c1": output.sources}
    assert tools.specs is inner.specs


@pytest.mark.parametrize(
    ("arguments", "query"), [('{"query":"a"}', "a"), ('{"q":"b"}', "b"), ("{", ""), ("[]", ""), ('{"query":1}', "")]
)
def test_what_a_search_looks_for_is_read_from_its_arguments(arguments, query):
    assert query_of(arguments) == query
