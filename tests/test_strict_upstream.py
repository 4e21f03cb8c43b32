"""Whatever a model calls, in whatever form: a strict upstream never refuses what comes back, and the answer arrives.

The upstream is the player's of the cases: it parses the arguments of every call of the history, wants ids that stand once,
results straight after their calls, and with each turn all that it carried.
"""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proxy.cases.case_format import Play
from tests.player.sdks import SdkPlayer

# The strict server's answers, and the client's functions.
FINAL = {"text": "FINAL answer."}
OWN = ("get_order", "get_user")
IDS = st.sampled_from(["call_1", "call_1", "", None, "a", "b", "chatcmpl-tool-7"])
BROKEN = st.sampled_from([
    "{}", "", "null", "[7]", "7", '"zebra"', "please look", '{"query": "N"', '{"query": "N"}}', '{"query": "N",}', "{'query': 'N'}",
    '```json\n{"query": "N"}\n```', '{"query": "a\nb N"}', "query: N", '{"query": "N"}{"query": "N"}', '{"query": "\\ud83d N"}', '{"num": "N"}',
])  # fmt: skip
CONFIG = {"limits": {"max_turns": 30, "max_tool_calls": 100}}


@st.composite
def conversations(draw):
    """A case: server turns, client turns and mixed ones, over one to three requests."""
    numbers = iter(range(1, 1000))

    def call(name):
        number = next(numbers)
        arguments = {"id": number} if name in OWN else {"query": f"question {number}"}
        if draw(st.integers(0, 2)) == 0:
            arguments = draw(BROKEN).replace("N", str(number))
        made = {"name": name, "arguments": arguments}
        identity = draw(IDS)
        made |= {"id": identity} if identity is not None else {}
        if draw(st.booleans()):
            made["extra_content"] = {"google": {"thought_signature": f"signature-{number}"}}
        if draw(st.integers(0, 3)) == 0:
            made["characters"] = draw(st.integers(1, 9))
        return made

    def turn(names):
        made = {"calls": [call(name) for name in names]}
        made |= draw(
            st.sampled_from([{}, {"text": "I look."}, {"reasoning": "Hm."}, {"reasoning": "Hm.", "text": "I look."}])
        )
        if draw(st.integers(0, 2)) == 0:
            made["message"] = {
                "reasoning_details": [{"type": "reasoning.encrypted", "data": f"details-{next(numbers)}"}]
            }
        return made

    servers = st.lists(st.sampled_from(["web_search", "web_search", "current_time", "nobody"]), min_size=1, max_size=3)
    exchanges, ask = [], {"functions": list(OWN), **draw(st.sampled_from([{}, {"search": True}]))}
    for _ in range(draw(st.integers(0, 2))):
        names = draw(
            st.permutations(draw(servers | st.just([])) + draw(st.lists(st.sampled_from(OWN), min_size=1, max_size=3)))
        )
        turns = [turn(asked) for asked in draw(st.lists(servers, max_size=2))]
        own = [name for name in names if name in OWN]
        expect = {"calls": [{"name": name} for name in own], "finish": "tool_calls"}
        exchanges.append({"ask": ask, "upstream": [*turns, turn(names)], "expect": expect})
        ask = {"results": [f"result {next(numbers)}" for _ in own]}
    turns = [turn(asked) for asked in draw(st.lists(servers, max_size=2))]
    exchanges.append({"ask": ask, "upstream": [*turns, FINAL], "expect": {"text": FINAL["text"], "finish": "stop"}})
    return {"strict": ["objects", "signatures", "reasoning_details", "turns"], "config": CONFIG, "exchanges": exchanges}


@pytest.fixture(scope="module")
def anyio_backend():
    return "asyncio"


@pytest.fixture(scope="module")
async def player():
    async with SdkPlayer() as one:
        yield one


def with_good_arguments(case):
    """The case with objects as arguments of the client's own calls."""
    for call in (
        call for exchange in case["exchanges"] for turn in exchange["upstream"] for call in turn.get("calls", ())
    ):
        if call["name"] in OWN and isinstance(call["arguments"], str):
            call["arguments"] = {"id": 7}
    return case


@pytest.mark.parametrize("mode", ["whole", "stream"])
@pytest.mark.parametrize("surface", ["chat", "responses", "responses-id", "messages", "messages-thinking"])
@settings(
    max_examples=settings.default.max_examples * 2 // 3,  # in `make fuzz` ten thousand, over the ten ways to play
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
)
@given(case=conversations())
async def test_nothing_that_comes_back_is_refused_and_the_answer_arrives(player, surface, mode, case):
    if surface in {"chat", "responses"}:  # here the arguments of its own calls are the client's affair
        case = with_good_arguments(case)
    await player.play(Play(case, surface, mode))
