"""An MCP server that is reached with users' credentials: a session, a list and answers for each of them."""

import asyncio
import random
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import SimpleNamespace

import httpx
import pytest
from mcp_types import Tool as ListedTool
from msgspec.structs import replace

from proxy.loop.call_context import CallContext
from proxy.loop.results import ToolError, ToolUnavailable
from proxy.stores.memory import LocalPins
from proxy.tools.kind import Resources
from proxy.tools.kinds.mcp import KIND
from proxy.tools.kinds.mcp.entry import McpConfig
from proxy.tools.registry import Registry
from proxy.tools.servers import SharedToolServer, UserToolsets, start_tool_servers
from proxy.wire.chat import ToolCall
from proxy.wire.credentials import NO_CREDENTIALS, Credentials
from tests.fakes import FakeClock
from tests.mcp_server import ECHO, OBJECT, Wiki, text
from tests.serving import serving
from tests.tools.mcp.test_client import answering, wiki_at

HEADERS = {"Authorization": "Bearer ${request.headers.X-Vault}"}


def user_of(headers):
    return headers.get("authorization", "").removeprefix("Bearer ").partition("-")[0]


class Vault(Wiki):
    """Knows each user by the token, says who asks, and repeats the token wherever it can."""

    def __init__(self, **options):
        super().__init__([], **options)
        self.go_on = asyncio.Event()
        self.begun = asyncio.Event()

    async def list_tools(self, context, _):
        user, token = user_of(context.request.headers), context.request.headers["authorization"]
        names = ("whoami", "wait", "fail", f"of_{user}")
        listed = [ListedTool(name=name, description=f"For {token}.", input_schema=OBJECT) for name in names]
        echo = {**ECHO, "properties": {"text": {"type": "string", "description": f"Not {token[7:]}."}}}
        page = await super().list_tools(context, None)
        return page.model_copy(update={"tools": [*listed, ListedTool(name=token[7:], input_schema=echo)]})

    async def call(self, context, params):
        if params.name == "wait":
            self.begun.set()
            await self.go_on.wait()
        token = context.request.headers["authorization"]
        return text(f"{user_of(context.request.headers)}: {token}", is_error=params.name == "fail")


@dataclass
class Rig:
    server: object
    toolsets: UserToolsets
    told: list

    def credentials(self, token, client="app"):
        return Credentials({"x-vault": token}, [b"k" * 32], scope=client)

    async def registry(self, token):
        return await self.toolsets.toolset_for(self.credentials(token))

    async def call(self, token, name="whoami", *, registry=None, client="app"):
        context = CallContext(client, default_timeout=10, credentials=self.credentials(token, client))
        registry = registry or await self.registry(token)
        output = await registry.execute(ToolCall("id", f"vault_{name}", "{}"), context)
        return output.text.partition(": ")[0]

    @property
    def tokens(self):
        """Whose sessions there are, the least recently used first."""
        return [dict(headers)["Authorization"].removeprefix("Bearer ") for headers in self.server._sessions]  # noqa: SLF001


@asynccontextmanager
async def vault_at(url, *, configured=lambda tool: tool, pins=None, clock=None, **config):
    told = []
    clock = clock or SimpleNamespace(monotonic=FakeClock().monotonic, time=FakeClock().time, sleep=asyncio.sleep)
    async with httpx.AsyncClient() as client, asyncio.TaskGroup() as tasks:
        resources = Resources(client, clock, observe=lambda event, /, **fields: told.append((event, fields)), pins=pins)
        config = McpConfig(url=url, headers=HEADERS, **config)
        server = KIND.serve("vault", config, configured, resources)
        shared, registry = SharedToolServer(server), Registry([], clock=clock)
        shared.publish_to(registry)
        await start_tool_servers([shared], tasks)
        try:
            yield Rig(server, UserToolsets(registry, [shared]), told)
        finally:
            await shared.aclose()


@asynccontextmanager
async def vault(wiki=None, *, around=None, **more):
    async with wiki_at(wiki or Vault(), around=around) as url, vault_at(url, **more) as rig:
        yield rig


ANNE, BOB, CLEO = "anne-s3cret", "bob-s3cret", "cleo-s3cret"


@pytest.mark.parametrize("legacy", [False, True])
async def test_each_user_has_a_list_of_their_own_which_is_offered_to_no_other(legacy):
    async with vault(Vault(legacy=legacy)) as rig:
        nobody = await rig.toolsets.toolset_for(NO_CREDENTIALS)
        assert nobody.specs == {}
        assert {name: spec.needs for name, spec in nobody.unlisted.items()} == {"vault": {"x-vault"}}
        for token in (ANNE, BOB, ANNE):
            registry = await rig.registry(token)
            assert registry is await rig.registry(token), "nothing is made anew while nothing changes"
            user = token.partition("-")[0]
            assert [*registry.specs][:4] == ["vault_whoami", "vault_wait", "vault_fail", f"vault_of_{user}"]
            assert await rig.call(token) == user
        assert rig.tokens == [BOB, ANNE]


async def test_nothing_of_a_token_is_in_lists_answers_errors_and_events():
    async with vault(pins=(pins := LocalPins()), definitions="pinned") as rig:
        registry = await rig.registry(ANNE)
        context = CallContext(default_timeout=10, credentials=rig.credentials(ANNE))
        output = await registry.execute(ToolCall("id", "vault_whoami", "{}"), context)
        with pytest.raises(ToolError) as failed:
            await registry.execute(ToolCall("id", "vault_fail", "{}"), context)
        seen = f"{registry.specs} {output} {failed.value} {rig.told} {await pins.read('vault')}"
    assert output.text == "anne: Bearer [secret]"
    assert registry.specs["vault_whoami"].description == "For Bearer [secret]."
    assert "vault__secret_" in registry.specs
    assert "s3cret" not in seen


async def test_two_users_at_random_never_get_the_others_answer_nor_a_cached_one_of_the_other():
    async with vault(max_sessions=1, configured=lambda tool: replace(tool, cache_seconds=60)) as rig:
        chosen = random.Random(7)

        async def ask():
            token = chosen.choice((ANNE, BOB))
            return token.startswith(await rig.call(token))

        assert all(await asyncio.gather(*(ask() for _ in range(60))))


@pytest.mark.parametrize("legacy", [False, True])
async def test_the_session_that_was_not_used_for_the_longest_time_is_closed_first(legacy):
    open_at_once, is_open = [], set()

    async def counting(app, scope, receive, send):
        """Counts the sessions of an older server."""
        session = dict(scope["headers"]).get(b"mcp-session-id")
        if session is not None:
            (is_open.discard if scope["method"] == "DELETE" else is_open.add)(session)
        open_at_once.append(len(is_open))
        await app(scope, receive, send)

    async with vault(Vault(legacy=legacy), around=counting, max_sessions=2) as rig:
        for token, left in [
            (ANNE, [ANNE]),
            (BOB, [ANNE, BOB]),
            (ANNE, [BOB, ANNE]),
            (CLEO, [ANNE, CLEO]),
            (BOB, [CLEO, BOB]),
        ]:
            await rig.call(token)
            assert rig.tokens == left
        assert await asyncio.gather(*(rig.call(ANNE) for _ in range(5))) == ["anne"] * 5
        assert rig.tokens == [BOB, ANNE], "five requests of one user close one session"
    assert max(open_at_once) == (2 if legacy else 0)


async def test_a_session_that_is_in_use_is_not_closed_and_whoever_needs_another_one_waits():
    wiki = Vault()
    async with vault(wiki, max_sessions=1) as rig:
        waiting = asyncio.ensure_future(rig.call(ANNE, "wait"))
        await wiki.begun.wait()
        bob = asyncio.ensure_future(rig.call(BOB))
        for _ in range(20):
            await asyncio.sleep(0)
        assert rig.tokens == [ANNE]
        wiki.go_on.set()
        assert [await waiting, await bob] == ["anne", "bob"]
        assert rig.tokens == [BOB]


async def test_a_call_is_made_with_the_requests_own_value_whoevers_list_the_tool_is_from():
    async with vault() as rig:
        assert await rig.call(BOB, registry=await rig.registry(ANNE)) == "bob"


async def test_a_value_that_the_server_refuses_costs_one_attempt_and_no_more_until_it_is_worth_another():
    attempts = []

    async def refusing(_, scope, receive, send):
        attempts.append(1)
        await answering(401, b"no")(scope, receive, send)

    waits = []

    class Waiting(FakeClock):
        async def sleep(self, seconds):
            waits.append(seconds)
            await asyncio.Event().wait()

    async with vault(around=refusing, clock=Waiting()) as rig:
        for _ in range(3):
            assert (await rig.registry(ANNE)).specs == {}
        one_attempt = len(attempts)
        with pytest.raises(ToolUnavailable):
            async with rig.server._session_of(rig.credentials(ANNE)) as session:  # noqa: SLF001 - no tool is known
                await session.server.call("whoami", {})
    assert one_attempt <= 2  # a question for the version, and a handshake
    assert {fields["why"] for event, fields in rig.told if event == "mcp.lost"} == {"answered HTTP 401"}


async def test_no_redirect_takes_a_value_to_another_server():
    arrived = []

    async def elsewhere(scope, receive, send):
        arrived.append(scope["headers"])
        await answering(404)(scope, receive, send)

    async with serving(elsewhere, lifespan="off") as other:

        async def redirecting(_, scope, receive, send):
            await answering(307, headers=[(b"location", f"{other}/mcp".encode())])(scope, receive, send)

        async with vault(around=redirecting) as rig:
            assert (await rig.registry(ANNE)).specs == {}
    assert arrived == []


async def test_a_value_that_no_header_may_have_begins_no_session():
    async with vault() as rig:
        assert (await rig.registry("schl\u00fcssel")).specs == {}
        with pytest.raises(ToolError, match="has characters that cannot be sent on"):
            await rig.call("schl\u00fcssel", registry=await rig.registry(ANNE))
        assert rig.tokens == [ANNE]


async def test_calls_of_a_server_that_is_served_no_more_fail():
    async with vault() as rig:
        registry = await rig.registry(ANNE)
    with pytest.raises(ToolError, match="not reached any more"):
        await rig.call(BOB, registry=registry)


async def test_a_server_that_does_not_list_in_time_holds_up_no_request_for_long(monkeypatch):
    monkeypatch.setattr("proxy.tools.kinds.mcp.users._PATIENCE", 0.01)

    async def silent(*_):
        await asyncio.Event().wait()

    async with vault(around=silent) as rig:
        assert (await rig.registry(ANNE)).specs == {}
