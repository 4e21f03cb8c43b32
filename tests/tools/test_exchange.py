"""One bounded read for all tools that ask an HTTP service."""

import asyncio
import gzip
import tracemalloc
import zlib
from contextlib import aclosing, asynccontextmanager

import httpx
import pytest

from proxy.app import tool_client
from proxy.loop.results import ToolUnavailable
from proxy.tools.exchange import ServiceRequest, send
from proxy.tools.kinds.serper import SerperConfig, serper_tool
from proxy.tools.kinds.zai_search import ZaiSearchConfig, zai_search_tool
from proxy.tools.tool_type import Resources
from tests.fakes import FakeClock
from tests.serving import serving

PLAIN = b"x" * 200_000_000


def raw_deflate(data):
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


BOMBS = {
    "gzip": gzip.compress(PLAIN),
    "deflate": zlib.compress(PLAIN),
    "raw deflate": raw_deflate(PLAIN),
    "gzip, gzip": gzip.compress(gzip.compress(PLAIN)),
}


@asynccontextmanager
async def service(status, body, coding=""):
    async def app(_, __, send):
        headers = [(b"content-encoding", coding.encode())] if coding else []
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async with serving(app, lifespan="off") as url, aclosing(tool_client()) as client:
        yield url, client


async def test_an_answer_is_read_up_to_the_limit_and_says_whether_that_was_all():
    async with service(200, b"12345") as (url, client):
        for most, body, whole in ((5, b"12345", True), (4, b"1234", False)):
            answer = await send(client, ServiceRequest("GET", url), most=most)
            assert (answer.status, answer.body, answer.whole) == (200, body, whole)


async def test_what_is_compressed_unasked_is_decompressed_and_an_error_that_cannot_be_is_empty():
    async with service(200, gzip.compress(b"fine"), "gzip") as (url, client):
        assert (await send(client, ServiceRequest("GET", url), most=10)).body == b"fine"
    async with service(200, b"?", "br") as (url, client):
        with pytest.raises(httpx.DecodingError, match="not understood"):
            await send(client, ServiceRequest("GET", url), most=10)
    async with service(503, b"?", "br") as (url, client):
        answer = await send(client, ServiceRequest("GET", url), most=10)
        assert (answer.status, answer.body) == (503, b"")


def tools(url, client):
    """Every tool that asks a search service, with that service at `url`."""
    resources = Resources(client, FakeClock(1_800_000_000))
    yield serper_tool("t", SerperConfig(api_key="k", base_url=url), resources), {"query": "q"}
    yield zai_search_tool("t", ZaiSearchConfig(api_key="k", base_url=url), resources), {"query": "q"}


@pytest.mark.parametrize("coding", BOMBS)
async def test_a_decompression_bomb_fills_no_memory_whichever_tool_asks(coding):
    async with service(200, BOMBS[coding], coding.split()[-1] if coding == "raw deflate" else coding) as (url, client):
        for tool, arguments in tools(url, client):
            tracemalloc.start()
            try:
                with pytest.raises(ToolUnavailable, match=r"too large|could not be read"):
                    await tool.run(arguments)
                assert tracemalloc.get_traced_memory()[1] < 20_000_000
            finally:
                tracemalloc.stop()


async def test_while_a_large_body_is_decompressed_others_have_their_turn():
    turns = 0

    async def take_turns():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with service(200, gzip.compress(bytes(32 * 1024 * 1024)), "gzip") as (url, client):
        other = asyncio.create_task(take_turns())
        answer = await send(client, ServiceRequest("GET", url), most=64 * 1024 * 1024)
        other.cancel()
    assert len(answer.body) == 32 * 1024 * 1024
    assert turns >= 32
