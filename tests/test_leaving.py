"""Clients that go, at any moment: nothing of theirs is left behind."""

import asyncio
import gc
import os
import random
import time
from contextlib import asynccontextmanager, suppress

import httpx
import orjson
import pytest

from proxy.api.messages.message import MessageBuilder
from proxy.api.request import ResolvedRequest
from proxy.api.responses.output import OutputBuilder
from proxy.loop.run import Run
from tests.fakes import FakeUpstream, Reply, chunk, stream, streamed, whole
from tests.serving import proxy_of

CAPACITY, WAVES = 50, 3  # in eight modes: 1,200 clients
STORM = 6  # times that each of as many clients comes and leaves, beside as many that stay
ASK = {"model": "m", "messages": [{"role": "user", "content": "x"}], "input": "x", "max_tokens": 9}
MODES = {
    "relayed": ("/v1/chat/completions", {"tool_choice": "none"}),
    "in the loop": ("/v1/chat/completions", {}),
    "responses": ("/v1/responses", {}),
    "messages": ("/v1/messages", {}),
    "handed through": ("/v1/embeddings", {}),
}


class Patient(FakeUpstream):
    """An upstream that does not end what it has begun, and knows how many are still waiting for it."""

    open = 0

    async def __call__(self, scope, receive, send):
        self.open += 1
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.open -= 1


def patient(dice):
    """Now it asks for a search, now it begins an answer, and in no case does it come to an end."""
    never = asyncio.Event()
    call = [("c", "web_search", {"query": "q"})]

    def reply(request):
        if dice.random() < 0.5 and request.get("tools") and request["messages"][-1]["role"] != "tool":
            return streamed(calls=call) if request.get("stream") else whole(calls=call)
        begun = [chunk({"content": "One"})] if dice.random() < 0.7 else []
        return stream(*begun, never) if request.get("stream") else Reply([never])

    search = Reply([never]) if dice.random() < 0.5 else Reply([b'{"organic":[]}'])
    return Patient([reply], search=search)


async def leave(url, path, body, dice, patience):
    """Send some of a request, perhaps read some of the answer, and go: politely or not."""
    host, port = url.removeprefix("http://").split(":")
    data = orjson.dumps(body)
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    request = head.encode() + data
    reader, writer = await asyncio.open_connection(host, int(port))
    with suppress(ConnectionError, TimeoutError):
        writer.write(request if dice.random() < 0.8 else request[: dice.randrange(len(request))])
        async with asyncio.timeout(dice.random() * patience):
            while await reader.read(1000):
                pass
    if dice.random() < 0.5:
        writer.transport.abort()
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


@asynccontextmanager
async def settled(seconds, condition):
    """A second is all that it may take."""
    yield
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - what is waited for is that nothing is left to tell of it
            await asyncio.sleep(0.02)


@pytest.mark.parametrize(("path", "extra"), MODES.values(), ids=MODES.keys())
@pytest.mark.parametrize("streaming", [False, True])
async def test_clients_that_leave_at_any_moment_leave_nothing_behind(path, extra, streaming):
    dice = random.Random(f"{path}{extra}{streaming}")
    more = f"server: {{{{max_concurrent_requests: {CAPACITY}, max_queued_requests: 0}}}}".format()
    body = {**ASK, **extra, "stream": streaming}
    upstream = patient(dice)
    endless, upstream.replies = upstream.replies, [whole("Hi")]
    async with proxy_of(upstream, more=more) as url:
        tasks, files = len(asyncio.all_tasks()), open_files()
        began = time.monotonic()
        assert await statuses(url + path, {**ASK, **extra}) == [200] * CAPACITY
        patience = time.monotonic() - began  # however busy the machine is, some get far and some do not
        upstream.replies = endless
        for _ in range(WAVES):
            async with settled(1, lambda: not upstream.open):
                await asyncio.gather(*(leave(url, path, body, dice, patience) for _ in range(CAPACITY)))
        assert len(upstream.heads) > CAPACITY + WAVES * CAPACITY // 5
        async with settled(1, lambda: len(asyncio.all_tasks()) <= tasks):
            pass
        async with settled(1, lambda: open_files() <= files + 2 * CAPACITY):  # idle connections are kept, both ends
            pass
        upstream.replies = [whole("Hi")]
        assert await statuses(url + path, {**ASK, **extra}) == [200] * CAPACITY


@pytest.mark.parametrize(("path", "extra"), MODES.values(), ids=MODES.keys())
async def test_a_client_that_leaves_breaks_nobody_elses_request(path, extra):
    """The upstream has `retries: 0`: whoever loses its connection to somebody who leaves gets a 502."""
    dice = random.Random(path)
    body = {**ASK, **extra}
    async with proxy_of(FakeUpstream([whole("Hi")])) as url:
        began = time.monotonic()
        assert await statuses(url + path, body) == [200] * CAPACITY
        patience = time.monotonic() - began  # some leave before they are answered, some in that moment, some after it

        async def come_and_go():
            for _ in range(STORM):
                await leave(url, path, body, dice, patience)

        leaving = asyncio.gather(*(come_and_go() for _ in range(CAPACITY)))
        stayed = []
        while not leaving.done():
            stayed += await statuses(url + path, body)
        await leaving
    assert set(stayed) == {200}


@pytest.fixture
def uncollected():
    """The garbage collector does not run, so only what nobody holds is freed, and it knows of no object made before."""
    gc.collect()
    gc.freeze()
    gc.disable()
    yield
    gc.enable()
    gc.unfreeze()


CUT = stream(chunk({"content": "One"}), None, done=False)
REFUSED = Reply([b'{"error": {"message": "no"}}'], status=400)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
@pytest.mark.parametrize("reply", [streamed("Hi"), CUT, REFUSED, None], ids=["well", "cut", "refused", "left"])
@pytest.mark.usefixtures("uncollected")
async def test_what_a_request_has_held_is_let_go_of_with_it(path, reply):
    never = stream(chunk({"content": "One"}), asyncio.Event())
    upstream = FakeUpstream([reply or never])
    async with proxy_of(upstream) as url, httpx.AsyncClient() as client, settled(5, lambda: not held()):
        for _ in range(3):
            async with client.stream("POST", url + path, json={**ASK, "stream": True}) as answer:
                if reply:
                    await answer.aread()
                else:
                    assert await anext(answer.aiter_bytes())


def held():
    """Parts of the test's requests that are still in memory."""
    return [
        thing for thing in gc.get_objects() if isinstance(thing, ResolvedRequest | Run | OutputBuilder | MessageBuilder)
    ]


async def statuses(url, body):
    """What as many clients as there are places are answered, all at the same time."""
    async with httpx.AsyncClient(limits=httpx.Limits(max_connections=None), timeout=30) as client:
        answers = await asyncio.gather(*(client.post(url, json=body) for _ in range(CAPACITY)))
    return [answer.status_code for answer in answers]


def open_files():
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a list is what is counted
