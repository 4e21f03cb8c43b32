import pytest
from msgspec.structs import replace

from proxy.loop.offer import MOST_TOOLS, ToolSelection, choice_after_first_turn, make_offer, upstream_request
from proxy.wire.chat import choice_of, name_of
from tests.playbook import SEARCH, TIME


def function(name):
    return {"type": "function", "function": {"name": name, "description": "the client's own words"}}


def offer(request, *, tools=(SEARCH, TIME), **asked):
    return make_offer(request, tools, ToolSelection(**asked))


def names(made):
    return [name_of(tool) for tool in made.tools]


@pytest.mark.parametrize("request_", [{}, {"tool_choice": "auto"}, {"tool_choice": None, "tools": None}])
def test_tools_are_added_where_the_choice_is_left_to_the_model(request_):
    made = offer(request_)
    assert made.offered
    assert names(made) == ["web_search", "current_time"]


@pytest.mark.parametrize(
    "request_",
    [
        {"tool_choice": "none"},
        {"tool_choice": "required", "tools": [function("open_door")]},
        {"tool_choice": {"type": "function", "function": {"name": "open_door"}}, "tools": [function("open_door")]},
        {"functions": [{"name": "legacy"}]},
    ],
)
def test_no_tool_is_added_where_tool_choice_excludes_it(request_):
    made = offer(request_)
    assert not made.offered
    assert list(made.tools) == request_.get("tools", [])


SIDE_REQUESTS = [
    {"max_tokens": 1},
    {"max_completion_tokens": 16},
    {"stop": ["</title>"]},
    {"response_format": {"type": "json_object"}},
]


@pytest.mark.parametrize("request_", SIDE_REQUESTS)
def test_a_side_request_gets_only_the_tools_that_it_asks_for(request_):
    assert not offer(request_).offered
    assert names(offer({**request_, "web_search_options": {}})) == ["web_search"]
    assert names(offer(request_, names=frozenset({"current_time"}))) == ["current_time"]
    assert names(offer({**request_, "tool_choice": choice_of("web_search")})) == ["web_search"]
    assert names(offer({**request_, "tools": [function("open_door")]})) == ["open_door", "web_search", "current_time"]


@pytest.mark.parametrize("request_", [{"max_tokens": 17}, {"stop": []}, {"response_format": {"type": "text"}}])
def test_a_request_for_an_answer_is_no_side_request(request_):
    assert names(offer(request_)) == ["web_search", "current_time"]


def test_requests_without_tools_may_be_left_without_the_servers():
    assert not offer({}, only_beside_own=True).offered
    assert names(offer({"web_search_options": {}}, only_beside_own=True)) == ["web_search"]
    assert names(offer({"tools": [function("open_door")]}, only_beside_own=True))[1:] == ["web_search", "current_time"]


def test_a_tool_that_the_client_declares_keeps_the_clients_words_and_is_not_added_again():
    made = offer({"tools": [function("web_search"), function("open_door")]})
    assert names(made) == ["web_search", "open_door", "current_time"]
    assert made.tools[0]["function"]["description"] == "the client's own words"
    assert made.client_tools == {"open_door"}


def test_a_tool_that_is_declared_under_an_alias_is_run_under_it():
    made = offer({"tools": [function("browser.search")]})
    assert names(made) == ["browser.search", "current_time"]
    assert made.server_tools["browser.search"] is SEARCH
    assert made.client_tools == frozenset()


def test_a_function_named_like_a_tool_that_the_client_may_not_use_stays_the_clients():
    made = offer({"tools": [function("web_search")]}, tools=[TIME])
    assert made.client_tools == {"web_search"}
    assert "web_search" not in made.server_tools


@pytest.mark.parametrize(
    ("mode", "asked", "shown"),
    [
        ("always", {}, True),
        ("on_request", {}, False),
        ("on_request", {"on_request": True}, True),
        ("on_request", {"names": frozenset({"web_search"})}, True),
        ("always", {"names": frozenset({"current_time"})}, False),
        ("declared", {"on_request": True}, False),
        ("declared", {"names": frozenset({"web_search"})}, True),
        ("never", {"on_request": True, "names": frozenset({"web_search"})}, False),
        ("declared", {"names": frozenset({"all"})}, True),
        ("on_request", {"names": frozenset({"all"})}, True),
        ("never", {"names": frozenset({"all"})}, False),
        ("declared", {"names": frozenset({"browser.search"})}, True),
    ],
)
def test_each_mode_says_when_a_tool_is_shown_that_the_client_did_not_declare(mode, asked, shown):
    assert bool(offer({}, tools=[replace(SEARCH, offer=mode)], **asked).offered) is shown


@pytest.mark.parametrize(("chosen", "shown"), [("wiki", True), ("web_search", True), ("wik", False)])
def test_a_group_is_chosen_by_its_name_or_tool_by_tool(chosen, shown):
    of_a_group = replace(SEARCH, group="wiki")
    assert of_a_group.is_among({chosen}) is shown
    assert bool(offer({}, tools=[of_a_group], names=frozenset({chosen})).offered) is shown
    assert not SEARCH.is_among({"wiki"})


@pytest.mark.parametrize("mode", ["always", "on_request", "declared", "never"])
def test_a_tool_that_the_client_declares_is_in_play_whatever_its_mode(mode):
    assert offer({"tools": [function("web_search")]}, tools=[replace(SEARCH, offer=mode)]).offered


@pytest.mark.parametrize(
    "request_",
    [
        {"tools": [{"type": "web_search"}]},
        {"tools": [{"type": "web_search_preview", "search_context_size": "low"}]},
        {"web_search_options": {}},
        {"tools": [{"type": "web_search"}, function("open_door")], "tool_choice": "required"},
        {"tools": [{"type": "web_search", "web_search": {"enable": True}}]},
    ],
)
def test_a_hosted_search_is_the_servers(request_):
    made = offer(request_, tools=[replace(SEARCH, offer="declared")])
    assert "web_search" in made.offered
    assert names(made)[-1] == "web_search"
    assert all(tool["type"] == "function" for tool in made.tools)


@pytest.mark.parametrize("tools", [{}, {"tools": [{"type": "web_search"}]}])
def test_a_choice_of_a_hosted_search_is_one_of_the_server_tool(tools):
    made = offer({**tools, "tool_choice": {"type": "web_search"}})
    assert made.tool_choice == {"type": "function", "function": {"name": "web_search"}}
    assert "web_search" in made.offered
    assert choice_after_first_turn(made.tool_choice, made) == "auto"


def test_a_choice_of_the_upstreams_own_search_stays():
    native = {"type": "web_search", "web_search": {"enable": True}}
    choice = {"type": "web_search"}
    made = offer({"tools": [native], "tool_choice": choice}, native_search=True)
    assert made.tool_choice == choice


def test_a_hosted_search_without_a_search_of_ours_goes_on_untouched():
    hosted = {"type": "web_search"}
    made = offer({"tools": [hosted], "web_search_options": {}}, tools=[TIME])
    assert (made.tools[0], made.dropped) == (hosted, frozenset())


def test_what_is_said_to_us_is_not_passed_on():
    assert offer({"web_search_options": {}}).dropped == {"web_search_options", "plugins"}


def test_the_web_plugin_of_openrouter_offers_our_search_and_the_other_plugins_go_on():
    request = {"plugins": [{"id": "web"}, {"id": "file-parser"}]}
    made = offer(request, tools=[replace(SEARCH, offer="declared")])
    assert made.offered == ("web_search",)
    assert upstream_request(request, made)["plugins"] == [{"id": "file-parser"}]
    assert "plugins" not in upstream_request({"plugins": [{"id": "web"}]}, made)


@pytest.mark.parametrize("plugins", [[{"id": "web", "enabled": False}], "web", [1], None])
def test_plugins_that_ask_for_no_search_offer_none(plugins):
    assert offer({"plugins": plugins}, tools=[replace(SEARCH, offer="declared")]).offered == ()


def test_glms_own_form_stays_glms():
    native = {"type": "web_search", "web_search": {"enable": True}}
    made = offer(
        {"tools": [native, {"type": "web_search"}]}, native_search=True, tools=[replace(SEARCH, offer="declared")]
    )
    assert made.tools[0] is native
    assert names(made) == [None, "web_search"]


def test_allowed_tools_narrow_what_is_offered_and_what_is_added():
    listed = {"mode": "auto", "tools": [function("open_door"), function("web_search")]}
    tools = [function("open_door"), function("close_door"), {"type": "mcp"}]
    made = offer({"tools": tools, "tool_choice": {"type": "allowed_tools", "allowed_tools": listed}})
    assert (names(made), made.tool_choice) == (["open_door", "web_search"], "auto")


CHOSEN = {"tool_choice": function("web_search")}


@pytest.mark.parametrize("mode", ["always", "declared", "never"])
@pytest.mark.parametrize("name", ["web_search", "browser.search"])
def test_a_tool_that_the_choice_names_is_offered_whatever_its_mode(mode, name):
    made = offer({"tool_choice": function(name)}, tools=[replace(SEARCH, offer=mode), TIME])
    assert (names(made), made.offered) == (["web_search"], ("web_search",))
    assert made.tool_choice == {"type": "function", "function": {"name": "web_search"}}


def test_a_choice_of_several_offers_those_of_the_servers_that_it_names():
    listed = {"mode": "required", "tools": [function("browser.search"), function("open_door")]}
    made = offer(
        {"tools": [function("open_door")], "tool_choice": {"type": "allowed_tools", "allowed_tools": listed}},
        tools=[replace(SEARCH, offer="declared"), TIME],
    )
    assert (names(made), made.tool_choice) == (["open_door", "web_search"], "required")


@pytest.mark.parametrize(("listed", "shown"), [({"type": "web_search"}, True), (function("open_door"), False)])
def test_a_hosted_search_has_to_be_among_the_allowed_tools(listed, shown):
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [listed]}}
    made = offer({"tools": [{"type": "web_search"}, function("open_door")], "tool_choice": choice})
    assert bool(made.offered) is shown


def test_a_tool_that_the_client_may_not_use_is_not_offered_because_the_choice_names_it():
    made = offer(CHOSEN, tools=[TIME])
    assert (made.offered, made.tool_choice) == ((), function("web_search"))


def test_tools_that_are_named_by_header_are_offered_where_a_call_is_required_too():
    request = {"tools": [function("open_door")], "tool_choice": "required"}
    assert names(offer(request, names=frozenset({"web_search"}))) == ["open_door", "web_search"]


@pytest.mark.parametrize("request_", [{}, CHOSEN, {"web_search_options": {}}])
@pytest.mark.parametrize("name", ["web_search", "browser.search"])
def test_a_custom_tool_is_never_the_servers_whatever_its_name(request_, name):
    custom = {"type": "custom", "custom": {"name": name}}
    made = offer({"tools": [custom], **request_})
    assert made.client_tools == {name}
    assert name not in made.server_tools
    assert len(set(names(made))) == len(made.tools)


def test_other_hosted_tools_have_no_name_and_go_on_untouched():
    hosted = {"type": "retrieval", "retrieval": {"knowledge_id": "k"}}
    made = offer({"tools": [hosted]})
    assert made.tools[0] is hosted
    assert made.client_entries == (hosted,)


@pytest.mark.parametrize(
    ("choice", "later"),
    [
        ("required", "auto"),
        ("auto", "auto"),
        (None, None),
        (function("web_search"), "auto"),
        (function("open_door"), function("open_door")),
    ],
)
def test_what_a_choice_becomes_after_the_first_turn(choice, later):
    assert choice_after_first_turn(choice, offer({})) == later


def test_a_call_by_an_alias_may_have_parameters_of_its_own():
    by_cursor = {"type": "object", "properties": {"cursor": {"type": "integer"}}}
    made = offer({}, tools=[replace(SEARCH, alias_parameters={"browser.search": by_cursor})])
    assert made.schemas == {"web_search": SEARCH.parameters, "browser.search": by_cursor}


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ({}, []),
        ({"tools": [{"type": "web_search"}]}, ["web_search"]),
        ({"tools": [function("web_search")]}, ["web_search"]),
        ({"tools": [function("open_door")]}, ["open_door", "web_search", "current_time"]),
        ({"tool_choice": {"type": "function", "function": {"name": "current_time"}}}, ["current_time"]),
    ],
)
def test_beside_an_agents_own_functions_only_a_request_for_a_title_gets_no_tool_that_it_does_not_declare(
    request_, expected
):
    assert names(offer(request_, only_beside_own=True)) == expected


def test_the_header_selects_tools_for_a_request_without_functions_of_its_own_too():
    assert names(offer({}, only_beside_own=True, names=frozenset({"web_search"}))) == ["web_search"]


def test_a_request_passes_through_only_if_no_call_is_the_proxys_to_answer():
    assert not offer({}, tools=()).answers_calls
    assert offer({}, tools=(), unlisted=(TIME,)).answers_calls
    assert offer({"tools": [function("web_search")]}).answers_calls


def test_tools_that_were_found_stand_last_in_the_order_in_which_they_were_found():
    made = offer({"tools": [function("open_door"), function("close_door")], "tool_choice": "auto"})
    moved = made.with_last(["current_time", "open_door", "current_time", "unknown"])
    assert names(moved) == ["close_door", "web_search", "current_time", "open_door"]
    assert [name_of(tool) for tool in moved.client_entries] == ["close_door", "open_door"]


def test_a_search_whose_credential_the_request_lacks_is_none():
    needing = replace(SEARCH, needs=frozenset({"x-search-key"}))
    hosted = {"tools": [{"type": "web_search"}, function("open_door")]}
    assert "web_search" not in names(offer(hosted, tools=(), headers=frozenset()))
    assert {"type": "web_search"} in offer(hosted, tools=(needing,)).tools
    given = offer(hosted, tools=(needing,), headers=frozenset({"x-search-key"}))
    assert "web_search" in names(given)


def test_of_more_tools_than_a_request_may_have_the_first_ones_are_described():
    many = [replace(TIME, name=f"tool_{number}") for number in range(MOST_TOOLS + 1)]
    assert names(offer({}, tools=many)) == [tool.name for tool in many[:MOST_TOOLS]]
    own = [function(f"own_{number}") for number in range(MOST_TOOLS - 2)]
    made = make_offer({"tools": own}, many, ToolSelection(), search_above=1)
    assert names(made)[-2:] == ["find_tools", "call_tool"]
    crowded = make_offer({"tools": [*own, function("own_last")]}, many, ToolSelection(), search_above=1)
    assert names(crowded) == [name_of(tool) for tool in crowded.client_entries]
