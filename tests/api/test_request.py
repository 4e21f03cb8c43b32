"""What is worked out once for many requests, and what is not."""

import math

import pytest

from proxy.api.caller import Caller, set_caller
from proxy.api.clients import tool_headers
from proxy.api.request import Exchanges
from proxy.config import Config, OfferConfig, ServerConfig
from proxy.loop.actions import Respond, Stop, Tally
from proxy.loop.chat import ToolSpec, Turn
from proxy.ports import Model, NoObserver


def tool(name, **more):
    return ToolSpec(name, "d", {"type": "object", "properties": {}}, **more)


class Upstream:
    name, model, native_search = "up", "m", False


class Ports:
    """As much of the ports as opening an exchange needs."""

    clock = None
    model_limits = None
    observe = NoObserver()

    def __init__(self, *specs):
        self.config = Config(server=ServerConfig(), offer=OfferConfig(prefix="//"))
        self.router = self.toolset = self
        self.specs = {spec.name: spec for spec in specs}

    def resolve(self, name, *, client_key, messages=(), headers=()):
        return Model(name, name, Upstream(), limits=self.model_limits)


class Opened:
    """Exchanges of one process, opened for one caller after another."""

    def __init__(self, *specs):
        self.ports = Ports(*specs)
        self.exchanges = Exchanges(self.ports)

    async def offer(self, **asked):
        return (await self.open(**asked)).offer()

    async def open(self, *, caller=None, headers=(), **request):
        scope = {"headers": [(name.encode(), value.encode()) for name, value in headers]}
        set_caller(scope, caller or Caller("app"))
        request = {"model": "m", "messages": [{"role": "user", "content": "x"}], **request}
        return await self.exchanges.open(scope, request)


async def test_what_is_offered_to_plain_requests_is_worked_out_once():
    opened = Opened(tool("a"), tool("b", offer="on_request"))
    first = await opened.offer()
    assert first.shown == ("a",)
    assert await opened.offer() is first


async def test_a_request_that_says_something_of_tools_has_an_offer_of_its_own():
    opened = Opened(tool("a"), tool("b", offer="on_request"))
    plain = await opened.offer()
    own = {"type": "function", "function": {"name": "own"}}
    assert (await opened.offer(tools=[own])).client_tools == {"own"}
    assert (await opened.offer(tool_choice="none")).shown == ()
    assert (await opened.offer(functions=[{"name": "f"}])).shown == ()
    assert await opened.offer() is plain


async def test_how_a_request_asks_makes_a_difference():
    opened = Opened(tool("a"), tool("b", offer="on_request"))
    assert (await opened.offer()).shown == ("a",)
    assert (await opened.offer(headers=[("x-server-tools", "b")])).shown == ("b",)
    assert (await opened.offer(headers=[("x-server-tools", "none")])).shown == ()
    assert (await opened.offer(messages=[{"role": "user", "content": "// x"}])).shown == ("a", "b")
    assert (await opened.offer(max_tool_calls=0)).shown == ()
    assert (await opened.offer()).shown == ("a",)


async def test_all_means_every_tool_that_may_be_chosen():
    opened = Opened(tool("a"), tool("b", offer="declared"), tool("c", offer="never"))
    for said in ("all", " all ", "all, a"):
        assert (await opened.offer(headers=[("x-server-tools", said)])).shown == ("a", "b")
    one = Caller("one", tools=frozenset({"b"}))
    assert (await opened.offer(caller=one, headers=[("x-server-tools", "all")])).shown == ("b",)


async def test_names_that_there_are_not_are_ignored_by_name():
    opened = Opened(tool("a", aliases=("x.y",)), tool("b", group="wiki"), tool("c", offer="never"))
    for said, ignored in {
        "a,wiki,x.y": (),
        "all": (),
        "none": (),
        "": (),
        "a, d, c": ("c", "d"),
        "all,d": ("d",),
        "d\u00e9": ("unknown",),
    }.items():
        assert (await opened.open(headers=[("x-server-tools", said)])).ignored == ignored, said
    many = ",".join(f"n{number}" for number in range(100))
    assert len((await opened.open(headers=[("x-server-tools", many)])).ignored) == 32
    other = Caller("other", tools=frozenset({"b"}))
    assert (await opened.open(caller=other, headers=[("x-server-tools", "a,b")])).ignored == ("a",)


async def test_callers_do_not_share_what_they_may_use():
    opened = Opened(tool("a"), tool("b"))
    assert (await opened.offer(caller=Caller("one", tools=frozenset({"a"})))).shown == ("a",)
    assert (await opened.offer(caller=Caller("two", tools=frozenset({"b"})))).shown == ("b",)
    assert (await opened.offer(caller=Caller("one", tools=frozenset({"a"})))).shown == ("a",)


async def test_tools_that_come_and_go_are_noticed():
    opened = Opened(tool("a"))
    assert (await opened.offer()).shown == ("a",)
    opened.ports.specs = {"a": tool("a"), "b": tool("b")}
    assert (await opened.offer()).shown == ("a", "b")


async def test_the_names_that_strangers_send_do_not_pile_up():
    opened = Opened(tool("a"))
    for number in range(300):
        await opened.offer(headers=[("x-server-tools", f"n{number}")])
    assert len((await opened.open()).standing) <= 100


async def test_nor_do_long_ones():
    opened = Opened(tool("a"), tool("b"))
    long = f"b,{'x' * 300}"
    for _ in range(2):
        exchange = await opened.open(headers=[("x-server-tools", long)])
        assert (exchange.offer().shown, exchange.standing) == (("b",), None)
    assert (await opened.open()).standing == {}


async def test_the_limits_of_a_client_are_not_anothers():
    opened = Opened(tool("a"))
    hasty = Caller("hasty", limits={"deadline": 5})
    assert (await opened.open()).limits.deadline == 240
    assert (await opened.open(caller=hasty)).limits.deadline == 5
    assert (await opened.open()).limits.deadline == 240


async def test_a_request_may_lower_the_number_of_tool_calls_and_not_raise_it():
    opened = Opened(tool("a"))
    for asked, permitted in {None: 8, 3: 3, 0: 0, 9: 8}.items():
        assert (await opened.open(max_tool_calls=asked)).limits.max_tool_calls == permitted


@pytest.mark.parametrize(
    ("model", "client", "longest"),
    [(None, None, math.inf), (9, None, 9), (None, 7, 7), (9, 7, 7), (7, 9, 9)],
)
async def test_a_tool_timeout_of_a_model_or_a_client_bounds_every_tool(model, client, longest):
    opened = Opened(tool("a"))
    opened.ports.model_limits = {} if model is None else {"tool_timeout": model}
    caller = Caller("app", limits={} if client is None else {"tool_timeout": client})
    limits = (await opened.open(caller=caller)).limits
    assert (limits.max_tool_timeout, limits.tool_timeout) == (longest, 30 if longest == math.inf else longest)


def headers_of(turns, calls, stop):
    turn = Turn({"role": "assistant", "content": "x"}, "stop")
    return tool_headers([Respond(turn, turn.message, "stop", stop, Tally(turns=turns, total_tool_calls=calls))])


def test_loops_that_went_alike_are_told_by_the_same_headers():
    same = headers_of(2, 1, Stop.ANSWER)
    assert headers_of(2, 1, Stop.ANSWER) is same
    others = [headers_of(3, 1, Stop.ANSWER), headers_of(2, 2, Stop.ANSWER), headers_of(2, 1, Stop.DEADLINE)]
    assert [[value for _, value in headers] for headers in (same, *others)] == [
        [b"2", b"1", b"answer"],
        [b"3", b"1", b"answer"],
        [b"2", b"2", b"answer"],
        [b"2", b"1", b"deadline"],
    ]
