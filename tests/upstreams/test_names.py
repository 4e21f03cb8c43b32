from proxy.upstreams import names
from proxy.upstreams.names import ToolNames, renamed_in


def function(name):
    return {"type": "function", "function": {"name": name}}


def body(*names, **rest):
    return {"messages": [{"role": "user", "content": "x"}], "tools": [function(name) for name in names], **rest}


def test_only_short_names_are_remembered():
    names.is_spelled_well.cache_clear()
    assert renamed_in(body("short", "x" * 65)) is not None
    assert names.is_spelled_well.cache_info().currsize == 1


def test_good_names_need_nothing():
    assert renamed_in(body("web_search", "a-b", tool_choice="auto")) is None


def test_bad_names_go_out_as_good_ones_and_come_back():
    request = body("browser.search", "open door", tool_choice=function("browser.search"))
    request["messages"].append({"role": "assistant", "tool_calls": [function("browser.search")]})
    names = ToolNames(request)
    sent = names.outward(request)
    assert [tool["function"]["name"] for tool in sent["tools"]] == ["browser_search", "open_door"]
    assert sent["tool_choice"] == sent["messages"][1]["tool_calls"][0] == function("browser_search")
    assert request["tools"][0] == function("browser.search")
    answer = {"choices": [{"message": {"tool_calls": [function("browser_search"), function("other")]}}]}
    assert names.inward(answer)
    assert [call["function"]["name"] for call in answer["choices"][0]["message"]["tool_calls"]] == [
        "browser.search",
        "other",
    ]
    assert not names.inward({"choices": [{"delta": {"tool_calls": [{"index": 0}]}}]})


def test_names_that_would_become_the_same_stay_apart():
    names = ToolNames(body("a.b", "a_b", "a b", "x" * 70, "x" * 71, "\u00e9"))
    sent = [
        tool["function"]["name"]
        for tool in names.outward(body("a.b", "a_b", "a b", "x" * 70, "x" * 71, "\u00e9"))["tools"]
    ]
    assert sent == ["a_b_2", "a_b", "a_b_3", "x" * 64, "x" * 62 + "_2", "_"]
