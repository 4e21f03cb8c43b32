from proxy.upstreams.names import ToolNames, clean_calls


def function(name):
    return {"type": "function", "function": {"name": name}}


def body(*names, **rest):
    return {"messages": [{"role": "user", "content": "x"}], "tools": [function(name) for name in names], **rest}


def test_good_names_need_nothing():
    assert ToolNames.replaced_in(body("web_search", "a-b", "x" * 64, tool_choice="auto")) is None


def test_bad_names_go_out_as_good_ones_and_come_back():
    request = body("browser.search", "open door", tool_choice=function("browser.search"))
    request["messages"].append({"role": "assistant", "tool_calls": [function("browser.search")]})
    names = ToolNames.replaced_in(request)
    sent = names.replace(request)
    assert [tool["function"]["name"] for tool in sent["tools"]] == ["browser_search", "open_door"]
    assert sent["tool_choice"] == sent["messages"][1]["tool_calls"][0] == function("browser_search")
    assert request["tools"][0] == function("browser.search")
    answer = {"choices": [{"message": {"tool_calls": [function("browser_search"), function("other")]}}]}
    names.restore(answer)
    assert [call["function"]["name"] for call in answer["choices"][0]["message"]["tool_calls"]] == [
        "browser.search",
        "other",
    ]
    names.restore({"choices": [{"delta": {"tool_calls": [{"index": 0}]}}]})  # later fragments have no name


def test_a_name_that_was_replaced_comes_back_without_the_raw_format_around_it():
    answer = {"choices": [{"message": {"tool_calls": [function("browser_search</tool_call>")]}}]}
    ToolNames.replaced_in(body("browser.search")).restore(answer)
    assert answer["choices"][0]["message"]["tool_calls"] == [function("browser.search")]


def test_raw_format_is_taken_off_the_names_in_a_whole_answer():
    calls = [function("open_door</arg_value>"), function("other</arg_value>"), {"type": "custom", "custom": {}}]
    calls += [function("functions.open_door")]
    clean_calls({"choices": [{"message": {"tool_calls": calls}}, {"message": {}}]}, body("open_door"))
    assert [call.get("function", {}).get("name") for call in calls] == [
        "open_door",
        "other</arg_value>",
        None,
        "open_door",
    ]


def test_a_call_of_a_custom_tool_comes_back_under_its_own_name():
    custom = {"type": "custom", "custom": {"name": "apply.patch"}}
    request = {"messages": [], "tools": [custom]}
    names = ToolNames.replaced_in(request)
    answer = {"choices": [{"delta": {"tool_calls": names.replace(request)["tools"]}}]}
    assert answer["choices"][0]["delta"]["tool_calls"][0]["custom"] == {"name": "apply_patch"}
    names.restore(answer)
    assert answer["choices"][0]["delta"]["tool_calls"] == [custom]


def test_tools_that_are_allowed_go_out_under_the_names_under_which_they_are_offered():
    long = "x" * 65
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [function(long), function("b")]}}
    request = body(long, "b", tool_choice=choice)
    sent = ToolNames.replaced_in(request).replace(request)
    assert sent["tools"] == sent["tool_choice"]["allowed_tools"]["tools"] == [function("x" * 64), function("b")]
    assert sent["tool_choice"]["allowed_tools"]["mode"] == "required"


def test_names_that_would_become_the_same_stay_apart():
    names = ToolNames.replaced_in(body("a.b", "a_b", "a b", "x" * 70, "x" * 71, "\u00e9"))
    sent = [
        tool["function"]["name"]
        for tool in names.replace(body("a.b", "a_b", "a b", "x" * 70, "x" * 71, "\u00e9"))["tools"]
    ]
    assert sent == ["a_b_2", "a_b", "a_b_3", "x" * 64, "x" * 62 + "_2", "_"]
