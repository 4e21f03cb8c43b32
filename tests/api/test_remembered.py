"""The tools that a client declares with every request are read once, and no request gets what was read for another."""

import httpx
import orjson
import pytest

from proxy.api.remembered import Remembered, text_of
from tests.fakes import whole
from tests.serving import proxy_of

DOOR = {"messages": {"name": "door", "input_schema": {"type": "object"}},
        "responses": {"type": "function", "name": "door", "parameters": {"type": "object"}}}  # fmt: skip
SEARCH = {
    "messages": {"type": "web_search_20250305", "name": "web_search"},
    "responses": {"type": "web_search"},
}
SAID = {
    "messages": {"max_tokens": 100, "messages": [{"role": "user", "content": "Hi"}]},
    "responses": {"input": "Hi"},
}
CHOICE = {"messages": {"type": "any"}, "responses": "required"}
FEW = {"messages": {"max_tokens": 5}, "responses": {"max_output_tokens": 16}}


def asked_of(api):
    """Requests that differ in one thing each that decides about tools."""
    door, search = DOOR[api], SEARCH[api]
    austere = {**search, "user_location": {"type": "approximate", "city": "Nanaimo"}}
    return [
        ({}, {}),
        ({"tools": [search]}, {}),
        ({"tools": [search]}, {"x-server-tools": "none"}),
        ({"tools": [search, door]}, {}),
        ({"tools": [search, door], "tool_choice": CHOICE[api]}, {}),
        ({"tools": [search, door], "max_tool_calls": 0}, {}),
        ({"tools": [austere, door]}, {}),
        ({"tools": [{**door, "description": "It opens."}]}, {}),
        ({"tools": [door]}, {}),
        ({"tools": [door]}, {"x-server-tools": "none"}),
        (FEW[api], {}),
    ]


@pytest.mark.parametrize("api", ["messages", "responses"])
async def test_declared_tools_that_were_read_before_give_the_upstream_the_same_bytes(upstream, api):
    upstream.replies = [whole({"role": "assistant", "content": "Done."})]
    asked = asked_of(api)
    async with proxy_of(upstream) as url, httpx.AsyncClient(base_url=url) as client:
        answers = [await ask(client, api, *one) for one in [*asked, *asked]]
    sent, upstream.bodies[:] = [*upstream.bodies], []
    anew = []
    for one in asked:
        async with proxy_of(upstream) as url, httpx.AsyncClient(base_url=url) as client:
            anew.append(await ask(client, api, *one))
    assert sent == [*upstream.bodies, *upstream.bodies]
    assert answers == [*anew, *anew]
    assert len(set(sent)) > len(asked) / 2


async def ask(client, api, fields, headers):
    answer = await client.post(f"/v1/{api}", json={"model": "m", **SAID[api], **fields}, headers=headers)
    assert answer.status_code in (200, 502), answer.text  # without the call that is required, there is no answer
    return answer.status_code, answer.headers.get("x-tools-ignored"), answer.json().get("tools")


@pytest.mark.parametrize("api", ["messages", "responses"])
async def test_faulty_tools_are_refused_as_often_as_they_are_declared(upstream, api):
    async with proxy_of(upstream) as url, httpx.AsyncClient(base_url=url) as client:
        faulty = {"model": "m", **SAID[api], "tools": [{**DOOR[api], "name": None}]}
        told = [(await client.post(f"/v1/{api}", json=faulty)).json()["error"]["message"] for _ in range(2)]
    assert told[0] == told[1]
    assert "name" in told[0]


class Things:
    """Makes a new thing each time."""

    def __init__(self, most_bytes=100_000):
        self.remembered = Remembered(most_bytes)

    def of(self, declared, *same, **equal):
        return self.remembered.of(text_of(declared), same, tuple(equal.items()), object)


def test_what_was_made_of_declared_tools_is_remembered_for_the_same_things_alone():
    things, tools, others = Things(), {}, {}
    made = things.of([DOOR], tools, owner="a")
    assert things.of([DOOR], tools, owner="a") is made
    assert things.of([DOOR], tools, owner="b") is not made
    assert things.of([DOOR], others, owner="a") is not made  # equal, and not the same
    assert things.of([SEARCH], tools, owner="a") is not made


def test_what_cannot_be_written_is_not_remembered():
    things = Things()
    assert things.of(2**70) is not things.of(2**70)


def test_what_is_remembered_of_declared_tools_is_bounded():
    things = Things(most_bytes=20_000)
    first, large = things.of("0"), orjson.loads(b"[" + b"1," * 20_000 + b"1]")
    assert things.of(large) is not things.of(large)
    for number in range(1, 50):
        things.of(number)
    assert things.of("0") is not first
