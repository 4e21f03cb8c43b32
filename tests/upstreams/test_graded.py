"""An upstream that misbehaves on purpose and grades its client: llmock, in front of it the proxy, in front of that the SDK."""

import asyncio
import functools
import logging
from dataclasses import replace
from itertools import product

import openai
import pytest
from llmock.scenarios import Fail, Match, StreamFault, ToolFault

from proxy.app import SystemClock
from proxy.app.configuration import parse
from proxy.kit.breaker import Backoff
from tests.serving import serving_as_shipped

CONFIG = """
upstreams:
  up: {{base_url: {upstream}, api_key: upstream-secret, breaker: {{failures: 1000}}, timeouts: {{read: {read}}}}}
models: {{"*": {{upstream: up}}}}
tools: {{current_time: {{type: clock}}}}
"""
WHAT = "What time is it?"


async def chat(client, model, **how):
    asked = await client.chat.completions.create(model=model, messages=[{"role": "user", "content": WHAT}], **how)
    if not how.get("stream"):
        return asked.choices[0].message.content
    return "".join([chunk.choices[0].delta.content or "" async for chunk in asked if chunk.choices])


async def responses(client, model, **how):
    asked = await client.responses.create(model=model, input=WHAT, store=False, **how)
    if not how.get("stream"):
        return asked.output_text
    return "".join([event.delta async for event in asked if event.type == "response.output_text.delta"])


WHOLE = {
    "relayed": functools.partial(chat, extra_headers={"x-server-tools": "none"}),
    "in-the-loop": chat,
    "responses": responses,
}
STREAMED = {f"{way}-streamed": functools.partial(ask, stream=True) for way, ask in WHOLE.items()}
WAYS = {**WHOLE, **STREAMED}

PASSING = [Fail(429, retry_after=0.4), Fail(503, retry_after=0.3, times=2), Fail(500), Fail(502), Fail(408), Fail(409)]
# What an upstream answers -> what the client is told; its key is the operator's, who is whoever calls.
FINAL = {
    400: (400, openai.BadRequestError),
    401: (424, openai.APIStatusError),
    403: (424, openai.APIStatusError),
    404: (404, openai.NotFoundError),
    422: (422, openai.UnprocessableEntityError),
}
# What the grader measures between two attempts on its own clock; a busy machine makes any of it longer or shorter.
MEASURED = {"no_backoff", "retry_after_ignored"}
BROKEN = [StreamFault(kind, after_chunks=at) for kind in ("disconnect", "truncate", "malformed") for at in (0, 1, 4)]


@pytest.fixture(autouse=True)
def logging_as_before():
    """llmock's server sets uvicorn's loggers up, for the whole process."""
    yield
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [], True


@pytest.fixture
def read():
    """`timeouts.read`; a busy machine makes everybody slow."""
    return 60


class Waits(SystemClock):
    """The real time, which remembers how long the proxy has meant to wait."""

    def __init__(self):
        self.waits = []

    async def sleep(self, seconds):
        self.waits.append(seconds)
        await asyncio.sleep(seconds)


@pytest.fixture
def clock():
    return Waits()


@pytest.fixture
async def client(llmock, monkeypatch, sdk, read, clock):
    """Of a proxy in front of llmock that waits for less long than usual, unless it is asked to, and without dice."""
    quick = functools.partial(Backoff, first=0.3, jitter=lambda: 1.0)
    monkeypatch.setattr("proxy.upstreams.router.Backoff", quick)
    config = parse(CONFIG.format(upstream=llmock.base_url(), read=read), {})
    async with serving_as_shipped(config, clock=clock) as url, sdk(url) as client:
        yield client


def conversations(llmock, ways, faults):
    """Every way of asking under every fault: the ways, by the names of models that stand for nothing else."""
    found = {f"{way} {fault}": (ask, fault) for (way, ask), fault in product(ways.items(), faults)}
    llmock.add(*(replace(fault, match=Match(model=model)) for model, (_, fault) in found.items()))
    return {model: ask for model, (ask, _) in found.items()}


async def outcomes(client, asks):
    """The answer or the error that comes of each, all asked at the same time."""
    found = await asyncio.gather(*(ask(client, model) for model, ask in asks.items()), return_exceptions=True)
    return dict(zip(asks, found, strict=True))


def unanswered(outcomes):
    """Those in which the client was told of an error, or nothing."""
    return [model for model, outcome in outcomes.items() if not isinstance(outcome, str) or not outcome]


async def verdict(llmock):
    """Raises what it finds, warnings too, but for what it measures."""
    judged = await asyncio.to_thread(llmock.verdict)
    found = tuple(one for one in judged.findings if one.code not in MEASURED)
    replace(judged, findings=found).assert_ok(strict=True)


async def test_what_passes_is_sat_out_for_as_long_as_is_asked_and_the_client_gets_its_answer(llmock, client, clock):
    found = await outcomes(client, conversations(llmock, WAYS, PASSING))
    assert unanswered(found) == []
    assert sorted(clock.waits) == sorted([0.4, 0.3, 0.6, 0.3, 0.3, 0.3, 0.3] * len(WAYS))
    await verdict(llmock)


async def test_what_does_not_pass_is_the_clients_at_once(llmock, client):
    found = await outcomes(client, conversations(llmock, WAYS, [Fail(status, times=None) for status in FINAL]))
    told = sorted((error.status_code, type(error).__name__) for error in found.values())
    assert told == sorted((status, kind.__name__) for status, kind in FINAL.values() for _ in WAYS)
    assert len(llmock.requests) == len(found)
    await verdict(llmock)


async def test_an_outage_is_not_stormed_at(llmock, client, clock):
    found = await outcomes(client, conversations(llmock, WAYS, [Fail(500, times=None)]))
    assert [error.status_code for error in found.values()] == [502] * len(WAYS)
    assert len(llmock.requests) == len(WAYS) * 3
    assert sorted(clock.waits) == sorted([0.3, 0.6] * len(WAYS))
    await verdict(llmock)


async def test_a_stream_that_breaks_is_mended_unseen_or_the_client_is_told(llmock, client):
    llmock.pace(20)  # so that it sees who stops reading
    asks = conversations(llmock, STREAMED, BROKEN)
    found = await outcomes(client, asks)
    told = unanswered(found)
    assert told
    assert all(isinstance(found[model], openai.APIError) and "after_chunks=0" not in model for model in told)
    await asyncio.to_thread(lambda: llmock.requests)  # it has seen them all stop, and so counts what follows as retries
    assert unanswered(await outcomes(client, {model: asks[model] for model in told})) == []
    await verdict(llmock)


@pytest.mark.parametrize("read", [0.3])
async def test_a_stream_that_stands_still_is_given_up(llmock, client):
    found = await outcomes(client, conversations(llmock, STREAMED, [StreamFault("stall", stall_seconds=5)]))
    assert all(isinstance(error, openai.APIError) for error in found.values())
    await verdict(llmock)


async def test_a_call_that_cannot_be_run_does_not_end_the_conversation(llmock, client):
    ways = {way: ask for way, ask in WAYS.items() if "relayed" not in way}
    faults = [ToolFault("malformed_arguments"), ToolFault("unknown_tool")]
    assert unanswered(await outcomes(client, conversations(llmock, ways, faults))) == []
    await verdict(llmock)


async def test_who_asks_for_more_patience_than_we_have_is_not_asked_again_and_the_client_is_told(llmock, client):
    found = await outcomes(client, conversations(llmock, WAYS, [Fail(429, retry_after=30), Fail(503, retry_after=30)]))
    assert [error.response.headers["retry-after"] for error in found.values()] == ["30"] * len(found)
    assert len(llmock.requests) == len(found)
