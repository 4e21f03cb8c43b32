"""Which calls are run, whole turns and early starts alike."""

from msgspec.structs import replace

from proxy.loop.actions import AnsweredCall, Stop
from proxy.loop.decisions import CallHistory, TurnDecisions
from proxy.loop.limits import Limits
from proxy.loop.results import ToolResult
from proxy.loop.tally import Tally
from tests.playbook import SEARCH, TIME, call

TOOLS = {name: tool for tool in (SEARCH, TIME) for name in tool.names}


def history(tools=TOOLS, **limits):
    return CallHistory(tools, Limits(**limits), None, Tally(), {})


def decide(calls, history, stop):
    decisions = TurnDecisions(history, stop)
    return [decisions.decide(one) for one in calls]


def ran(decisions):
    return [decision.to_run is not None for decision in decisions]


def test_a_call_by_an_alias_is_run_under_its_tools_own_name():
    [decision] = decide([call("browser.search")], history(), None)
    assert decision.to_run == call("web_search")


def test_a_call_that_is_not_run_is_shown_under_the_name_of_its_tool_or_under_its_own():
    by_alias = AnsweredCall(call("browser.search"), "web_search", 1, ToolResult("found"), "found")
    assert by_alias.resolved == call("web_search")
    assert replace(by_alias, tool="").resolved == call("browser.search")


def test_deciding_changes_nothing():
    known = history()
    wanted = [call(id="a"), call("current_time", "{}", id="b"), call("nobody")]
    assert decide(wanted, known, None) == decide(wanted, known, None)
    assert known == history()


def test_a_call_that_is_beyond_the_budget_permits_no_further_one():
    wanted = [call(), call("current_time", "{}"), call("current_time", '{"zone":1}')]
    decisions = decide(wanted, history(max_tool_calls=1), None)
    assert ran(decisions) == [True, False, False]
    assert [decision.stop for decision in decisions] == [None, Stop.MAX_TOOL_CALLS, Stop.MAX_TOOL_CALLS]


def test_a_call_that_is_beyond_its_tools_own_limit_leaves_the_others():
    tools = {**TOOLS, "web_search": replace(SEARCH, max_calls=1)}
    decisions = decide([call(), call(arguments="{}"), call("current_time", "{}")], history(tools), None)
    assert ran(decisions) == [True, False, True]
    assert decisions[-1].stop is None


def test_a_limit_that_was_reached_before_refuses_every_call():
    decisions = decide([call(), call("current_time", "{}")], history(), Stop.DEADLINE)
    assert ran(decisions) == [False, False]
    assert {decision.stop for decision in decisions} == {Stop.DEADLINE}


def test_a_repeated_call_is_answered_once_and_then_stops_the_run():
    known = history()
    known.finish(decide([call()], known, None), [ToolResult("found")])
    again = decide([call()], known, None)
    assert again[0].result.content.endswith("\n\nfound")
    assert known.begin(again) == ()
    assert decide([call()], known, None)[0].stop is Stop.REPEATED_CALL


class Notes:
    """A dialect that adds a word to each result."""

    def translate(self, wanted, alias):
        return wanted

    def annotate(self, wanted, name, result):
        return replace(result, content=f"{result.content}, called {name}")

    def cite(self, number, line):
        return None


def test_a_dialect_annotates_the_results_of_calls_that_were_run():
    known = CallHistory(TOOLS, Limits(), Notes(), Tally(), {})
    decisions = decide([call("browser.search")], known, None)
    known.begin(decisions)
    [answer] = known.finish(decisions, [ToolResult("found")])
    assert answer.content == "found, called browser.search"


def test_what_calls_cost_is_added_up():
    decisions = decide([call(id="a"), call(arguments='{"query":"y"}', id="b")], known := history(), None)
    known.begin(decisions)
    known.finish(decisions, [ToolResult("found", cost=0.25), ToolResult("failed", failed=True)])
    assert known.tally.tool_cost == 0.25


def test_a_call_of_a_tool_whose_credential_the_request_lacks_is_told_which_header_to_send():
    known = CallHistory({}, Limits(), None, Tally(), {}, unlisted=(replace(SEARCH, needs=frozenset({"x-key"})),))
    [decision] = decide([call("web_search")], known, None)
    assert decision.result.outcome == "credential_missing"
    assert "x-key" in decision.result.content
