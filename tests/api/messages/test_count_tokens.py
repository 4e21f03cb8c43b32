"""`POST /v1/messages/count_tokens`, and the other small answers for Anthropic's clients."""

import httpx
import orjson

from tests.api.messages.asking import DOOR, SEARCH, client, raw
from tests.serving import proxy_of

COUNTED = {"model": "m", "messages": [{"role": "user", "content": "What is new?"}]}
CLIENTS = "clients: [{name: app, key: k, requests_per_minute: 1}]"


async def test_system_tools_and_pictures_count_and_no_upstream_is_asked(upstream):
    async with proxy_of(upstream) as url, client(url) as sdk:
        picture = {"type": "image", "source": {"type": "url", "url": "https://a.example/p.png"}}
        bodies = [
            COUNTED,
            {**COUNTED, "system": "You are a helpful assistant."},
            {**COUNTED, "tools": [DOOR]},
            {**COUNTED, "tools": [SEARCH, DOOR]},
            {**COUNTED, "messages": [{"role": "user", "content": [picture]}]},
        ]
        counts = [(await sdk.messages.count_tokens(**body)).input_tokens for body in bodies]
    assert all(count > counts[0] for count in counts[1:])
    assert counts[3] >= counts[2]
    assert not upstream.requests


async def test_an_empty_conversation_is_refused(upstream):
    async with proxy_of(upstream) as url:
        refused = await raw(url, {**COUNTED, "messages": []}, path="/v1/messages/count_tokens")
    assert refused.status_code == 400


async def test_a_part_of_a_history_that_ends_with_an_answer_is_counted(upstream):
    answered = [*COUNTED["messages"], {"role": "assistant", "content": "Nothing, or hardly anything."}]
    async with proxy_of(upstream) as url, client(url) as sdk:
        question = await sdk.messages.count_tokens(**COUNTED)
        both = await sdk.messages.count_tokens(**{**COUNTED, "messages": answered})
    assert both.input_tokens > question.input_tokens


async def test_a_tool_that_is_nested_too_deep_is_refused(upstream):
    schema = orjson.loads('{"a":' * 300 + "1" + "}" * 300)
    async with proxy_of(upstream) as url:
        body = {**COUNTED, "tools": [{**DOOR, "input_schema": schema}]}
        refused = await raw(url, body, path="/v1/messages/count_tokens")
    assert refused.status_code == 400
    assert refused.json()["error"]["message"] == "The request body is nested too deep."


async def test_it_counts_against_no_rate(upstream):
    async with proxy_of(upstream, more=CLIENTS) as url:
        for _ in range(5):
            answer = await raw(url, COUNTED, path="/v1/messages/count_tokens", **{"x-api-key": "k"})
            assert answer.status_code == 200


async def test_models_come_in_anthropics_shape_to_who_speaks_it(upstream):
    async with proxy_of(upstream) as url, client(url) as sdk, httpx.AsyncClient() as http:
        page = await sdk.models.list()
        one = await sdk.models.retrieve("m")
        openai = (await http.get(f"{url}/v1/models/m")).json()
    assert [model.id for model in page.data] == ["m", "alias"]
    assert (page.first_id, page.last_id, page.has_more) == ("m", "alias", False)
    assert (one.type, one.id, one.created_at.tzinfo is not None) == ("model", "m", True)
    assert openai["object"] == "model"


async def test_the_root_answers_head(upstream):
    async with proxy_of(upstream) as url, httpx.AsyncClient() as http:
        assert (await http.head(url)).status_code == 200
        assert (await http.get(url)).status_code == 200


async def test_tools_that_only_the_proxy_offers_are_not_counted(upstream, sdk):
    async with proxy_of(upstream) as url:
        plain = await raw(url, COUNTED, path="/v1/messages/count_tokens")
        searched = {**COUNTED, "tools": [{"type": "web_search_20250305", "name": "web_search"}]}
        asked = await raw(url, searched, path="/v1/messages/count_tokens")
    assert plain.json()["input_tokens"] + 100 < asked.json()["input_tokens"]
