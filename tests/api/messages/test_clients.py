"""What the real `anthropic` SDK makes of the proxy: its tool runner, structured output, and streams that pause."""

import asyncio

import anthropic
import pytest
from anthropic import beta_async_tool
from pydantic import BaseModel

from tests.api.messages.asking import ASK, client, raw
from tests.fakes import chunk, stream, whole
from tests.serving import CONFIG, proxy_of


class City(BaseModel):
    city: str
    degrees: int


GOOD = '{"city": "Nanaimo", "degrees": 12}'


async def test_the_tool_runner_goes_on_with_the_whole_history(upstream):
    @beta_async_tool
    async def open_door(door: int) -> str:
        """Opens a door."""
        return f"door {door} is open"

    upstream.replies = [whole("I open it.", calls=[("u1", "open_door", {"door": 1})]), whole("It is open.")]
    async with proxy_of(upstream) as url, client(url) as sdk:
        runner = sdk.beta.messages.tool_runner(**ASK, tools=[open_door])
        final = await runner.until_done()
    assert final.content[0].text == "It is open."
    assert upstream.requests[1]["messages"][-1]["content"] == "door 1 is open"
    assert upstream.requests[1]["messages"][-2]["content"] == "I open it."


async def test_the_sdks_parse_gives_the_object(upstream):
    upstream.replies = [whole(GOOD)]
    async with proxy_of(upstream) as url, client(url) as sdk:
        message = await sdk.messages.parse(**ASK, output_format=City)
    assert message.parsed_output == City(city="Nanaimo", degrees=12)


async def test_a_full_proxy_is_overloaded(upstream):
    goes_on = asyncio.Event()
    upstream.replies = [stream(goes_on, chunk({"content": "Hi"}), chunk({}, "stop"))]
    config = CONFIG + "server: {{max_concurrent_requests: 1, max_queued_requests: 0}}"
    async with proxy_of(upstream, config=config) as url, client(url) as sdk:
        asking = asyncio.ensure_future(raw(url, {**ASK, "stream": True}))
        await upstream.asked.wait()
        with pytest.raises(anthropic.APIStatusError) as caught:
            await sdk.messages.create(**ASK)
        goes_on.set()
        await asking
    assert (caught.value.status_code, caught.value.type) == (529, "overloaded_error")
    assert caught.value.response.headers["retry-after"]
