"""Which tools and limits a request has, whatever requests came before it."""

import gc
import math

import pytest

from proxy.api.access import CALLER, Caller
from proxy.api.asked import Asked
from proxy.api.credentials import RequestTools
from proxy.api.request import RequestResolver, ToolsChosen, take_prefix
from proxy.api.runs import tool_headers
from proxy.config.model import Config, OfferConfig, ServerConfig
from proxy.loop.actions import Respond, Stop
from proxy.loop.prompts import PICTURES
from proxy.loop.tally import Tally
from proxy.ports import NoObserver
from proxy.upstreams.profile import OPENAI
from proxy.upstreams.router import RoutedModel
from proxy.wire.chat import ToolSpec, Turn


def tool(name, **more):
    return ToolSpec(name, "d", {"type": "object", "properties": {}}, **more)


class Upstream:
    name, model, traits = "up", "m", OPENAI


class Ports:
    """As much of the ports as resolving a request needs."""

    clock = None
    model_limits = None
    user_headers = frozenset()
    toolset_for = None
    for_agent = False
    observe = NoObserver()

    def __init__(self, *specs):
        self.config = Config(server=ServerConfig(), offer=OfferConfig(mode="on_request", prefix="//"))
        self.router = self.toolset = self
        self.specs, self.unlisted = {spec.name: spec for spec in specs}, {}

    def resolve(self, name, *, client_key, messages=(), headers=(), conversation=None, may_use=None):
        return RoutedModel(name, name, Upstream(), limits=self.model_limits)


class Requests:
    """The requests of one process, resolved for one caller after another."""

    def __init__(self, *specs):
        self.ports = Ports(*specs)
        self.resolver = RequestResolver(self.ports)

    async def offer(self, **asked):
        return (await self.resolve(**asked)).offer

    async def resolve(self, *, caller=None, headers=(), **request):
        scope = {"headers": [(name.encode(), value.encode()) for name, value in headers]}
        scope[CALLER] = caller or Caller("app")
        request = {"model": "m", "messages": [{"role": "user", "content": "x"}], **request}
        own = RequestTools(self.ports.toolset)
        return self.resolver.finish(await self.resolver.access(scope, Asked(chat=request), own=own), ToolsChosen())


async def test_a_request_with_tools_of_its_own_changes_no_other_offer():
    requests = Requests(tool("a"), tool("b", offer="on_request"))
    plain = await requests.offer()
    own = {"type": "function", "function": {"name": "own"}}
    assert (await requests.offer(tools=[own])).client_tools == {"own"}
    assert (await requests.offer(tool_choice="none")).offered == ()
    assert (await requests.offer(functions=[{"name": "f"}])).offered == ()
    assert await requests.offer() == plain


async def test_how_a_request_asks_makes_a_difference():
    requests = Requests(tool("a"), tool("b", offer="on_request"))
    assert (await requests.offer()).offered == ("a",)
    assert (await requests.offer(headers=[("x-server-tools", "b")])).offered == ("b",)
    assert (await requests.offer(headers=[("x-server-tools", "none")])).offered == ()
    assert (await requests.offer(headers=[("x-server-tools", " None")])).offered == ()
    assert (await requests.offer(messages=[{"role": "user", "content": "// x"}])).offered == ("a", "b")
    assert (await requests.offer(max_tool_calls=0)).offered == ()
    assert (await requests.offer()).offered == ("a",)


async def test_all_means_every_tool_that_may_be_chosen():
    requests = Requests(tool("a"), tool("b", offer="declared"), tool("c", offer="never"))
    for said in ("all", " all ", "all, a"):
        assert (await requests.offer(headers=[("x-server-tools", said)])).offered == ("a", "b")
    one = Caller("one", tools=frozenset({"b"}))
    assert (await requests.offer(caller=one, headers=[("x-server-tools", "all")])).offered == ("b",)


async def test_names_that_there_are_not_are_ignored_by_name():
    requests = Requests(tool("a", aliases=("x.y",)), tool("b", group="wiki"), tool("c", offer="never"))
    for said, ignored in {
        "a,wiki,x.y": (),
        "all": (),
        "none": (),
        "": (),
        "a, d, c": ("c", "d"),
        "all,d": ("d",),
        "d\u00e9": ("unknown",),
    }.items():
        assert (await requests.resolve(headers=[("x-server-tools", said)])).ignored == ignored, said
    many = ",".join(f"n{number}" for number in range(100))
    assert len((await requests.resolve(headers=[("x-server-tools", many)])).ignored) == 32
    other = Caller("other", tools=frozenset({"b"}))
    assert (await requests.resolve(caller=other, headers=[("x-server-tools", "a,b")])).ignored == ("a",)


async def test_callers_do_not_share_what_they_may_use():
    requests = Requests(tool("a"), tool("b"))
    assert (await requests.offer(caller=Caller("one", tools=frozenset({"a"})))).offered == ("a",)
    assert (await requests.offer(caller=Caller("two", tools=frozenset({"b"})))).offered == ("b",)
    assert (await requests.offer(caller=Caller("one", tools=frozenset({"a"})))).offered == ("a",)


async def test_tools_that_come_and_go_are_noticed():
    requests = Requests(tool("a"))
    assert (await requests.offer()).offered == ("a",)
    requests.ports.specs = {"a": tool("a"), "b": tool("b")}
    assert (await requests.offer()).offered == ("a", "b")


async def test_selections_that_strangers_send_do_not_pile_up():
    requests = Requests(tool("a"), tool("b"))
    before = len(gc.get_objects())
    for number in range(12_000):
        await requests.offer(headers=[("x-server-tools", f"n{number}")])
    for number in range(100):
        await requests.offer(headers=[("x-server-tools", f"b,n{number},{'x' * 300}")])
    gc.collect()
    assert len(gc.get_objects()) - before < 5000 * 12
    assert (await requests.offer(headers=[("x-server-tools", f"b,{'x' * 300}")])).offered == ("b",)


async def test_a_request_of_one_call_at_a_time_has_one_call_at_a_time():
    requests = Requests(tool("a"))
    assert (await requests.resolve(parallel_tool_calls=False)).limits.max_parallel_tools == 1
    assert (await requests.resolve(parallel_tool_calls=True)).limits.max_parallel_tools == 8


async def test_the_limits_of_a_client_are_not_anothers():
    requests = Requests(tool("a"))
    hasty = Caller("hasty", limits={"deadline": 5})
    assert (await requests.resolve()).limits.deadline == 240
    assert (await requests.resolve(caller=hasty)).limits.deadline == 5
    assert (await requests.resolve()).limits.deadline == 240


async def test_a_request_may_lower_the_number_of_tool_calls_and_not_raise_it():
    requests = Requests(tool("a"))
    for asked, permitted in {None: 8, 3: 3, 0: 0, 9: 8}.items():
        assert (await requests.resolve(max_tool_calls=asked)).limits.max_tool_calls == permitted


@pytest.mark.parametrize(
    ("model", "client", "longest"),
    [(None, None, math.inf), (9, None, 9), (None, 7, 7), (9, 7, 7), (7, 9, 9)],
)
async def test_a_tool_timeout_of_a_model_or_a_client_bounds_every_tool(model, client, longest):
    requests = Requests(tool("a"))
    requests.ports.model_limits = {} if model is None else {"tool_timeout": model}
    caller = Caller("app", limits={} if client is None else {"tool_timeout": client})
    limits = (await requests.resolve(caller=caller)).limits
    assert (limits.max_tool_timeout, limits.tool_timeout) == (longest, 30 if longest == math.inf else longest)


def headers_of(turns, calls, stop):
    turn = Turn({"role": "assistant", "content": "x"}, "stop")
    return tool_headers([Respond(turn, turn.message, "stop", stop, Tally(turns=turns, total_tool_calls=calls))])


def test_the_headers_of_a_whole_answer_count_turns_and_calls():
    assert headers_of(2, 1, Stop.DEADLINE) == (
        (b"x-tool-turns", b"2"),
        (b"x-tool-calls", b"1"),
        (b"x-tool-stop", b"deadline"),
    )


@pytest.mark.parametrize(
    ("content", "left"),
    [
        ("// weather", "weather"),
        ("  //weather", "weather"),
        ("weather //", None),
        (
            [{"type": "text", "text": "// weather"}, {"type": "image_url"}],
            [{"type": "text", "text": "weather"}, {"type": "image_url"}],
        ),
        ([{"type": "text", "text": "weather"}, {"type": "text", "text": "// not here"}], None),
        ([{"type": "image_url"}], None),
        (
            [{"type": "image_url"}, {"type": "text", "text": "//x"}],
            [{"type": "image_url"}, {"type": "text", "text": "x"}],
        ),
        (None, None),
    ],
)
def test_the_prefix_is_taken_off_the_last_question(content, left):
    messages = [{"role": "user", "content": "// earlier"}, {"role": "user", "content": content}, {"role": "assistant"}]
    taken = take_prefix(messages, "//")
    assert (taken and taken[1]["content"]) == left
    assert taken is None or taken[0] == messages[0]


def test_pictures_of_results_are_no_question():
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}
    for said in ([], [{"type": "text", "text": PICTURES}]):
        results = [{"role": "tool", "content": "x"}, {"role": "user", "content": [*said, picture]}]
        messages = [{"role": "user", "content": "// look"}, {"role": "assistant"}, *results]
        assert take_prefix(messages, "//") == [{"role": "user", "content": "look"}, *messages[1:]]
    asked = {"role": "user", "content": [{"type": "text", "text": "And this?"}, picture]}
    assert take_prefix([messages[0], {"role": "tool", "content": "x"}, asked], "//") is None


def test_without_a_question_there_is_no_prefix():
    assert take_prefix([{"role": "system", "content": "// x"}], "//") is None
