import pytest

from proxy.api.search_filters import filters_of
from proxy.wire.errors import RequestError
from proxy.wire.search import NO_FILTERS, SearchFilters


def tool(**settings):
    return {"tools": [{"type": "function"}, {"type": "web_search", **settings}]}


def test_everything_may_be_null():
    assert filters_of(tool(filters=None, user_location=None, search_context_size=None)) == NO_FILTERS
    assert filters_of({"tools": None, "web_search_options": None, "plugins": None}) == NO_FILTERS


def test_the_settings_of_a_declared_search_are_read():
    settings = {
        "filters": {"allowed_domains": ["bc.ca", "example.org/a"], "blocked_domains": ["ads.bc.ca"]},
        "user_location": {"type": "approximate", "city": "Nanaimo", "region": None, "country": "CA"},
        "search_context_size": "high",
    }
    expected = SearchFilters(("bc.ca", "example.org/a"), ("ads.bc.ca",), country="ca", city="Nanaimo", size="high")
    assert filters_of(tool(**settings)) == expected
    where = {"type": "approximate", "approximate": settings.pop("user_location")}
    assert filters_of({"web_search_options": {**settings, "user_location": where}}) == expected


def test_a_domain_may_be_written_in_letters_that_are_not_ascii():
    filters = filters_of(tool(filters={"blocked_domains": ["bücher.example", "xn--bcher-kva.example"]}))
    assert filters.block == ("xn--bcher-kva.example",)


def test_lists_of_domains_may_stand_beside_filters():
    beside = tool(allowed_domains=["bc.ca"], blocked_domains=["ads.bc.ca"])
    assert filters_of(beside) == SearchFilters(("bc.ca",), ("ads.bc.ca",))
    with pytest.raises(RequestError):
        filters_of(tool(allowed_domains="bc.ca"))


def test_the_web_plugin_of_openrouter_is_read():
    plugin = {"id": "web", "max_results": 50, "include_domains": ["a.ca"], "exclude_domains": ["b.ca"]}
    assert filters_of({"plugins": [{"id": "x", "max_results": "?"}, plugin]}) == SearchFilters(
        ("a.ca",), ("b.ca",), count=10
    )


def test_of_several_settings_the_first_counts_and_all_blocked_domains_do():
    request = tool(filters={"allowed_domains": ["a.ca"], "blocked_domains": ["x.a.ca"]})
    request["web_search_options"] = {"filters": {"allowed_domains": ["b.ca"], "blocked_domains": ["y.a.ca"]}}
    request["plugins"] = [{"id": "web", "max_results": 3}]
    assert filters_of(request) == SearchFilters(("a.ca",), ("x.a.ca", "y.a.ca"), count=3)


@pytest.mark.parametrize(
    "wrong",
    [
        {"search_context_size": "huge"},
        {"search_context_size": ["low"]},
        {"filters": []},
        {"filters": {"allowed_domains": "bc.ca"}},
        {"filters": {"allowed_domains": ["a.ca OR site:b.ca"]}},
        {"filters": {"allowed_domains": ["https://a.ca"]}},
        {"filters": {"allowed_domains": ["a.ca"] * 101}},
        {"filters": {"blocked_domains": [1]}},
        {"filters": {"blocked_domains": ["bü..example"]}},
        {"user_location": "here"},
    ],
)
def test_settings_that_are_none_are_a_fault_of_their_field(wrong):
    for request, param in ((tool(**wrong), "tools"), ({"web_search_options": wrong}, "web_search_options")):
        with pytest.raises(RequestError) as fault:
            filters_of(request)
        assert fault.value.param == param


@pytest.mark.parametrize(
    "wrong", [{"max_results": 0}, {"max_results": "5"}, {"max_results": True}, {"include_domains": ["a b"]}]
)
def test_a_plugin_that_is_not_well_formed_is_a_fault(wrong):
    with pytest.raises(RequestError) as fault:
        filters_of({"plugins": [{"id": "web", **wrong}]})
    assert fault.value.param == "plugins"
