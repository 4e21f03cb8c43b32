"""Streams that a lenient reader can read, although they are not quite as they should be, over real sockets."""

import asyncio
from dataclasses import replace

import httpx
import openai
import orjson
import pytest

from tests.fakes import DONE, FakeUpstream, Reply, chunk, completion, event, stream, streamed
from tests.serving import proxy_of

ASK = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
IN_THE_LOOP, RELAYED = {}, {"x-server-tools": "none"}
SEARCH = ("up-1", "web_search", {"query": "x"})
OFFER = "offer: {mode: always}"


async def ask(upstream, headers, *, path="/v1/chat/completions", more="", **request):
    async with proxy_of(upstream, more=OFFER + more) as url, httpx.AsyncClient(base_url=url) as http:
        return await http.post(path, json={**ASK, **request}, headers=headers)


def text_of(response):
    """The text of a whole or streamed answer of any API; every event has to be JSON."""
    if "event-stream" not in response.headers["content-type"]:
        return orjson.loads(response.content)["choices"][0]["message"]["content"]
    data = [line.removeprefix("data:").strip() for line in response.text.split("\n") if line.startswith("data:")]
    chunks = [orjson.loads(one) for one in data if one != "[DONE]"]
    return "".join(one["choices"][0]["delta"].get("content") or "" for one in chunks if one["choices"])


@pytest.mark.parametrize("is_stream", [True, False])
@pytest.mark.parametrize("headers", [IN_THE_LOOP, RELAYED])
@pytest.mark.parametrize("kind", ["text/plain", "application/json", "application/octet-stream", "TEXT/EVENT-STREAM"])
async def test_a_stream_is_read_as_one_whatever_its_server_calls_it(kind, headers, is_stream):
    upstream = FakeUpstream([replace(streamed("Found it"), content_type=kind)])
    response = await ask(upstream, headers, stream=is_stream)
    assert (response.status_code, text_of(response)) == (200, "Foundit")
    wanted = "text/event-stream" if is_stream else "application/json"
    assert response.headers["content-type"].startswith(wanted)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
async def test_a_stream_in_place_of_a_whole_answer_can_call_tools(path):
    upstream = FakeUpstream([streamed(calls=[SEARCH]), streamed("Found it")])
    request = {"input": "Hi"} if path == "/v1/responses" else {"max_tokens": 9}
    response = await ask(upstream, {}, path=path, **request)
    assert (response.status_code, len(upstream.searches), "Foundit" in response.text) == (200, 1, True)


@pytest.mark.parametrize("headers", [IN_THE_LOOP, RELAYED])
async def test_a_whole_answer_in_place_of_a_stream_is_streamed(headers):
    upstream = FakeUpstream([Reply([orjson.dumps(completion("Found it"))])])
    response = await ask(upstream, headers, stream=True)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert (response.status_code, text_of(response)) == (200, "Found it")
    assert response.text.endswith("data: [DONE]\n\n")


async def test_a_whole_answer_in_place_of_a_stream_can_call_tools():
    calls = completion(calls=[SEARCH])
    upstream = FakeUpstream([Reply([orjson.dumps(calls)]), streamed("Found it")])
    assert text_of(await ask(upstream, {}, stream=True)) == "Foundit"
    assert len(upstream.searches) == 1


@pytest.mark.parametrize("headers", [IN_THE_LOOP, RELAYED])
async def test_a_whole_answer_in_place_of_a_stream_may_hold_text_a_refusal_and_calls(headers):
    answer = completion("Found it", refusal="No", calls=[("up-1", "mine", {"a": 1})])
    upstream = FakeUpstream([Reply([orjson.dumps(answer)])])
    tools = [{"type": "function", "function": {"name": "mine"}}]
    async with (
        proxy_of(upstream, more=OFFER) as url,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k") as sdk,
        sdk.chat.completions.stream(**ASK, tools=tools, extra_headers=headers) as events,
    ):
        [choice] = (await events.get_final_completion()).choices
    [call] = choice.message.tool_calls
    assert (choice.message.content, choice.message.refusal, choice.finish_reason) == ("Found it", "No", "tool_calls")
    assert (call.function.name, orjson.loads(call.function.arguments)) == ("mine", {"a": 1})


@pytest.mark.parametrize("headers", [IN_THE_LOOP, RELAYED])
async def test_an_error_in_place_of_events_keeps_its_status(headers):
    error = b'{"error": {\n"message": "slow down", "code": 429}}'
    upstream = FakeUpstream([Reply([error], content_type="text/event-stream")])
    response = await ask(upstream, headers, stream=True)
    assert (response.status_code, response.json()["error"]["message"]) == (429, "slow down")


async def test_a_relayed_stream_in_place_of_a_whole_answer_becomes_one_with_all_its_choices():
    choices = [
        chunk({"content": text}, "stop").replace(b'"index":0', b'"index":%d' % at) for at, text in ((1, "b"), (0, "a"))
    ]
    usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    upstream = FakeUpstream([stream(*choices, event({"choices": [], "usage": usage}))])
    answer = (await ask(upstream, RELAYED, n=2)).json()
    assert [choice["message"]["content"] for choice in answer["choices"]] == ["a", "b"]
    assert (answer["object"], answer["usage"]) == ("chat.completion", usage)


@pytest.mark.parametrize("headers", [IN_THE_LOOP, RELAYED])
async def test_a_stream_in_place_of_a_whole_answer_that_breaks_off_is_a_failure(headers):
    upstream = FakeUpstream([stream(chunk({"content": "Half of"}), done=False)])
    assert (await ask(upstream, headers)).status_code == 502


@pytest.mark.parametrize("headers", [IN_THE_LOOP, RELAYED])
@pytest.mark.parametrize(
    "noise",
    [
        b"data: ping\n\n", b"data: [PING]\n\n", b"data: : keep-alive\n\n", b"data:\n\n", b"data: \n\n", b"data\n\n",
        b"event: ping\n\n", b"retry: 3000\n\n", b"id: 1\n\n", b"\n\n", b": comment\n\n", b"data: null\n\n", b"data: {}\n\n",
        b'event: ping\ndata: {"type": "ping"}\n\n', b": OPENROUTER PROCESSING\n\n", b"event: keepalive\ndata: 1\n\n",
    ],
)  # fmt: skip
async def test_signs_of_life_that_are_no_chunks_do_not_reach_the_client(noise, headers):
    upstream = FakeUpstream(
        [stream(noise, chunk({"content": "Found"}), noise, chunk({"content": "it"}, "stop"), noise)]
    )
    response = await ask(upstream, headers, stream=True)
    assert (response.status_code, text_of(response)) == (200, "Foundit")
    blocks = [block for block in response.text.split("\n\n") if block.strip()]
    assert all(block.strip().startswith((":", "data: ")) and "ping" not in block.lower() for block in blocks)


@pytest.mark.parametrize("headers", [IN_THE_LOOP, RELAYED])
async def test_words_that_may_be_an_error_are_not_taken_for_a_sign_of_life(headers):
    upstream = FakeUpstream([stream(chunk({"content": "Half"}), b"data: Internal Server Error\n\n", chunk({}, "stop"))])
    assert "upstream_error" in (await ask(upstream, headers, stream=True)).text


@pytest.mark.parametrize("coding", [b"none", b"identity", b"None"])
@pytest.mark.parametrize("is_stream", [True, False])
async def test_the_coding_none_is_no_coding(coding, is_stream):
    upstream = FakeUpstream([replace(streamed("Found it"), headers=[(b"content-encoding", coding)])])
    assert text_of(await ask(upstream, {}, stream=is_stream)) == "Foundit"


@pytest.mark.parametrize("headers", [IN_THE_LOOP, RELAYED])
@pytest.mark.parametrize(
    "form", [b"id: 1\ndata: %b\n\n", b"data: %b\nid: 1\n\n", b"id: 1\r\ndata: %b\r\n\r\n", b"data: %b\n\n"]
)
async def test_comments_do_not_end_an_event_where_events_have_ids(form, headers):
    """OpenAI's SDK for Python keeps the last id, and takes each blank line after it for the end of an event."""
    goes_on = asyncio.Event()
    texts = [form % chunk({"content": text}).removeprefix(b"data: ").strip() for text in ("Found", "it")]
    end = chunk({}, "stop") + DONE
    upstream = FakeUpstream(
        [Reply([texts[0], goes_on, b": theirs\n\n", texts[1], end], content_type="text/event-stream")]
    )
    comments = []

    async def note(response):
        response.stream = Watched(response.stream, comments, goes_on)

    async with (
        proxy_of(upstream, more=OFFER + "\nserver: {keepalive_seconds: 0.02}") as url,
        httpx.AsyncClient(event_hooks={"response": [note]}) as http,
    ):
        client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k", http_client=http)
        answer = await client.chat.completions.create(**ASK, stream=True, extra_headers=headers)
        text = "".join([one.choices[0].delta.content or "" async for one in answer if one.choices])
    assert (text, bool(comments)) == ("Foundit", True)


class Watched(httpx.AsyncByteStream):
    """The body of a response; two comments in it let the upstream go on."""

    def __init__(self, body, comments, goes_on):
        self.body, self.comments, self.goes_on = body, comments, goes_on

    async def __aiter__(self):
        async for part in self.body:
            self.comments += part.count(b": keep-alive") * [part]
            if len(self.comments) > 1:
                self.goes_on.set()
            yield part

    async def aclose(self):
        await self.body.aclose()
