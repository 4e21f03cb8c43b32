"""Which of the server's tools the proxy of a run offers to an agent, whose own search is to be seen."""

from pathlib import Path

import httpx
import orjson
import pytest

from proxy.app.configuration import parse
from proxy.commands.run.place import for_one_run
from proxy.wire.chat import name_of
from tests.fakes import FakeUpstream, whole
from tests.serving import CONFIG, serving, serving_as_shipped

KEY = {"authorization": "Bearer key-of-the-run"}
FUNCTION = {"name": "Bash", "parameters": {"type": "object"}}
SURFACES = {
    "chat/completions": {"tools": [{"type": "function", "function": FUNCTION}]},
    "responses": {"tools": [{"type": "function", **FUNCTION}]},
    "messages": {"tools": [{"name": "Bash", "input_schema": {"type": "object"}}]},
}
HOSTED = {"responses": {"type": "web_search"}, "messages": {"type": "web_search_20250305", "name": "web_search"}}
MORE = "  clock: {type: clock, offer: always}"


async def offered_by(tmp_path, path, body, *, declares_search):
    """The names of the tools that the upstream of a run is sent with a request."""
    said = {"messages": [{"role": "user", "content": "A title, please"}], "max_tokens": 9}
    said = {"input": "A title, please"} if path == "responses" else said
    upstream = FakeUpstream([whole("A title")])
    async with serving(upstream, lifespan="off") as upstream_url:
        loaded = parse(CONFIG.format(upstream=upstream_url, more=MORE), {})
        loaded = for_one_run(loaded, key="key-of-the-run", runs=Path(tmp_path), declares_search=declares_search)
        async with serving_as_shipped(loaded) as url, httpx.AsyncClient(base_url=url, headers=KEY) as client:
            answer = await client.post(f"/v1/{path}", json={"model": "m", **said, **body})
            assert answer.status_code == 200, answer.text
            listed = await client.post(
                "/mcp",
                json={"jsonrpc": "2.0", "id": 1, "method": "tools/list"},
                headers={"accept": "application/json, text/event-stream", "mcp-protocol-version": "2025-06-18"},
            )
    tools = [name_of(tool) for tool in orjson.loads(upstream.bodies[0]).get("tools", [])]
    served = [tool["name"] for tool in listed.json()["result"]["tools"]] if listed.status_code == 200 else []
    return tools, served


@pytest.mark.parametrize("path", SURFACES)
async def test_a_request_for_a_title_is_offered_no_tool(tmp_path, path):
    assert await offered_by(tmp_path, path, {}, declares_search=True) == ([], [])


@pytest.mark.parametrize("path", SURFACES)
async def test_an_agent_that_declares_its_search_gets_the_other_tools_beside_its_own(tmp_path, path):
    tools, _ = await offered_by(tmp_path, path, SURFACES[path], declares_search=True)
    assert tools == ["Bash", "clock"]


@pytest.mark.parametrize("path", HOSTED)
async def test_the_search_that_an_agent_declares_is_offered_alone(tmp_path, path):
    tools, _ = await offered_by(tmp_path, path, {"tools": [HOSTED[path]]}, declares_search=True)
    assert tools == ["web_search"]


async def test_an_agent_without_a_search_of_its_own_gets_all_tools_over_mcp_where_it_shows_their_calls(tmp_path):
    path = "chat/completions"
    found = await offered_by(tmp_path, path, SURFACES[path], declares_search=False)
    assert found == (["Bash"], ["web_search", "clock"])
