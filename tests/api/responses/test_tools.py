import pytest

from proxy.api.responses.conversation import read_items
from proxy.api.responses.request import without_secrets
from proxy.api.responses.tools import ClientToolName, declared_in, read_tools
from proxy.wire.errors import RequestError

DOOR = {"type": "function", "name": "open_door", "parameters": {"type": "object"}, "strict": True, "description": None}
PATCH = {"type": "custom", "name": "apply_patch", "description": "Edits.", "format": {"type": "text"}}
AGENTS = {"type": "namespace", "name": "agents", "tools": [{"type": "function", "name": "spawn"}, PATCH, {"type": "x"}]}
SEARCH = {"type": "web_search"}


def forced(name):
    return {"type": "function", "function": {"name": name}}


def sent(tools):
    """The `tools` of the chat request."""
    return tools.fields().get("tools", [])


def search_of(tools):
    """The search in the `tools` of the chat request."""
    return next((tool for tool in sent(tools) if tool["type"] == "web_search"), None)


def test_a_function_is_nested_and_null_is_as_if_it_were_not_there():
    tools = read_tools([DOOR], None)
    function = {"name": "open_door", "parameters": {"type": "object"}, "strict": True}
    assert sent(tools) == [{"type": "function", "function": function}]
    assert tools.client_name_of("open_door") == ClientToolName("function", "open_door")
    assert tools.client_name_of("something_else") == ClientToolName("function", "something_else")


def test_a_custom_tool_is_a_function_with_one_string():
    grammar = {"type": "grammar", "syntax": "lark", "definition": 'start: "x"'}
    (tool,) = sent(read_tools([{**PATCH, "format": grammar}], None))
    assert tool["function"]["parameters"]["required"] == ["input"]
    assert tool["function"]["description"] == 'Edits.\n\nThe input has to follow this lark grammar:\nstart: "x"'


def test_namespaces_are_flattened_and_found_again():
    tools = read_tools([AGENTS, {"type": "function", "name": "agents__spawn"}], None)
    assert [tool["function"]["name"] for tool in sent(tools)] == [
        "agents__spawn",
        "agents__apply_patch",
        "agents__spawn_2",
    ]
    assert tools.client_name_of("agents__spawn") == ClientToolName("function", "spawn", "agents")
    assert tools.client_name_of("agents__apply_patch") == ClientToolName("custom", "apply_patch", "agents")
    assert tools.name_of({"type": "function_call", "name": "agents__spawn"}) == "agents__spawn_2"
    assert tools.name_of({"type": "function_call", "name": "spawn", "namespace": "agents"}) == "agents__spawn"
    assert tools.name_of({"type": "function_call", "name": "gone", "namespace": "agents"}) == "agents__gone"


def test_a_function_and_a_custom_tool_of_one_name_are_told_apart():
    declared = [{"type": "function", "name": "x"}, {"type": "custom", "name": "x"}]
    assert read_tools(declared, {"type": "function", "name": "x"}).choice == forced("x")
    assert read_tools(declared, {"type": "custom", "name": "x"}).choice == forced("x_2")
    tools = read_tools(declared, None)
    assert tools.name_of({"type": "function_call", "name": "x"}) == "x"
    assert tools.name_of({"type": "custom_tool_call", "name": "x"}) == "x_2"


@pytest.mark.parametrize("kind", ["function", "custom"])
def test_the_only_tool_of_a_name_is_meant_whatever_its_kind(kind):
    tools = read_tools([{"type": kind, "name": "x"}], None)
    for call in ("function_call", "custom_tool_call"):
        assert tools.name_of({"type": call, "name": "x", "namespace": None}) == "x"
    for chosen in ("function", "custom"):
        assert read_tools([{"type": kind, "name": "x"}], {"type": chosen, "name": "x"}).choice == forced("x")


def test_a_choice_of_a_function_means_the_servers_rather_than_a_custom_tool():
    declared = [{"type": "custom", "name": "look_up"}]
    assert read_tools(declared, {"type": "function", "name": "look_up"}, SERVERS).choice == forced("look_up")
    assert read_tools(declared, {"type": "custom", "name": "look_up"}, SERVERS).choice == forced("look_up_2")


def test_of_two_tools_with_one_name_the_later_counts():
    (tool,) = sent(read_tools([DOOR, {**DOOR, "description": "Newer."}], None))
    assert tool["function"]["description"] == "Newer."


def test_tools_of_an_item_are_tools_too():
    before = [{"type": "additional_tools", "tools": [PATCH]}, {"type": "additional_tools", "tools": None}]
    own = [{"type": "message"}, {"type": "additional_tools", "role": "developer", "tools": [AGENTS]}]
    assert declared_in({"tools": [DOOR]}, before=before, own=own) == [PATCH, DOOR, AGENTS]
    assert declared_in({"tools": None}, before=(), own=()) == []


@pytest.mark.parametrize(
    "tools",
    [
        {},
        [1],
        [{"name": "x"}],
        [{"type": "function"}],
        [{"type": "function", "name": "x" * 129}],
        [{"type": "namespace", "tools": []}],
        [{"type": "namespace", "name": "n", "tools": {}}],
        [{"type": "namespace", "name": "n", "tools": [{"type": "custom"}]}],
    ],
)
def test_tools_that_are_none_are_a_fault_with_their_place(tools):
    with pytest.raises(RequestError) as fault:
        declared_in({"tools": tools}, before=(), own=())
    assert fault.value.param == "tools"
    with pytest.raises(RequestError) as fault:
        read_items([{"role": "user", "content": "Hi"}, {"type": "additional_tools", "tools": tools}])
    assert fault.value.param == "input[1].tools"


@pytest.mark.parametrize("kind", ["web_search", "web_search_2025_08_26", "web_search_preview"])
def test_a_hosted_search_is_the_servers(kind):
    tools = read_tools([DOOR, {"type": kind}], None)
    assert search_of(tools) == {"type": "web_search"}
    assert sent(tools)[-1] == {"type": "web_search"}
    assert tools.ignored == ()


def test_a_search_that_may_not_fetch_is_none_that_we_have():
    tools = read_tools([DOOR, {"type": "web_search", "external_web_access": False}], None)
    assert (search_of(tools), tools.ignored) == (None, ("web_search",))


def test_of_several_searches_the_latest_counts():
    offline, small = {**SEARCH, "external_web_access": False}, {**SEARCH, "search_context_size": "low"}
    assert search_of(read_tools([DOOR, SEARCH, small], None)) == small
    latest = read_tools([DOOR, offline, SEARCH], None)
    assert (search_of(latest), latest.ignored) == (SEARCH, ())
    latest = read_tools([DOOR, SEARCH, offline], None)
    assert (search_of(latest), latest.ignored) == (None, ("web_search",))


def test_hosted_tools_that_we_do_not_have_are_left_out_and_named():
    declared = [DOOR, {"type": "file_search"}, {"type": "mcp", "server_url": "http://x"}, {"type": "file_search"}]
    tools = read_tools(declared, None)
    assert len(sent(tools)) == 1
    assert tools.ignored == ("file_search", "mcp")


@pytest.mark.parametrize(
    ("declared", "choice", "named", "param"),
    [
        ([{"type": "file_search"}], None, "file_search", "tools"),
        ([DOOR, {"type": "file_search"}], {"type": "file_search"}, "file_search", "tool_choice"),
        ([DOOR], {"type": "web_search"}, "web_search", "tool_choice"),
        ([DOOR], {"type": "function", "name": "close_door"}, "close_door", "tool_choice"),
        ([DOOR], "sometimes", "auto", "tool_choice"),
        ([DOOR], 3, "string", "tool_choice"),
        ([DOOR], {"type": "allowed_tools", "mode": "x", "tools": []}, "auto", "tool_choice"),
        (
            [DOOR],
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "file_search"}]},
            "file_search",
            "tool_choice",
        ),
        ([DOOR], {"type": "allowed_tools", "mode": "required", "tools": [SEARCH]}, "web_search", "tool_choice"),
        (
            [DOOR],
            {"type": "allowed_tools", "tools": [{"type": "namespace", "name": "agents"}]},
            "agents",
            "tool_choice",
        ),
        ([DOOR], {"type": "allowed_tools", "tools": [{"type": "namespace"}]}, "not among", "tool_choice"),
        ([DOOR], {"type": "function", "name": ["open_door"]}, "not among", "tool_choice"),
        ([DOOR], {"type": "function", "name": "open_door", "namespace": 3}, "not among", "tool_choice"),
    ],
)
def test_what_cannot_be_done_is_named(declared, choice, named, param):
    with pytest.raises(RequestError, match=named) as fault:
        read_tools(declared, choice)
    assert fault.value.param == param


SERVERS = frozenset({"web_search", "webSearch", "look_up", "agents__spawn"})


@pytest.mark.parametrize(
    ("declared", "called"),
    [
        ({"type": "custom", "name": "look_up"}, ClientToolName("custom", "look_up")),
        (AGENTS, ClientToolName("function", "spawn", "agents")),
    ],
)
def test_a_custom_tool_or_one_in_a_namespace_never_has_the_name_of_a_server_tool(declared, called):
    tools = read_tools([declared], None, SERVERS)
    (flat,) = [flat for flat, name in tools.client_names.items() if name == called]
    assert flat not in SERVERS
    assert tools.name_of({"type": "function_call", "name": called.name, "namespace": called.namespace}) == flat
    choice = {"type": called.kind, "name": called.name, "namespace": called.namespace}
    assert read_tools([declared], choice, SERVERS).choice == forced(flat)


def test_a_plain_function_with_the_name_of_a_server_tool_keeps_it():
    assert list(read_tools([{**DOOR, "name": "look_up"}], None, SERVERS).client_names) == ["look_up"]


def test_a_server_tool_may_be_chosen_without_being_declared():
    tools = read_tools([DOOR], {"type": "function", "name": "look_up"}, SERVERS)
    assert (tools.choice, search_of(tools)) == (forced("look_up"), None)
    assert sent(read_tools([], {"type": "web_search"}, SERVERS)) == [{"type": "web_search"}]
    listed = [{"type": "function", "name": "look_up"}, {"type": "web_search"}]
    tools = read_tools([DOOR], {"type": "allowed_tools", "tools": listed}, SERVERS)
    assert tools.choice["allowed_tools"]["tools"] == [forced("look_up"), {"type": "web_search"}]
    assert search_of(tools) == {"type": "web_search"}


def test_a_server_tool_that_is_chosen_has_to_be_there():
    tools = read_tools([DOOR], {"type": "function", "name": "look_up"}, SERVERS)
    assert tools.within({"look_up"}, drop=False) is tools
    assert tools.within((), drop=True).choice is None
    with pytest.raises(RequestError, match="look_up") as fault:
        tools.within({"web_search"}, drop=False)
    assert fault.value.param == "tool_choice"


def test_what_opens_a_declared_server_is_neither_kept_nor_echoed():
    server = {"type": "mcp", "server_label": "s", "server_url": "https://s.example/mcp"}
    secret = {**server, "authorization": "Bearer x", "headers": {"X-Key": "y"}}
    inner = {"type": "namespace", "name": "n", "tools": [secret]}
    told = without_secrets({"tools": [DOOR, secret, inner, 3]})
    assert told == {"tools": [DOOR, server, {**inner, "tools": [server]}, 3]}
    assert without_secrets({"tools": "no list"}) == {"tools": "no list"}


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, None),
        ("auto", "auto"),
        ("required", "required"),
        ({"type": "function", "name": "open_door"}, forced("open_door")),
        ({"type": "custom", "name": "apply_patch"}, forced("apply_patch")),
        ({"type": "function", "name": "spawn", "namespace": "agents"}, forced("agents__spawn")),
        ({"type": "web_search_preview"}, forced("web_search")),
    ],
)
def test_a_choice_is_said_in_the_words_of_chat_completions(choice, expected):
    assert read_tools([DOOR, PATCH, AGENTS, SEARCH], choice).choice == expected


def test_allowed_tools_are_those_only():
    choice = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "open_door"}]}
    tools = read_tools([DOOR, PATCH, SEARCH], choice)
    assert tools.choice["allowed_tools"] == {"mode": "required", "tools": [forced("open_door")]}
    assert search_of(tools) is None
    with_search = {"type": "allowed_tools", "tools": [SEARCH, {"type": "file_search"}]}
    assert search_of(read_tools([DOOR, SEARCH], with_search)) is not None


def test_allowed_tools_that_are_not_available_are_named():
    listed = [{"type": "file_search"}, SEARCH, {"type": "file_search"}]
    tools = read_tools([DOOR, {"type": "mcp"}], {"type": "allowed_tools", "tools": listed})
    assert (tools.choice["allowed_tools"]["tools"], tools.ignored) == ([], ("mcp", "file_search", "web_search"))
    listed.append({"type": "function", "name": "open_door"})
    tools = read_tools([DOOR], {"type": "allowed_tools", "mode": "required", "tools": listed})
    assert (tools.choice["allowed_tools"]["tools"], tools.ignored) == (
        [forced("open_door")],
        ("file_search", "web_search"),
    )


def test_a_namespace_that_is_allowed_stands_for_its_functions():
    choice = {"type": "allowed_tools", "tools": [{"type": "namespace", "name": "agents"}]}
    allowed = read_tools([DOOR, AGENTS], choice).choice["allowed_tools"]["tools"]
    assert allowed == [forced("agents__spawn"), forced("agents__apply_patch")]


def test_of_the_allowed_tools_one_has_to_be_callable_where_a_call_is_demanded():
    def allowing(mode, *names):
        listed = [SEARCH, *({"type": "function", "name": name} for name in names)]
        return read_tools([DOOR, SEARCH], {"type": "allowed_tools", "mode": mode, "tools": listed}, SERVERS)

    with pytest.raises(RequestError, match="web_search") as fault:
        allowing("required").within((), drop=False)
    assert fault.value.param == "tool_choice"
    assert search_of(allowing("required").within((), drop=True)) is None
    assert allowing("auto").within((), drop=False).ignored == ("web_search",)
    assert search_of(allowing("required", "look_up").within({"look_up"}, drop=False)) is None
    assert allowing("required", "open_door").within((), drop=False).ignored == ("web_search",)


def test_none_rules_the_search_out():
    assert search_of(read_tools([DOOR, SEARCH], "none")) is None


def test_where_there_is_no_search_the_rest_goes_on_without_it():
    tools = read_tools([DOOR, SEARCH], None).within((), drop=False)
    assert (search_of(tools), tools.ignored) == (None, ("web_search",))


@pytest.mark.parametrize(
    ("declared", "choice", "param"), [([SEARCH], None, "tools"), ([DOOR, SEARCH], SEARCH, "tool_choice")]
)
def test_where_a_search_is_all_that_is_wanted_there_has_to_be_one(declared, choice, param):
    tools = read_tools(declared, choice)
    with pytest.raises(RequestError, match="web_search") as fault:
        tools.within((), drop=False)
    assert fault.value.param == param
    assert tools.within((), drop=True).choice is None
