"""A conversation that outgrows the model's context while it is worked on, over real sockets."""

import httpx
import orjson
import pytest

from tests.fakes import FakeUpstream, Reply, chunk, event, stream, streamed, whole
from tests.serving import proxy_of

HITS = [{"title": "A page", "link": f"https://a.example/{n}", "snippet": "found " * 100} for n in range(10)]
SEARCH = ("up-1", "web_search", {"query": "x"})
FULL = {"error": {"message": "The input (70000 tokens) is longer than the model's context length (65536 tokens)."}}
REFUSED = Reply([orjson.dumps(FULL)], status=400)
ASK = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}


@pytest.fixture
def upstream():
    return FakeUpstream(search=Reply([orjson.dumps({"organic": HITS})]))


async def ask(upstream, *, path="/v1/chat/completions", **request):
    async with proxy_of(upstream, more="offer: {mode: always}") as url, httpx.AsyncClient(base_url=url) as http:
        return await http.post(path, json={**ASK, **request}, headers={"x-tool-events": "true"})


def results_in(request):
    return [message["content"] for message in request["messages"] if message["role"] == "tool"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
@pytest.mark.parametrize("refusal", [REFUSED, Reply([orjson.dumps(FULL)]), stream(event(FULL), done=False)])
async def test_a_refusal_before_the_first_byte_has_results_cut_and_the_turn_asked_again(upstream, path, refusal):
    upstream.replies = [streamed(calls=[SEARCH]), refusal, streamed("Done")]
    response = await ask(upstream, path=path, stream=True, max_tokens=100)
    assert (response.status_code, "Done" in response.text, '"error":{' in response.text) == (200, True, False)
    (long,), (cut,) = map(results_in, upstream.requests[1:])
    assert len(cut) < 0.6 * len(long)


async def test_a_turn_that_is_asked_again_is_one_turn_for_the_client(upstream):
    upstream.replies = [whole(calls=[SEARCH]), REFUSED, whole("Done")]
    answer = (await ask(upstream)).json()
    started = [told["turn"] for told in answer["tool_events"] if told["type"] == "turn.started"]
    assert (started, answer["usage"]["server_tool_use"]["turns"]) == ([1, 2], 2)


async def test_a_refusal_after_the_first_byte_ends_the_stream_with_an_error(upstream):
    broken = stream(chunk({"content": "Half of"}), event(FULL), done=False)
    upstream.replies = [streamed(calls=[SEARCH]), broken, streamed("Done")]
    response = await ask(upstream, stream=True)
    last = orjson.loads(response.text.strip().rpartition("data: ")[2])
    assert (last["error"]["code"], len(upstream.requests)) == ("context_length_exceeded", 2)


async def test_claude_code_is_told_the_counts_in_the_words_by_which_it_compacts(upstream):
    upstream.replies = [REFUSED]
    response = await ask(upstream, path="/v1/messages", max_tokens=100)
    error = response.json()["error"]
    assert (response.status_code, error["type"], len(upstream.requests)) == (400, "invalid_request_error", 1)
    assert error["message"].startswith("prompt is too long: 70000 tokens > 65536 maximum")
