"""What a client reads of a model that is not here: which it may use instead, and what the operator can write."""

import httpx
import pytest

from tests.api.surfaces import EVERYWHERE
from tests.fakes import FakeUpstream
from tests.serving import proxy_of

KEY = "key-of-the-app-of-16"
MODELS = """
upstreams:
  up: {{base_url: {upstream}/v1, api_key: upstream-secret, retries: 0}}
  other: {{base_url: {upstream}/v1, api_key: "${{NOT_SET_ANYWHERE}}"}}
models:
  one: {{upstream: up, model: "vendor/one:free"}}
  gone: {{upstream: other}}
  two: {{upstream: up}}
  three: {{upstream: up}}
  four: {{upstream: up}}
  five: {{upstream: up}}
  six: {{upstream: up}}
  seven: {{upstream: up}}
  "family-*": {{upstream: up}}
{more}
"""
CLIENT = f"clients: [{{name: app, key: {KEY}, models: [two, s*]}}]"
LINE = (
    """ To serve any name, add this line to `models:` in config.yaml: "*": {upstream: up, model: "vendor/one:free"}"""
)


@EVERYWHERE
async def test_an_unknown_model_is_answered_with_models_to_use_and_with_the_line_that_serves_any_name(surface):
    async with surface.proxy(config=MODELS) as client:
        answer = await client.ask(text="Hi", body={"model": "gpt-4o"})
    assert (answer.status, answer.error["code"]) == (404, "model_not_found")
    assert answer.error["message"].removeprefix("model: ") == (  # as the Messages API has it
        "The model 'gpt-4o' does not exist. Models that you can use: one, two, three, four, five and 2 more. "
        "GET /v1/models lists the models." + LINE
    )


@EVERYWHERE
async def test_a_client_reads_of_its_own_models_only_and_nothing_for_the_operator(surface):
    async with surface.proxy(config=MODELS, more=CLIENT) as client:
        answer = await client.ask(text="Hi", body={"model": "gpt-4o"}, key=KEY)
    assert answer.error["message"].removeprefix("model: ") == (  # as the Messages API has it
        "The model 'gpt-4o' does not exist. Models that you can use: two, six, seven. GET /v1/models lists the models."
    )


@pytest.mark.parametrize(
    ("name", "more", "said"),
    [
        ("gpt-4o", "", LINE),
        ("gone", "", "The model 'gone' is not available: its upstream is disabled. Models that you can use: one, "),
        ("one", CLIENT, "The model 'one' does not exist. Models that you can use: two, six, seven. GET"),
        ("gone", CLIENT, "Models that you can use: two, six, seven. GET /v1/models lists the models."),
    ],
)
async def test_a_single_model_that_is_not_here_is_told_in_the_same_words(name, more, said):
    async with proxy_of(FakeUpstream([]), config=MODELS, more=more) as url, httpx.AsyncClient() as client:
        answer = await client.get(f"{url}/v1/models/{name}", headers={"authorization": f"Bearer {KEY}"})
    assert answer.status_code == 404
    assert said in answer.json()["error"]["message"]
    assert (LINE in answer.json()["error"]["message"]) == (name == "gpt-4o")


async def test_no_line_for_any_name_is_told_where_there_is_one():
    some = MODELS.replace("family-*", "*")
    async with proxy_of(FakeUpstream([]), config=some) as url, httpx.AsyncClient() as client:
        answer = await client.get(f"{url}/v1/models/gone")
    assert "To serve any name" not in answer.json()["error"]["message"]
