"""The end of an upstream's answer: a turn is complete with its finish reason, whatever the connection does then."""

import asyncio

import pytest

from proxy.upstreams import ending
from tests.api.surfaces import RELAY_TOO, SEARCH, on
from tests.fakes import call_chunk, chunk, event, stream, turn

USAGE = event({
    "id": "up-1",
    "object": "chat.completion.chunk",
    "created": 5,
    "model": "the-upstream-model",
    "choices": [],
    "usage": {"prompt_tokens": 4321, "completion_tokens": 7, "total_tokens": 4328},
})  # fmt: skip
HELLO = chunk({"role": "assistant", "content": "Hello."})
COMMENT = b": still here\n\n"


@pytest.fixture
def briefly(monkeypatch):
    """Waits for the end of a stream are short, so that no test takes two seconds."""
    monkeypatch.setattr(ending, "AFTER_FINISH", 0.02)


def never() -> asyncio.Event:
    """The rest of a response that does not come."""
    return asyncio.Event()


def later(seconds: float) -> asyncio.Event:
    """A pause of the upstream's."""
    pause = asyncio.Event()
    asyncio.get_running_loop().call_later(seconds, pause.set)
    return pause


@RELAY_TOO
@pytest.mark.usefixtures("briefly")
@pytest.mark.parametrize(
    "rest", [[], [COMMENT], [USAGE], [b"data: [PING]\n\n"]], ids=["silence", "comment", "usage", "heartbeat"]
)
async def test_a_stream_without_done_that_stays_open_ends_with_its_finish_reason(surface, rest):
    answer = await surface.ask(stream(HELLO, chunk({}, "stop"), *rest, never(), done=False))
    assert (answer.text, answer.error) == ("Hello.", None)
    await surface.upstream.left.wait()  # the connection is closed, and has no other request


@RELAY_TOO
@pytest.mark.usefixtures("briefly")
async def test_comments_after_the_finish_reason_do_not_keep_a_stream_open(surface):
    hundred = [part for at in range(100) for part in (later(at / 100), COMMENT)]
    answer = await surface.ask(stream(HELLO, chunk({}, "stop"), *hundred, never(), done=False))
    assert (answer.text, answer.error) == ("Hello.", None)
    await surface.upstream.left.wait()


@RELAY_TOO
@pytest.mark.parametrize("cut", [[None], [b'data: {"id": "up-1", "cho', None], [b'data: {"id": "up-1", "cho']])
async def test_a_connection_that_breaks_off_after_the_finish_reason_takes_nothing_back(surface, cut):
    answer = await surface.ask(stream(HELLO, chunk({}, "stop"), *cut, done=False))
    assert (answer.text, answer.error) == ("Hello.", None)


@RELAY_TOO
async def test_a_connection_that_breaks_off_before_the_finish_reason_is_an_error(surface):
    answer = await surface.ask(stream(HELLO, None, done=False))
    assert answer.error


async def test_the_calls_of_a_turn_run_although_its_stream_stays_open(surface, briefly):
    call = stream(call_chunk(SEARCH), chunk({}, "tool_calls"), never(), done=False)
    answer = await surface.ask(call, turn("Found."), search=True)
    assert (answer.text, len(surface.upstream.searches)) == ("Found.", 1)


async def test_usage_that_comes_after_the_finish_reason_is_counted(surface, monkeypatch):
    monkeypatch.setattr(ending, "AFTER_FINISH", 0.5)
    answer = await surface.ask(stream(HELLO, chunk({}, "stop"), later(0.02), USAGE, never(), done=False))
    assert "4321" in answer.raw


async def test_a_finish_reason_with_each_call_of_glm_does_not_end_the_turn(surface, briefly):
    calls = stream(
        call_chunk(("u1", "web_search", {"query": "n1"}), finish_reason="tool_calls"),
        later(0.1),
        call_chunk(("u2", "web_search", {"query": "n2"}), at=1, finish_reason="tool_calls"),
        chunk({"content": ""}, "tool_calls"),
        never(),
        done=False,
    )
    await surface.ask(calls, turn("Found."), search=True, profile="glm")
    assert {one["q"] for one in surface.upstream.searches} == {"n1", "n2"}


@on("relay-whole", "relay-streamed")
async def test_a_stream_of_several_choices_goes_on_until_each_has_its_finish_reason(surface, briefly):
    def choice(index, delta, reason=None):
        return chunk(choices=[{"index": index, "delta": delta, "finish_reason": reason}])

    begin = (
        choice(0, {"role": "assistant", "content": "One."}),
        choice(1, {"role": "assistant", "content": "Tw"}),
        choice(0, {}, "stop"),
    )
    parts = stream(*begin, later(0.1), choice(1, {"content": "o."}), choice(1, {}, "stop"), never(), done=False)
    answer = await surface.ask(parts, body={"n": 2})
    assert answer.error is None
    assert "o." in answer.raw.partition("Tw")[2]
