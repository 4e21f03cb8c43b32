import asyncio
import threading

import pytest
from msgspec.structs import replace

import proxy
from proxy.loop.call_context import CallContext
from proxy.loop.results import InvalidArguments, ResultRefused, ToolError, ToolOutput, ToolUnavailable
from proxy.tools.check import Check, replaced
from proxy.tools.registry import Registry
from proxy.tools.search.output import listed, output_of
from proxy.tools.search.provider import SearchAnswer
from proxy.tools.tool import Tool
from proxy.wire.chat import ToolCall
from proxy.wire.search import SearchHit
from tests.fakes import FakeClock

ANY = {"type": "object"}


def check(function, *, timeout=5, version=""):
    return Check(function, timeout=timeout, version=version)


def tool(run, *, name="t", **fields):
    return Tool(name=name, description="", parameters=ANY, run=run, **fields)


def returning(output):
    async def run(_):
        if isinstance(output, Exception):
            raise output
        return output

    return run


class Events(list):
    def __call__(self, event, **fields):
        self.append((event, fields))

    def handles(self, _):
        return True

    def outcomes(self):
        return [fields["outcome"] for event, fields in self if event == "tool.checked"]


async def call(tools, *, check=None, observe=None, arguments='{"a":1}', name="t"):
    registry = Registry(tools, clock=FakeClock(), check=check, observe=Events() if observe is None else observe)
    return await registry.execute(ToolCall("id", name, arguments), CallContext("me", default_timeout=5))


async def as_coroutine(*_):
    return "changed"


@pytest.mark.parametrize(
    ("verdict", "shown"),
    [
        (lambda *_: None, "original"),
        (lambda _, __, text: text.upper(), "ORIGINAL"),
        (lambda *_: "", ""),
        (lambda name, arguments, _: f"{name} {arguments}", "t {'a': 1}"),
        (as_coroutine, "changed"),
    ],
)
async def test_a_check_passes_a_result_or_replaces_it(verdict, shown):
    assert (await call([tool(returning("original"))], check=check(verdict))).text == shown


def explode(*_):
    raise ValueError("original")


def leave(*_):
    raise SystemExit


async def hang(*_):
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("verdict", "told", "outcome", "why"),
    [
        (lambda *_: proxy.Refuse("it names a person"), "a check. it names a person", "refused", None),
        (lambda *_: proxy.Refuse(), "let through by a check.", "refused", None),
        (explode, "could not be checked", "failed", "the check raised ValueError"),
        (leave, "could not be checked", "failed", "the check raised RuntimeError"),
        (lambda *_: True, "could not be checked", "failed", "the check returned bool, which is no verdict"),
        (hang, "could not be checked", "failed", "the check gave no verdict within 0.01 seconds"),
    ],
)
async def test_a_result_that_a_check_refuses_or_cannot_judge_is_a_failure_that_says_so(verdict, told, outcome, why):
    events = Events()
    with pytest.raises(ResultRefused, match=told) as refused:
        await call([tool(returning("original"))], check=check(verdict, timeout=0.01), observe=events)
    assert refused.value.why == why
    assert events.outcomes() == [outcome]
    assert "original" not in str(events)


async def test_a_plain_function_runs_in_a_thread():
    names = []
    await call([tool(returning("x"))], check=check(lambda *_: names.append(threading.current_thread().name)))
    assert names == ["toolproxy-check"]


async def test_a_tools_own_check_stands_in_the_place_of_the_one_for_all():
    by_all, own = check(lambda *_: "for all"), check(lambda *_: "own")
    tools = [tool(returning("x"), check=own), tool(returning("x"), name="u")]
    assert (await call(tools, check=by_all)).text == "own"
    assert (await call(tools, check=by_all, name="u")).text == "for all"


@pytest.mark.parametrize(("own", "shown"), [(None, "by t: u"), (check(lambda name, *_: f"by u: {name}"), "by u: u")])
async def test_a_fallback_is_checked_as_the_tool_that_it_stands_in_for_unless_it_has_a_check_of_its_own(own, shown):
    down = tool(returning(ToolUnavailable("x")), check=check(lambda name, *_: f"by t: {name}"), fallback="u")
    assert (await call([down, tool(returning("x"), name="u", check=own)])).text == shown


async def test_a_refused_result_is_not_replaced_by_a_fallback():
    refusing = tool(returning("x"), fallback="u", check=check(lambda *_: proxy.Refuse()))
    with pytest.raises(ResultRefused):
        await call([refusing, tool(returning("y"), name="u")])


async def test_what_a_tool_says_of_its_failure_is_checked_too():
    failing = tool(returning(ToolError("no such person: bob@example.com")))
    masked = check(lambda _, __, text: text.replace("bob@example.com", "[email]"))
    with pytest.raises(ToolError, match=r"no such person: \[email\]"):
        await call([failing], check=masked)
    unavailable = ToolUnavailable("bob@example.com is down", cause="quota", wait=9)
    with pytest.raises(ToolUnavailable, match=r"\[email\] is down") as raised:
        await call([tool(returning(unavailable))], check=masked)
    assert raised.value.cause == "quota"
    with pytest.raises(ResultRefused):
        await call([failing], check=check(lambda *_: proxy.Refuse()))


async def test_arguments_that_do_not_fit_reach_no_check():
    with pytest.raises(InvalidArguments):
        await call([tool(returning("x"))], check=check(explode), arguments="{")


async def test_a_result_is_checked_before_it_is_cached_and_only_once():
    seen = []
    registry = Registry(
        [tool(returning("bob"), cache_seconds=60)],
        clock=FakeClock(),
        check=check(lambda *_: seen.append(1) or "[name]"),
    )
    for _ in range(3):
        found = await registry.execute(ToolCall("id", "t", "{}"), CallContext("me", default_timeout=5))
        assert found.text == "[name]"
    assert seen == [1]


async def test_a_cached_result_that_another_check_has_passed_is_checked_again():
    states = Registry([tool(returning("bob"), cache_seconds=60)], clock=FakeClock()).tool_states
    for version in ("1", "2", "2"):
        registry = Registry(
            [tool(returning("bob"), cache_seconds=60)],
            clock=FakeClock(),
            check=check(lambda *_, version=version: version, version=version),
            states=states,
        )
        found = await registry.execute(ToolCall("id", "t", "{}"), CallContext("me", default_timeout=5))
        assert found.text == version


async def test_the_check_has_time_of_its_own():
    async def slow(*_):
        await asyncio.sleep(0.03)

    for cache_seconds in (0, 60):
        slow_tool = tool(returning("x"), timeout=0.01, cache_seconds=cache_seconds)
        assert (await call([slow_tool], check=check(slow))).text == "x"


HITS = [
    SearchHit("https://a.example/1", "Bob's page", "Write to bob@example.com.\n\nOr call.", "2026-01-02", site="Bob"),
    SearchHit("https://b.example/", "Other", "Nothing here."),
]
ANSWER = SearchAnswer(tuple(HITS), "Bob is bob@example.com", "https://c.example/")
FOUND = output_of([*listed([("bob", ANSWER)])], most_characters=500)


@pytest.mark.parametrize("text", ["", "[taken out]", FOUND.text.replace("bob@example.com", "[email]")])
def test_after_a_replacement_a_hit_keeps_its_url_and_day_alone(text):
    output = replaced(FOUND, text)
    assert output.hits == tuple(SearchHit(hit.url, "", published=hit.published) for hit in HITS)
    assert output.sources == dict.fromkeys(FOUND.sources, "")
    assert "Bob" not in str(replace(output, text=""))


def test_after_a_replacement_a_hit_of_several_queries_is_still_one_of_its_query():
    found = [
        ("bob", SearchAnswer(tuple(HITS))),
        ("eve", SearchAnswer((SearchHit("https://d.example/", "Eve", "Here."),))),
    ]
    output = replaced(output_of([*listed(found)], most_characters=500), "[taken out]")
    assert [(hit.query, hit.title, hit.text) for hit in output.hits] == [
        ("bob", "", ""),
        ("bob", "", ""),
        ("eve", "", ""),
    ]


def test_the_cost_of_a_replaced_result_stays():
    assert replaced(ToolOutput("x", cost=2), "y") == ToolOutput("y", cost=2)
