"""Asking `/v1/responses`, whole and streamed, with every event checked on its way."""

import httpx
import orjson
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from tests.api.responses.folding import fold

HOSTED = {"type": "web_search"}
DOOR = {"type": "function", "name": "open_door", "parameters": {"type": "object", "properties": {}}, "strict": False}
ASK = {"model": "m", "input": "What is new?"}
EVENT = TypeAdapter(ResponseStreamEvent)
LIFECYCLE = ("response.created", "response.in_progress", "response.completed", "response.incomplete", "response.failed")


async def raw(url, body, *, method="POST", path="", **headers):
    async with httpx.AsyncClient() as client:
        return await client.request(method, f"{url}/v1/responses{path}", json=body, headers=headers)


def events_in(text):
    """The events of a stream, every one of them valid by the SDK's own types, numbered, and named by its type."""
    events = []
    for block in text.split("\n\n"):
        if block and not block.startswith(":") and block != "data: [DONE]":
            name, data = block.split("\n")
            event = orjson.loads(data.removeprefix("data: "))
            assert name == f"event: {event['type']}"
            EVENT.validate_python(event)
            events.append(event)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


def folded(events):
    """The final response, which has to be what the deltas say."""
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    final = events[-1]["response"]
    Response.model_validate(final)
    assert fold([event for event in events if event["type"] not in LIFECYCLE]) == final["output"]
    assert {event["response"]["id"] for event in (*events[:2], events[-1])} == {final["id"]}
    assert {event["response"]["model"] for event in (*events[:2], events[-1])} == {final["model"]}
    return final


async def ask(url, body, *, streaming, **headers):
    """One request, whole or streamed: the response object."""
    response = await raw(url, {**ASK, **body, "stream": streaming}, **headers)
    assert response.status_code == 200, response.text
    if not streaming:
        Response.model_validate(response.json())
        return response.json()
    assert response.text.endswith("data: [DONE]\n\n")
    return folded(events_in(response.text))


def kinds(response):
    return [item["type"] for item in response["output"]]
