"""Which requests are offered the server's tools, by API: those that leave the choice to the model, and want an answer."""

import pytest

from tests.api.surfaces import CITY, EACH, on
from tests.fakes import turn


def offered(surface):
    return [tool["function"]["name"] for tool in surface.upstream.requests[0].get("tools") or ()]


@EACH
async def test_a_request_for_an_answer_is_offered_the_servers_tools(surface):
    await surface.ask(turn("Fine."), text="Hi", most=17)
    assert "web_search" in offered(surface)


@EACH
@pytest.mark.parametrize("choice", ["none", "required"])
@pytest.mark.parametrize("body", [{}, {"tools": []}], ids=["no tools", "an empty list of tools"])
async def test_a_tool_choice_without_tools_brings_none_in(surface, choice, body):
    answer = await surface.ask(turn("A summary."), text="Sum it up.", choice=choice, body=body)
    assert (answer.status, answer.texts, offered(surface)) == (200, ["A summary."], [])


@EACH
@pytest.mark.parametrize("words", [{"most": 1}, {"most": 16}, {"schema": CITY}], ids=["probe", "label", "JSON"])
async def test_a_side_request_of_an_app_is_offered_no_tools(surface, words):
    answer = await surface.ask(turn('{"city": "N", "degrees": 1}'), text="Title?", **words)
    assert (answer.status, offered(surface)) == (200, [])
    assert "web_search" not in str(surface.upstream.requests[0]["messages"])


@on("chat-whole", "messages-whole")
async def test_a_request_with_stop_sequences_is_offered_no_tools(surface):
    field = "stop_sequences" if surface.kind == "messages" else "stop"
    await surface.ask(turn("A"), text="Label?", body={field: ["</label>"]})
    assert offered(surface) == []


@EACH
async def test_a_side_request_is_offered_what_it_names(surface):
    await surface.ask(turn("A"), text="Label?", most=16, server_tools="web_search")
    assert offered(surface) == ["web_search"]
