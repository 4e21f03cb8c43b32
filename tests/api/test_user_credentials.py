"""`${request.headers.NAME}`: tools that act with the credential of a user, from the header to what is kept of it."""

import base64
import io
from contextlib import asynccontextmanager

import httpx
import orjson
import pytest
import structlog
from mcp.client import Client
from mcp.client.streamable_http import create_mcp_http_client, streamable_http_client

from proxy.config.model import TelemetryConfig
from proxy.telemetry import log
from proxy.wire.credentials import Credentials
from tests.api.messages import asking as messages
from tests.api.surfaces import DOOR
from tests.fakes import turn, whole
from tests.serving import CONFIG, proxy_of, serving
from tests.tools.mcp.test_client import wiki_at
from tests.tools.mcp.test_users import Vault

ANNE, BOB = "anne-s3cret/token", "bob-s3cret/token"
NOTES = """
  notes:
    type: http
    description: The user's notes.
    url: {api}/notes
    query: {{q: "{{q}}"}}
    headers: {{Authorization: "Bearer ${{request.headers.X-Notes-Token}}"}}
    parameters: {{properties: {{q: {{type: string}}}}}}
    {more}
"""
VAULT = """
  vault:
    type: mcp
    url: {url}
    headers: {{Authorization: "Bearer ${{request.headers.X-Notes-Token}}"}}
    cache_seconds: 60
    definitions: pinned
"""
CALL = ("u1", "notes", {"q": "ferry"})
WHO = ("u2", "vault_whoami", {})
ASK = {"model": "m", "messages": [{"role": "user", "content": "?"}]}


class Notes:
    """An API that has a note for each user, and repeats the token in many ways."""

    def __init__(self):
        self.tokens = []

    async def __call__(self, scope, receive, send):
        token = dict(scope["headers"])[b"authorization"].decode()
        self.tokens.append(token)
        user = token.removeprefix("Bearer ").partition("-")[0]
        repeated = [token, token.removeprefix("Bearer "), orjson.dumps(token).decode(), httpx.QueryParams({"t": token})]
        body = f"note {len(self.tokens)} of {user}: {' '.join(map(str, repeated))}".encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
        await send({"type": "http.response.body", "body": body})


class Served:
    """A proxy with the notes as a tool."""

    def __init__(self, url, api):
        self.url = url
        self.api = api

    async def ask(self, token=None, path="/v1/chat/completions", **body):
        headers = {} if token is None else {"x-notes-token": token}
        async with httpx.AsyncClient() as http:
            return await http.post(f"{self.url}{path}", json={**ASK, **body}, headers=headers)


def with_notes(upstream, *, tool="", more="", **app):
    class Running:
        async def __aenter__(self):
            self.api = Notes()
            self.serving = serving(self.api, lifespan="off")
            entries = NOTES.format(api=await self.serving.__aenter__(), more=tool)
            self.proxy = proxy_of(upstream, more=entries + more, **app)
            return Served(await self.proxy.__aenter__(), self.api)

        async def __aexit__(self, *failure):
            await self.proxy.__aexit__(*failure)
            await self.serving.__aexit__(*failure)

    return Running()


def names(request):
    return [tool["function"]["name"] for tool in request.get("tools", ())]


def results(request):
    return [message["content"] for message in request["messages"] if message["role"] == "tool"]


async def test_the_value_goes_to_the_tool_and_is_masked_in_its_answer(upstream):
    upstream.replies = [whole(calls=[CALL]), whole("Done.")]
    async with with_notes(upstream) as served:
        answer = await served.ask(ANNE)
    assert answer.json()["choices"][0]["message"]["content"] == "Done."
    assert served.api.tokens == [f"Bearer {ANNE}"]
    (read,) = results(upstream.requests[1])
    assert 'note 1 of anne: Bearer [secret] [secret] "Bearer [secret]" t=Bearer+[secret]' in read
    assert "s3cret" not in str(upstream.requests) + str(upstream.heads)


@pytest.mark.parametrize("token", [None, ""])
async def test_without_the_header_the_tool_is_not_offered_and_a_call_says_what_is_missing(upstream, token):
    upstream.replies = [whole(calls=[CALL]), whole("Sorry.")]
    async with with_notes(upstream) as served:
        answer = await served.ask(token)
    assert answer.json()["choices"][0]["message"]["content"] == "Sorry."
    assert names(upstream.requests[0]) == ["web_search"]
    assert "which the app has to send in the header 'x-notes-token'" in results(upstream.requests[1])[0]
    assert served.api.tokens == []


@pytest.mark.parametrize(("entry", "call"), [(NOTES, CALL), (VAULT, WHO)])
async def test_a_call_says_what_is_missing_even_if_there_is_no_other_tool(upstream, entry, call):
    upstream.replies = [whole(calls=[call]), whole("Sorry.")]
    only = CONFIG.split("  web_search:")[0] + "{more}"
    tools = entry.format(api="http://127.0.0.1:9", url="http://127.0.0.1:9/mcp", more="")
    async with proxy_of(upstream, config=only, more=tools) as url:
        answer = await Served(url, None).ask()
    assert answer.json()["choices"][0]["message"]["content"] == "Sorry."
    assert "tools" not in upstream.requests[0]
    assert upstream.requests[0]["messages"] == ASK["messages"]
    assert "in the header 'x-notes-token'" in results(upstream.requests[1])[0]


async def test_a_client_that_declares_the_tool_without_the_header_is_told_as_well(upstream):
    upstream.replies = [whole(calls=[CALL]), whole("Sorry.")]
    declared = {"type": "function", "function": {"name": "notes", "parameters": {"type": "object"}}}
    async with with_notes(upstream) as served:
        await served.ask(tools=[declared])
    assert "header 'x-notes-token'" in results(upstream.requests[1])[0]


async def test_a_tool_without_its_header_cannot_be_chosen_by_header(upstream):
    upstream.replies = [whole("Hi")]
    async with with_notes(upstream) as served, httpx.AsyncClient() as http:
        chosen = {"x-server-tools": "notes,web_search"}
        without = await http.post(f"{served.url}/v1/chat/completions", json=ASK, headers=chosen)
        having = await http.post(
            f"{served.url}/v1/chat/completions", json=ASK, headers={**chosen, "x-notes-token": ANNE}
        )
    assert without.headers["x-tools-ignored"] == "notes"
    assert "x-tools-ignored" not in having.headers
    assert [names(request) for request in upstream.requests] == [["web_search"], ["web_search", "notes"]]


async def test_a_value_that_no_header_may_have_is_not_sent(upstream):
    upstream.replies = [whole(calls=[CALL]), whole("Sorry.")]
    async with with_notes(upstream) as served, httpx.AsyncClient() as http:
        headers = [(b"x-notes-token", "schl\u00fcssel".encode())]
        await http.post(f"{served.url}/v1/chat/completions", json=ASK, headers=headers)
    assert "header 'x-notes-token' of the request has characters" in results(upstream.requests[1])[0]
    assert served.api.tokens == []


async def test_cached_results_are_of_one_client_and_one_value(upstream):
    clients = "clients: [{name: app, key: key-of-app}, {name: other, key: key-of-other}]"
    upstream.replies = [lambda request: whole("Done.") if results(request) else whole(calls=[CALL])]
    read = []
    async with with_notes(upstream, tool="cache_seconds: 60", more=clients) as served, httpx.AsyncClient() as http:
        for key, token in [("app", ANNE), ("app", ANNE), ("app", BOB), ("other", ANNE), ("app", BOB)]:
            headers = {"authorization": f"Bearer key-of-{key}", "x-notes-token": token}
            await http.post(f"{served.url}/v1/chat/completions", json=ASK, headers=headers)
            read.append(" ".join(results(upstream.requests[-1])[0].split("\n")[1].split(" ")[:4]))
    assert read == ["note 1 of anne:", "note 1 of anne:", "note 2 of bob:", "note 3 of anne:", "note 2 of bob:"]


async def test_the_header_is_dropped_on_every_path_upstream(upstream):
    upstream.replies = [whole("Hi")]
    async with with_notes(upstream) as served:
        for path in ("/v1/chat/completions", "/v1/embeddings", "/v1/responses", "/v1/completions", "/v1/messages"):
            await served.ask(ANNE, path, input="x", max_tokens=5)
    assert len(upstream.heads) == 5
    assert "s3cret" not in str(upstream.heads)


async def test_a_tool_that_is_disabled_keeps_its_header_from_upstreams_too(upstream):
    upstream.replies = [whole("Hi")]
    async with with_notes(upstream, tool="timeout: ${NOT_SET}") as served:
        await served.ask(ANNE, "/v1/embeddings", input="x")
    assert "s3cret" not in str(upstream.heads)


# -- tools of an MCP server --


@asynccontextmanager
async def with_vault(upstream, *, more="", config=CONFIG, **app):
    async with (
        wiki_at(Vault()) as vault,
        proxy_of(upstream, config=config, more=VAULT.format(url=vault) + more, **app) as url,
    ):
        yield Served(url, None)


async def test_an_mcp_servers_tools_are_those_that_it_lists_for_the_user_who_gets_answers_of_their_own(upstream):
    upstream.replies = [lambda request: whole("Done.") if results(request) else whole(calls=[WHO])]
    async with with_vault(upstream) as served:
        for token in (ANNE, BOB, ANNE):
            upstream.requests.clear()
            await served.ask(token)
            user = token.partition("-")[0]
            assert [name for name in names(upstream.requests[0]) if name.startswith("vault_of")] == [f"vault_of_{user}"]
            assert f"{user}: Bearer [secret]" in results(upstream.requests[1])[0]
    assert "s3cret" not in str(upstream.requests) + str(upstream.heads)


async def test_without_the_header_an_mcp_servers_tools_are_not_offered_and_a_call_says_what_is_missing(upstream):
    clients = "clients: [{name: app, key: key-of-app}, {name: some, key: key-of-some, tools: [web_search]}]"
    upstream.replies = [lambda request: whole("Done.") if results(request) else whole(calls=[WHO])]
    read = {}
    async with with_vault(upstream, more=clients) as served, httpx.AsyncClient() as http:
        for key in ("app", "some"):
            headers = {"authorization": f"Bearer key-of-{key}"}
            await http.post(f"{served.url}/v1/chat/completions", json=ASK, headers=headers)
            read[key] = results(upstream.requests[-1])[0]
    assert {*names(upstream.requests[0]), *names(upstream.requests[2])} == {"web_search"}
    assert "which the app has to send in the header 'x-notes-token'" in read["app"]
    assert "There is no tool named 'vault_whoami'" in read["some"]


async def test_the_mcp_door_lists_and_calls_what_the_header_permits(upstream):
    config = CONFIG.replace("upstreams:", "server: {{mcp: true}}\nupstreams:", 1)
    seen = []
    async with with_vault(upstream, config=config) as served:
        for token in (None, ANNE, BOB):
            headers = {"x-notes-token": token} if token else {}
            async with (
                create_mcp_http_client(headers=headers) as http,
                Client(streamable_http_client(f"{served.url}/mcp", http_client=http)) as client,
            ):
                listed = [tool.name for tool in (await client.list_tools()).tools]
                called = await client.call_tool("vault_whoami", {})
                seen.append((listed[1:5], called.is_error, called.content[0].text))
    assert seen[0][:2] == ([], True)
    assert "in the header 'x-notes-token'" in seen[0][2]
    for user, (listed, failed, text) in zip(("anne", "bob"), seen[1:], strict=True):
        assert (listed[-1], failed, text) == (f"vault_of_{user}", False, f"{user}: Bearer [secret]")


# -- what is kept between requests --


@pytest.mark.parametrize("body", [{}, {"store": False, "include": ["reasoning.encrypted_content"]}], ids=["", "sealed"])
async def test_the_hidden_half_of_a_mixed_turn_is_put_back_only_for_the_same_value(surface, body):
    body = body if surface.kind == "responses" else {}
    async with serving(Notes(), lifespan="off") as api, surface.proxy(more=NOTES.format(api=api, more="")) as client:
        for token in (ANNE, BOB, ""):
            surface.upstream.restart([turn(calls=[CALL, DOOR]), turn("Open.")])
            first = await client.ask(functions=["open_door"], headers={"x-notes-token": ANNE}, body=body)
            await client.ask(after=first, results=["opened"], headers={"x-notes-token": token})
            read = surface.results()
            assert any("note" in content for content in read) == (token == ANNE)
            assert "opened" in read


async def test_a_stored_response_is_there_only_for_the_same_value(upstream):
    upstream.replies = [whole(calls=[CALL]), whole("Done.")]
    async with with_notes(upstream) as served, httpx.AsyncClient() as http:
        response = (await served.ask(ANNE, "/v1/responses", input="?")).json()
        item = {"type": "item_reference", "id": response["output"][0]["id"]}
        place = f"{served.url}/v1/responses/{response['id']}"
        for token, status in [(None, 404), (BOB, 404), (ANNE, 200)]:
            headers = {"x-notes-token": token} if token else {}
            by_id = [await http.get(place + path, headers=headers) for path in ("", "/input_items")]
            assert [one.status_code for one in by_id] == [status, status]
            following = await served.ask(token, "/v1/responses", input="?", previous_response_id=response["id"])
            assert following.status_code == (200 if status == 200 else 400)
            referring = await served.ask(token, "/v1/responses", input=[item, {"role": "user", "content": "?"}])
            assert referring.status_code == status
        # What continues it depends on it as well, although no tool was called there.
        later = following.json()["id"]
        assert (await http.get(f"{served.url}/v1/responses/{later}")).status_code == 404
        assert (await http.delete(place)).status_code == 404
        assert (await http.delete(place, headers={"x-notes-token": ANNE})).status_code == 200


async def test_a_response_that_needed_no_credential_is_there_for_all_requests_of_its_client(upstream):
    upstream.replies = [whole("Hi")]
    async with with_notes(upstream) as served, httpx.AsyncClient() as http:
        response = (await served.ask(ANNE, "/v1/responses", input="?")).json()
        assert (await http.get(f"{served.url}/v1/responses/{response['id']}")).status_code == 200


SEARCH = NOTES.replace("notes:", "web_search:").replace("/notes", "/search")


async def test_the_pages_of_a_search_with_a_credential_open_only_for_the_same_value(upstream):
    upstream.replies = [whole(calls=[("u1", "web_search", {"q": "ferry"})]), whole("Done."), whole("Again.")]
    config = CONFIG.split("  web_search:")[0] + "{more}"
    body = {**messages.ASK, "tools": [messages.SEARCH]}
    async with (
        serving(Notes(), lifespan="off") as api,
        proxy_of(upstream, config=config, more=SEARCH.format(api=api, more="")) as url,
    ):
        message = (await messages.raw(url, body, **{"x-notes-token": ANNE})).json()
        said = messages.follow_up(message, {"type": "text", "text": "And now?"})
        for token, is_read in [(ANNE, True), (BOB, False), (None, False)]:
            headers = {"x-notes-token": token} if token else {}
            await messages.raw(url, {**body, "messages": said}, **headers)
            assert ("of anne" in results(upstream.requests[-1])[0]) == is_read
        without = await messages.raw(url, body)
    assert message["content"][1]["type"] == "web_search_tool_result"
    assert without.status_code == 400


async def test_nothing_of_a_credential_is_seen_anywhere(upstream):
    """In the log of all levels with content, on /debug and /metrics, in the answers, in what is stored."""
    failing = ("u3", "vault_fail", {})
    upstream.replies = [lambda request: whole("Done.") if results(request) else whole(calls=[CALL, WHO, failing])]
    stream = io.StringIO()
    more = "clients: [{name: app, key: key-of-app, admin: true}]\ntelemetry: {log_content: true, log_level: debug}"
    seen = []
    async with (
        wiki_at(Vault()) as vault,
        with_notes(upstream, tool="cache_seconds: 60", more=VAULT.format(url=vault) + more) as served,
        httpx.AsyncClient() as http,
    ):
        log.configure(TelemetryConfig(log_level="debug", log_content=True), stream=stream)
        headers = {"authorization": "Bearer key-of-app", "x-notes-token": ANNE, "x-tool-events": "results"}
        for path in ("/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/embeddings", "/v1/nowhere"):
            body = {**ASK, "input": "x", "max_tokens": 9}
            seen += [await http.post(f"{served.url}{path}", json=one, headers=headers) for one in (body, {"model": 7})]
        for path in ("/debug?format=json", "/debug", "/metrics", "/readyz"):
            seen.append(await http.get(f"{served.url}{path}", headers=headers))
        requests = [one["request_id"] for one in seen[10].json()["requests"]]
        seen += [await http.get(f"{served.url}/debug/requests/{one}", headers=headers) for one in requests]
    structlog.reset_defaults()
    shown = stream.getvalue() + "".join(one.text + str(one.headers) for one in seen)
    assert "note 1 of anne" in shown
    assert "anne: Bearer [secret]" in shown
    for form in (ANNE, "s3cret", base64.b64encode(ANNE.encode()).decode()):
        assert form not in shown


@pytest.mark.parametrize(
    ("value", "forms"),
    [
        ("Bearer abc-def-ghi", {"Bearer abc-def-ghi", "abc-def-ghi"}),
        ("sid=abcdefgh; theme=dark", {"sid=abcdefgh; theme=dark", "theme=dark", "abcdefgh"}),
    ],
)
def test_the_forms_of_a_value_that_others_may_repeat(value, forms):
    credentials = Credentials({"a": value}, [b"k" * 32])
    assert credentials.secrets_in(["x ${request.headers.A}", "y"]) == forms
