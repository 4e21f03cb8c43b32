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

from proxy.cases.settings import CLIENT_KEY
from proxy.config.model import TelemetryConfig
from proxy.telemetry import log
from proxy.wire.credentials import Credentials
from tests.api.surfaces import DOOR, Surface, on
from tests.fakes import turn
from tests.serving import CONFIG, serving
from tests.tools.mcp.test_client import wiki_at
from tests.tools.mcp.test_users import Arrivals, Vault

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


def of(token):
    """The header of a user; None: it is not sent."""
    return {} if token is None else {"x-notes-token": token}


@asynccontextmanager
async def with_notes(surface, *replies, tool="", more="", **app):
    """A client of a proxy with the notes as a tool, and the notes."""
    notes = Notes()
    async with (
        serving(notes, lifespan="off") as api,
        surface.proxy(*replies, more=NOTES.format(api=api, more=tool) + more, **app) as client,
    ):
        yield client, notes


@pytest.fixture
def chat(upstream):
    return Surface("chat", streaming=False, upstream=upstream)


def names(request):
    return [tool["function"]["name"] for tool in request.get("tools", ())]


def results(request):
    return [message["content"] for message in request["messages"] if message["role"] == "tool"]


def calling(*calls):
    """A model that makes these calls, and then answers."""
    return lambda request: turn("Done.")(request) if results(request) else turn(calls=calls)(request)


async def test_the_value_goes_to_the_tool_and_is_masked_in_its_answer(surface):
    async with with_notes(surface, calling(CALL)) as (client, notes):
        assert (await client.ask(headers=of(ANNE))).text == "Done."
    assert notes.tokens == [f"Bearer {ANNE}"]
    [read] = surface.results()
    assert 'note 1 of anne: Bearer [secret] [secret] "Bearer [secret]" t=Bearer+[secret]' in read
    assert "s3cret" not in str(surface.upstream.requests) + str(surface.upstream.heads)


@pytest.mark.parametrize("token", [None, ""])
async def test_without_the_header_the_tool_is_not_offered_and_a_call_says_what_is_missing(surface, token):
    async with with_notes(surface, calling(CALL)) as (client, notes):
        assert (await client.ask(headers=of(token))).text == "Done."
    assert names(surface.upstream.requests[0]) == ["web_search"]
    assert "which the app has to send in the header 'x-notes-token'" in surface.results()[0]
    assert notes.tokens == []


@pytest.mark.parametrize(("entry", "call"), [(NOTES, CALL), (VAULT, WHO)])
async def test_a_call_says_what_is_missing_even_if_there_is_no_other_tool(chat, entry, call):
    only = CONFIG.split("  web_search:")[0] + "{more}"
    tools = entry.format(api="http://127.0.0.1:9", url="http://127.0.0.1:9/mcp", more="")
    assert (await chat.ask(calling(call), config=only, more=tools, text="?")).text == "Done."
    assert "tools" not in chat.upstream.requests[0]
    assert chat.upstream.requests[0]["messages"] == [{"role": "user", "content": "?"}]
    assert "in the header 'x-notes-token'" in chat.results()[0]


async def test_a_client_that_declares_the_tool_without_the_header_is_told_as_well(chat):
    async with with_notes(chat, calling(CALL)) as (client, _):
        await client.ask(functions=["notes"])
    assert "header 'x-notes-token'" in chat.results()[0]


async def test_a_tool_without_its_header_cannot_be_chosen_by_header(chat):
    async with with_notes(chat, turn("Hi")) as (client, _):
        without, having = [await client.ask(server_tools="notes,web_search", headers=of(one)) for one in (None, ANNE)]
    assert without.headers["x-tools-ignored"] == "notes"
    assert "x-tools-ignored" not in having.headers
    assert [names(request) for request in chat.upstream.requests] == [["web_search"], ["web_search", "notes"]]


async def test_a_value_that_no_header_may_have_is_not_sent(chat):
    async with with_notes(chat, calling(CALL)) as (client, notes), httpx.AsyncClient() as http:
        headers = [(b"x-notes-token", "schl\u00fcssel".encode())]
        await http.post(f"{client.url}/v1/chat/completions", json=ASK, headers=headers)
    assert "header 'x-notes-token' of the request has characters" in chat.results()[0]
    assert notes.tokens == []


async def test_cached_results_are_of_one_client_and_one_value(chat):
    clients = "clients: [{name: app, key: key-of-app}, {name: other, key: key-of-other}]"
    read = []
    async with with_notes(chat, calling(CALL), tool="cache_seconds: 60", more=clients) as (client, _):
        for key, token in [("app", ANNE), ("app", ANNE), ("app", BOB), ("other", ANNE), ("app", BOB)]:
            await client.ask(key=f"key-of-{key}", headers=of(token))
            read.append(" ".join(chat.results()[0].split("\n")[1].split(" ")[:4]))
    assert read == ["note 1 of anne:", "note 1 of anne:", "note 2 of bob:", "note 3 of anne:", "note 2 of bob:"]


@on("chat-whole", "relay-whole", "responses-whole", "messages-whole", "embeddings-whole", "completions-whole")
@pytest.mark.parametrize("tool", ["", "timeout: ${NOT_SET}"], ids=["", "a tool that is disabled"])
async def test_the_header_is_dropped_on_every_path_upstream(surface, tool):
    async with with_notes(surface, turn("Hi"), tool=tool) as (client, _):
        await client.ask(headers=of(ANNE))
    assert len(surface.upstream.heads) == 1
    assert "s3cret" not in str(surface.upstream.heads)


# -- tools of an MCP server --


@asynccontextmanager
async def with_vault(surface, *replies, more="", **app):
    async with wiki_at(Vault()) as vault, surface.proxy(*replies, more=VAULT.format(url=vault) + more, **app) as client:
        yield client


async def test_an_mcp_servers_tools_are_those_that_it_lists_for_the_user_who_gets_answers_of_their_own(chat):
    async with with_vault(chat, calling(WHO)) as client:
        for token in (ANNE, BOB, ANNE):
            chat.upstream.requests.clear()
            await client.ask(headers=of(token))
            user = token.partition("-")[0]
            offered = names(chat.upstream.requests[0])
            assert [name for name in offered if name.startswith("vault_of")] == [f"vault_of_{user}"]
            assert f"{user}: Bearer [secret]" in chat.results()[0]
    assert "s3cret" not in str(chat.upstream.requests) + str(chat.upstream.heads)


async def test_without_the_header_an_mcp_servers_tools_are_not_offered_and_a_call_says_what_is_missing(chat):
    clients = "clients: [{name: app, key: key-of-app}, {name: some, key: key-of-some, tools: [web_search]}]"
    read = {}
    async with with_vault(chat, calling(WHO), more=clients) as client:
        for key in ("app", "some"):
            await client.ask(key=f"key-of-{key}")
            read[key] = chat.results()[0]
    assert {*names(chat.upstream.requests[0]), *names(chat.upstream.requests[2])} == {"web_search"}
    assert "which the app has to send in the header 'x-notes-token'" in read["app"]
    assert "There is no tool named 'vault_whoami'" in read["some"]


async def test_the_mcp_door_lists_and_calls_what_the_header_permits(chat):
    config = CONFIG.replace("upstreams:", "server: {{mcp: true}}\nupstreams:", 1)
    seen = []
    async with with_vault(chat, config=config) as proxy:
        for token in (None, ANNE, BOB):
            async with (
                create_mcp_http_client(headers=of(token)) as http,
                Client(streamable_http_client(f"{proxy.url}/mcp", http_client=http)) as client,
            ):
                listed = [tool.name for tool in (await client.list_tools()).tools]
                called = await client.call_tool("vault_whoami", {})
                seen.append((listed[1:5], called.is_error, called.content[0].text))
    assert seen[0][:2] == ([], True)
    assert "in the header 'x-notes-token'" in seen[0][2]
    for user, (listed, failed, text) in zip(("anne", "bob"), seen[1:], strict=True):
        assert (listed[-1], failed, text) == (f"vault_of_{user}", False, f"{user}: Bearer [secret]")


CLIENTS = """
clients:
  - {name: app, key: key-of-app}
  - {name: none, key: key-of-none, tools: []}
  - {name: some, key: key-of-some, tools: [web_search]}
  - {name: uncalling, key: key-of-uncalling, limits: {max_tool_calls: 0}}
  - {name: other, key: key-of-other, models: [other]}
  - {name: vault, key: key-of-vault, tools: [vault]}
"""
PERMITTED = [
    {"key": "app"},
    {"key": "vault"},
    {"key": "app", "server_tools": "vault"},
    {"key": "app", "server_tools": "vault_whoami"},
    {"key": "app", "server_tools": "all"},
    {"key": "app", "functions": ["vault_whoami"], "choice": "required"},
    {"key": "app", "functions": ["vault_whoami"], "choice": "vault_whoami"},
]
NOT_PERMITTED = [
    {"key": "none"},
    {"key": "some"},
    {"key": "some", "functions": ["vault_whoami"]},
    {"key": "uncalling"},
    {"key": "other"},
    {"key": "app", "server_tools": "none"},
    {"key": "app", "server_tools": "none", "functions": ["vault_whoami"]},
    {"key": "app", "server_tools": "web_search"},
    {"key": "app", "functions": ["open_door"], "choice": "none"},
    {"key": "app", "functions": ["open_door"], "choice": "required"},
    {"key": "app", "body": {"model": "nowhere"}},
    {"key": "app", "body": {"max_tool_calls": 0}},
]


@asynccontextmanager
async def with_watched_vault(surface, *replies, more="", **app):
    """A client, and the arrivals at the server."""
    arrived = Arrivals()
    async with (
        wiki_at(Vault(), around=arrived) as vault,
        surface.proxy(*replies, more=VAULT.format(url=vault) + CLIENTS + more, **app) as client,
    ):
        yield client, arrived


async def test_a_session_is_begun_only_for_a_request_that_may_use_the_server(surface):
    async with with_watched_vault(surface, turn("Hi")) as (client, arrived):
        for asked in NOT_PERMITTED:
            await client.ask(**{"text": "?", **asked, "key": f"key-of-{asked['key']}", "headers": of(ANNE)})
            assert arrived.users == [], asked
        for number, asked in enumerate(PERMITTED):
            headers = of(f"user{number}-s3cret") | asked.get("headers", {})
            await client.ask(**{"text": "?", **asked, "key": f"key-of-{asked['key']}", "headers": headers})
            assert f"user{number}" in arrived.users, asked


@pytest.mark.parametrize("offer", ["declared", "never"])
async def test_a_session_with_a_server_that_is_not_always_offered_is_begun_for_a_tool_that_is_declared(surface, offer):
    arrived = Arrivals()
    async with (
        wiki_at(Vault(), around=arrived) as vault,
        surface.proxy(turn("Hi"), more=f"{VAULT.format(url=vault)}    offer: {offer}\n") as client,
    ):
        await client.ask(functions=["open_door"], headers=of(ANNE))
        assert arrived.users == []
        await client.ask(functions=["vault_whoami"], headers=of(ANNE))
        assert arrived.users != []


async def test_no_session_is_begun_at_a_door_that_calls_no_tool_of_the_server(chat):
    config = CONFIG.replace("upstreams:", "server: {{mcp: true}}\nupstreams:", 1)

    def message(method, **params):
        return "/mcp", {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}

    hands_off = [
        ("/v1/messages/count_tokens", ASK),
        ("/v1/search", {"query": "ferry"}),
        message("ping"),
        message("tools/call", name="web_search", arguments={"query": "ferry"}),
    ]
    listing = message("tools/list")
    accept = {"accept": "application/json, text/event-stream"}
    async with with_watched_vault(chat, config=config) as (client, arrived), httpx.AsyncClient() as http:

        async def post(path, body, *, key):
            headers = {"authorization": f"Bearer key-of-{key}", **accept, **of(ANNE)}
            return await http.post(client.url + path, json=body, headers=headers)

        for path, body in hands_off:
            await post(path, body, key="app")
            assert arrived.users == [], path
        for key in ("some", "none", "uncalling"):
            for path, body in (listing, message("tools/call", name="vault_whoami", arguments={})):
                assert "anne" not in (await post(path, body, key=key)).text
        assert arrived.users == []
        assert "vault_of_anne" in (await post(*listing, key="app")).text
    assert arrived.users != []


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


@on("responses-whole")
async def test_a_stored_response_is_there_only_for_the_same_value(surface):
    async with with_notes(surface, turn(calls=[CALL]), turn("Done.")) as (client, _), httpx.AsyncClient() as http:
        first = (await client.ask(headers=of(ANNE))).whole
        item = {"type": "item_reference", "id": first["output"][0]["id"]}
        place = f"{client.url}/v1/responses/{first['id']}"
        key = {"authorization": f"Bearer {CLIENT_KEY}"}
        for token, status in [(None, 404), (BOB, 404), (ANNE, 200)]:
            by_id = [await http.get(place + path, headers=key | of(token)) for path in ("", "/input_items")]
            assert [one.status_code for one in by_id] == [status, status]
            following = await client.ask(headers=of(token), body={"previous_response_id": first["id"]})
            assert following.status == (200 if status == 200 else 400)
            referring = await client.ask(headers=of(token), body={"input": [{"role": "user", "content": "?"}, item]})
            assert referring.status == status
        # What continues it depends on it as well, although no tool was called there.
        later = following.whole["id"]
        assert (await http.get(f"{client.url}/v1/responses/{later}", headers=key)).status_code == 404
        assert (await http.delete(place, headers=key)).status_code == 404
        assert (await http.delete(place, headers=key | of(ANNE))).status_code == 200


@on("responses-whole")
async def test_a_response_that_needed_no_credential_is_there_for_all_requests_of_its_client(surface):
    async with with_notes(surface, turn("Hi")) as (client, _), httpx.AsyncClient() as http:
        first = (await client.ask(headers=of(ANNE))).whole
        assert (await http.get(f"{client.url}/v1/responses/{first['id']}")).status_code == 200


SEARCH = NOTES.replace("notes:", "web_search:").replace("/notes", "/search")


async def test_the_pages_of_a_search_with_a_credential_open_only_for_the_same_value(messages):
    replies = turn(calls=[("u1", "web_search", {"q": "ferry"})]), turn("Done."), turn("Again.")
    config = CONFIG.split("  web_search:")[0] + "{more}"
    async with (
        serving(Notes(), lifespan="off") as api,
        messages.proxy(*replies, config=config, more=SEARCH.format(api=api, more="")) as client,
    ):
        first = await client.ask(search=True, headers=of(ANNE))
        for token, is_read in [(ANNE, True), (BOB, False), ("", False)]:
            await client.ask(after=first, text="And now?", headers=of(token))
            assert ("of anne" in messages.results()[0]) == is_read
        without = await client.ask(search=True)
    assert (first.kinds, without.status) == (["servercall", "text"], 400)


async def test_nothing_of_a_credential_is_seen_anywhere(chat):
    """In the log of all levels with content, on /debug and /metrics, in the answers, in what is stored."""
    failing = ("u3", "vault_fail", {})
    stream = io.StringIO()
    more = "clients: [{name: app, key: key-of-app, admin: true}]\ntelemetry: {log_content: true, log_level: debug}"
    seen = []
    async with (
        wiki_at(Vault()) as vault,
        with_notes(
            chat, calling(CALL, WHO, failing), tool="cache_seconds: 60", more=VAULT.format(url=vault) + more
        ) as (client, _),
        httpx.AsyncClient() as http,
    ):
        log.configure(TelemetryConfig(log_level="debug", log_content=True), stream=stream)
        headers = {"authorization": "Bearer key-of-app", "x-notes-token": ANNE, "x-tool-events": "results"}
        for path in ("/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/embeddings", "/v1/nowhere"):
            body = {**ASK, "input": "x", "max_tokens": 9}
            seen += [await http.post(f"{client.url}{path}", json=one, headers=headers) for one in (body, {"model": 7})]
        for path in ("/debug?format=json", "/debug", "/metrics", "/readyz"):
            seen.append(await http.get(f"{client.url}{path}", headers=headers))
        requests = [one["request_id"] for one in seen[10].json()["requests"]]
        seen += [await http.get(f"{client.url}/debug/requests/{one}", headers=headers) for one in requests]
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
