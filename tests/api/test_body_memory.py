"""What the bodies of open requests take of memory: what a body costs, and the bound of the process over real sockets."""

import asyncio
import sys
from contextlib import AsyncExitStack, suppress

import httpx
import openai
import orjson
import pytest

from proxy.api.body import read_body
from proxy.api.body_memory import PLAIN, SHARE, BodyMemory, Share, available_memory, cost_of
from proxy.config.model import ServerConfig
from proxy.wire.errors import Overloaded, RequestTimeout, RequestTooLarge
from tests.fakes import FakeClock, Reply, whole
from tests.serving import proxy_of

SIZE = 200_000
ONE_AT_A_TIME = f"server: {{max_body_memory: {SIZE * 4}}}"  # a body of plain text counts three times
KINDS = {
    "ASCII": b'{"a":"%s"}' % (b"x" * SIZE),
    "one character of Latin-1": b'{"a":"%s"}' % (b"x" * SIZE + "é".encode()),
    "one that is not": b'{"a":"%s"}' % (b"x" * SIZE + "я".encode()),
    "an emoji": b'{"a":"%s"}' % (b"x" * SIZE + "😀".encode()),
    "an emoji, escaped": b'{"a":"%s\\ud83d\\ude00"}' % (b"x" * SIZE),
    "Chinese": b'{"a":"%s"}' % ("中".encode() * (SIZE // 3)),
    "messages": b"[%s]" % b",".join([b'{"role":"user","content":"hello there, how"}'] * (SIZE // 46)),
    "objects": b"[%s]" % b",".join([b"{}"] * (SIZE // 3)),
    "lists": b"[%s]" % b",".join([b"[]"] * (SIZE // 3)),
    "lists in lists": b"[%s]" % b",".join([b"[[]]"] * (SIZE // 5)),
    "objects with a member": b"[%s]" % b",".join([b'{"a":1}'] * (SIZE // 8)),
    "objects in objects": b"[%s]" % b",".join([b'{"a":' * 100 + b"1" + b"}" * 100] * (SIZE // 602)),
    "names that differ": b"[%s]" % b",".join([b'{"%06d":1}' % at for at in range(SIZE // 13)]),
    "short texts": b"[%s]" % b",".join([b'"a"'] * (SIZE // 4)),
    "numbers": b"[%s]" % b",".join([b"1.5"] * (SIZE // 4)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_body_costs_no_more_than_it_is_counted_for(kind):
    body = KINDS[kind]
    parsed = orjson.loads(body)
    written = orjson.dumps(parsed)  # which leaves UTF-8 in a text that is not ASCII
    cost = sum(sizes_in([body, parsed, written])) - 1000  # of what is there whatever is in it
    assert cost <= cost_of(body)
    assert cost <= counted_with_room(body)


def counted_with_room(body):
    memory = BodyMemory(10**9)
    Share(memory).count_parsed(body)
    return memory.used


def sizes_in(value):
    """Bytes of everything that a value holds, by object: what is in it twice is there once."""
    seen, found = {}, [value]
    while found:
        one = found.pop()
        if id(one) in seen:
            continue
        seen[id(one)] = sys.getsizeof(one)
        found += one if isinstance(one, list) else [*one, *one.values()] if isinstance(one, dict) else ()
    return seen.values()


def test_every_share_is_given_back_once():
    memory = BodyMemory(1000)
    one, other = Share(memory), Share(memory)
    one.reserve(100 * PLAIN)
    one.reserve(200 * PLAIN)
    other.count_parsed(b"x" * 100)
    assert memory.used == 600 + 300
    with pytest.raises(Overloaded):
        one.reserve(300 * PLAIN)
    assert memory.used == 600 + 300
    for _ in range(2):
        one.reserve(0)
    other.reserve(0)
    assert memory.used == 0


def test_what_is_only_announced_is_not_counted():
    memory = BodyMemory(1000)
    Share(memory).require(300 * PLAIN)
    Share(memory).require(300 * PLAIN)
    assert memory.used == 0
    with pytest.raises(RequestTooLarge):
        Share(memory).require(400 * PLAIN)


def large(text="x" * SIZE):
    return orjson.dumps({"model": "m", "messages": [{"role": "user", "content": text}]})


async def post(url, body, path="/v1/chat/completions"):
    async with httpx.AsyncClient(timeout=30) as client:
        return await client.post(url + path, content=body, headers={"x-server-tools": "none"})


@pytest.fixture
def gate(upstream):
    """Holds back the answers."""
    held = asyncio.Event()
    upstream.replies = [Reply([held, *whole("Hi").body])]
    return held


async def test_bodies_beyond_the_memory_for_them_are_refused_until_there_is_room_again(upstream, gate, sdk):
    async with proxy_of(upstream, more=ONE_AT_A_TIME) as url:
        first = asyncio.ensure_future(post(url, large()))
        await upstream.asked.wait()
        async with sdk(url) as client:
            with pytest.raises(openai.InternalServerError) as caught:
                await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x" * SIZE}])
        refused = caught.value
        assert (refused.status_code, refused.code) == (503, "overloaded")
        assert int(refused.response.headers["retry-after"]) >= 1
        small = asyncio.ensure_future(post(url, large("Hi")))  # there is room for it
        gate.set()
        assert (await first).status_code == 200
        assert (await small).status_code == 200
        assert (await post(url, large())).status_code == 200


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/embeddings", "/v1/responses/compact"])
async def test_a_length_that_does_not_fit_is_refused_before_the_body_is_sent(upstream, gate, path):
    async with proxy_of(upstream, more=ONE_AT_A_TIME) as url, AsyncExitStack() as stack:
        first = asyncio.ensure_future(post(url, large()))
        await upstream.asked.wait()
        reader, _ = await connected(stack, url, f"POST {path} HTTP/1.1\r\nhost: h\r\ncontent-length: {SIZE}\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 503")
        gate.set()
        await first


async def test_a_body_without_a_length_is_counted_as_it_comes(upstream, gate):
    async def pieces():
        yield large()[: SIZE // 2]
        yield large()[SIZE // 2 :]

    async with proxy_of(upstream, more=ONE_AT_A_TIME) as url:
        first = asyncio.ensure_future(post(url, large()))
        await upstream.asked.wait()
        refused = await post(url, pieces())
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "overloaded")
        gate.set()
        await first
        assert (await post(url, pieces())).status_code == 200


async def test_clients_that_announce_much_and_send_little_take_no_room_from_others(upstream):
    upstream.replies = [whole("Hi")]
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: h\r\ncontent-length: {SIZE}\r\n\r\n{{"
    async with proxy_of(upstream, more=ONE_AT_A_TIME) as url, AsyncExitStack() as stack:
        for _ in range(20):
            await connected(stack, url, head)
        assert (await post(url, large())).status_code == 200


@pytest.mark.parametrize("used_by_others", [0, 600])
async def test_while_memory_is_scarce_a_large_body_has_no_more_time_than_a_small_one(used_by_others):
    clock, memory = FakeClock(), BodyMemory(1000)
    Share(memory).reserve(used_by_others // 3 * PLAIN)
    scope = {"type": "http", "headers": [], SHARE: Share(memory)}
    server = ServerConfig(body_timeout_seconds=30, min_body_rate=1)
    began = clock.now
    pieces = iter([b"x" * 40, b"x"])

    async def receive():
        piece = next(pieces)
        if piece == b"x":
            await asyncio.sleep(0)  # which is too long where there is no time left
        clock.now += 61
        return {"type": "http.request", "body": piece, "more_body": piece != b"x"}

    reading = read_body(scope, receive, server, clock)
    if used_by_others:
        with pytest.raises(RequestTimeout):
            await reading
    else:
        assert await reading == b"x" * 41
        assert clock.now == began + 122


async def test_a_body_that_would_not_fit_alone_is_too_large(upstream):
    objects = b'{"model":"m","messages":[{"role":"user","content":"?"}],"x":[%s]}' % b",".join([b"{}"] * 60_000)
    async with proxy_of(upstream, more=ONE_AT_A_TIME) as url:
        for body in (large("x" * SIZE * 2), objects):
            refused = await post(url, body)
            assert (refused.status_code, refused.json()["error"]["code"]) == (413, "request_too_large")
    assert not upstream.requests


async def test_whatever_becomes_of_a_request_its_room_is_free_again(upstream):
    upstream.replies = [Reply([b"{}"], status=400), Reply([None]), whole("Hi")]
    async with proxy_of(upstream, more=ONE_AT_A_TIME) as url:
        for body in (b"?" * SIZE, b"[" + b" " * SIZE + b"]", large(), large()):  # refused here, there, and cut off
            assert (await post(url, body)).status_code in (400, 502)
        for _ in range(3):  # who leaves, before and after the last byte
            for sent in (SIZE // 2, SIZE * 2):
                async with AsyncExitStack() as stack:
                    length = len(large())
                    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: h\r\ncontent-length: {length}\r\n\r\n"
                    await connected(stack, url, head.encode() + large()[:sent])
        async with asyncio.timeout(10):
            while (await post(url, large())).status_code != 200:
                pass


async def connected(stack, url, data):
    """A connection over which something was sent, closed with the stack."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, port)

    async def close():
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    stack.push_async_callback(close)
    writer.write(data if isinstance(data, bytes) else data.encode())
    await writer.drain()
    return reader, writer


MIB = 2**20


@pytest.fixture
def machine(tmp_path):
    """A file system with these files in it."""

    def made(files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return made


@pytest.mark.parametrize(
    "files",
    [
        {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": f"{64 * MIB}\n"},
        {"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/memory.max": f"{64 * MIB}\n",
         "sys/fs/cgroup/a/b/memory.max": "max\n"},
        {"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/memory.max": f"{65 * MIB}\n",
         "sys/fs/cgroup/a/b/memory.max": f"{64 * MIB}\n"},
        {"proc/self/cgroup": "4:memory:/docker/1\n0::/\n",  # as seen from inside
         "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{64 * MIB}\n"},
    ],
    ids=["container", "of a group around", "the smallest", "version 1"],
)  # fmt: skip
def test_the_limit_of_a_container_holds(machine, files):
    assert available_memory(machine(files)) == 64 * MIB


@pytest.mark.parametrize("files", [{}, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"}])
def test_without_one_it_is_the_memory_of_the_machine(machine, files):
    assert available_memory(machine(files)) > 128 * MIB
