from proxy.app.configuration import parse
from proxy.tools.catalog import tools_of
from proxy.tools.tool_type import Resources
from tests.fakes import FakeClock

CONFIG = """
upstreams: {{up: {{base_url: http://u/v1, api_key: k}}}}
offer: {{mode: on_request}}
tools:
{tools}
"""


def tools(text):
    config = parse(CONFIG.format(tools=text), {})
    return {tool.name: tool for tool in tools_of(config, Resources(client=None, clock=FakeClock()))}


def test_a_tool_has_the_terms_of_its_entry():
    terms = "timeout: 7, retries: 3, max_concurrent_calls: 4, cache_seconds: 60, max_calls: 2, eager: false, offer: declared"
    tool = tools(f"  t: {{type: clock, {terms}, fallback: u}}\n  u: {{type: clock}}\n")["t"]
    assert (tool.timeout, tool.retries, tool.max_concurrent, tool.cache_seconds) == (7, 3, 4, 60)
    assert (tool.max_calls, tool.eager, tool.offer, tool.fallback) == (2, False, "declared", "u")


def test_without_terms_of_its_own_it_is_offered_as_all_are():
    assert tools("  t: {type: clock}\n")["t"].offer == "on_request"


def test_the_first_search_answers_to_the_name_that_gpt_oss_knows():
    found = tools("  zai: {type: zai_search, api_key: k}\n  web_search: {type: serper, api_key: k}\n")
    assert [tool.aliases for tool in found.values()] == [("browser.search",), ()]


def test_unless_the_configuration_gives_that_name_to_another():
    found = tools("  zai: {type: zai_search, api_key: k}\n  s: {type: serper, api_key: k, aliases: [browser.search]}\n")
    assert [tool.aliases for tool in found.values()] == [(), ("browser.search",)]


def test_a_tool_without_a_key_keeps_its_names_when_its_fallback_does_the_work():
    search = '  web_search: {type: serper, api_key: "${UNSET}", aliases: [browser.search], fallback: zai}\n'
    found = tools(f"{search}  zai: {{type: zai_search, api_key: k, offer: never}}\n")
    assert {name: tool.aliases for name, tool in found.items()} == {"web_search": ("browser.search",), "zai": ()}
