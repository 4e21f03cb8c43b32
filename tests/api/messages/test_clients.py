"""What the real `anthropic` SDK makes of the proxy: its tool runner, structured output, and streams that pause."""

import asyncio

import anthropic
import orjson
import pytest
from anthropic import beta_async_tool
from pydantic import BaseModel

from tests.api.messages.asking import ASK, SEARCH, SEARCH_CALL, ask, client, events_in, kinds, raw
from tests.fakes import chunk, stream, streamed, whole
from tests.serving import CONFIG, proxy_of

GLM = CONFIG.replace("profile: openai", "profile: glm")


class City(BaseModel):
    city: str
    degrees: int


FORMAT = {"output_config": {"format": {"type": "json_schema", "schema": City.model_json_schema()}}}
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


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("config", [CONFIG, GLM])
async def test_structured_output_is_parsed_and_nothing_else_is_text(upstream, streaming, config):
    make = streamed if streaming else whole
    upstream.replies = [make("Looking.", calls=[SEARCH_CALL]), make(GOOD.replace(" ", ""))]
    async with proxy_of(upstream, config=config) as url:
        message = await ask(url, streaming=streaming, tools=[SEARCH], **FORMAT)
    assert kinds(message) == ["server_tool_use", "web_search_tool_result", "text"]
    assert City.model_validate_json(message["content"][-1]["text"]).degrees == 12


async def test_the_sdks_parse_gives_the_object(upstream):
    upstream.replies = [whole(GOOD)]
    async with proxy_of(upstream) as url, client(url) as sdk:
        message = await sdk.messages.parse(**ASK, output_format=City)
    assert message.parsed_output == City(city="Nanaimo", degrees=12)


@pytest.mark.parametrize("streaming", [False, True])
async def test_an_answer_that_does_not_fit_is_mended_once(upstream, streaming):
    make = streamed if streaming else whole
    upstream.replies = [make('{"city":"Nanaimo"}'), make(GOOD.replace(" ", ""))]
    async with proxy_of(upstream, config=GLM) as url:
        message = await ask(url, streaming=streaming, **FORMAT)
    assert [orjson.loads(block["text"])["degrees"] for block in message["content"]] == [12]


async def test_a_silent_stream_pings_once_the_message_has_begun(upstream):
    goes_on = asyncio.Event()
    upstream.replies = [stream(goes_on, chunk({"content": "Hi"}), chunk({}, "stop"))]
    config = CONFIG + "server: {{keepalive_seconds: 0.05}}"
    async with proxy_of(upstream, config=config) as url:
        asking = asyncio.ensure_future(raw(url, {**ASK, "stream": True}))
        await upstream.asked.wait()
        await asyncio.sleep(0.2)
        goes_on.set()
        events = events_in((await asking).text)
    assert [event["type"] for event in events[:3]] == ["message_start", "ping", "ping"]
    assert events[-1]["type"] == "message_stop"


async def test_calls_whose_pieces_are_mixed_come_one_after_the_other(upstream):
    def piece(index, arguments, **more):
        call = {"index": index, "function": {"arguments": arguments, **({"name": "f"} if more else {})}, **more}
        return chunk({"tool_calls": [call]})

    pieces = [
        piece(0, '{"a"', id="x", type="function"),
        piece(1, '{"b"', id="y", type="function"),
        piece(0, ":1}"),
        piece(1, ":2}"),
    ]
    upstream.replies = [stream(*pieces, chunk({}, "tool_calls"))]
    tools = [{"name": "f", "input_schema": {"type": "object"}}]
    async with proxy_of(upstream) as url:
        message = await ask(url, streaming=True, tools=tools)
    assert [block["input"] for block in message["content"]] == [{"a": 1}, {"b": 2}]


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
