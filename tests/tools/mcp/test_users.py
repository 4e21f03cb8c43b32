"""An MCP server that is reached with users' credentials: a session for each request, a list and answers for each user."""

import asyncio
import gc
import random
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
from mcp_types import Tool as ListedTool
from msgspec.structs import replace

from proxy.loop.call_context import CallContext
from proxy.loop.results import ToolError, ToolUnavailable
from proxy.tools.kinds.mcp import KIND
from proxy.tools.kinds.mcp.entry import McpConfig
from proxy.tools.kinds.mcp.users import MOST_LISTS, RequestSession, UserList, UserLists
from proxy.tools.registry import Registry
from proxy.tools.servers import SharedToolServer, UserToolsets, start_tool_servers
from proxy.tools.tool_type import Resources
from proxy.wire.chat import ToolCall
from proxy.wire.credentials import NO_CREDENTIALS, Credentials
from tests.fakes import FakeClock
from tests.free_port import free_port
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
        self.says = "For"
        self.go_on = asyncio.Event()
        self.begun = asyncio.Event()

    async def list_tools(self, context, _):
        user, token = user_of(context.request.headers), context.request.headers["authorization"]
        names = ("whoami", "wait", "fail", f"of_{user}")
        listed = [ListedTool(name=name, description=f"{self.says} {token}.", input_schema=OBJECT) for name in names]
        echo = {**ECHO, "properties": {"text": {"type": "string", "description": f"Not {token[7:]}."}}}
        page = await super().list_tools(context, None)
        return page.model_copy(update={"tools": [*listed, ListedTool(name=token[7:], input_schema=echo)]})

    async def call(self, context, params):
        if params.name == "wait":
            self.begun.set()
            await self.go_on.wait()
        token = context.request.headers["authorization"]
        return text(f"{user_of(context.request.headers)}: {token}", is_error=params.name == "fail")


class Clock(FakeClock):
    """Waits as long as it takes: only lists go out of date by this clock."""

    async def sleep(self, seconds):
        await asyncio.sleep(seconds)


@dataclass
class Rig:
    server: object
    toolsets: UserToolsets
    told: list
    clock: Clock

    def credentials(self, token, client="app"):
        return Credentials({"x-vault": token}, [b"k" * 32], scope=client)

    @asynccontextmanager
    async def request(self, token, client="app"):
        """The tools of a request, and how it calls them."""
        credentials = self.credentials(token, client)

        async def call(name="whoami", arguments="{}"):
            context = CallContext(client, default_timeout=10, credentials=credentials)
            return (await registry.execute(ToolCall("id", f"vault_{name}", arguments), context)).text

        try:
            registry = await self.toolsets.toolset_for(credentials)
            yield registry, call
        finally:
            credentials.end()

    async def registry(self, token, client="app"):
        async with self.request(token, client) as (registry, _):
            return registry

    async def call(self, token, name="whoami", *, client="app"):
        async with self.request(token, client) as (_, call):
            return (await call(name)).partition(": ")[0]

    async def no_session_is_left(self):
        """Wait for the ends of all sessions."""
        async with asyncio.timeout(20):
            await asyncio.gather(*self.server._tasks._tasks, return_exceptions=True)  # noqa: SLF001 - nobody else knows
        assert not self.server._sessions  # noqa: SLF001


@asynccontextmanager
async def vault_at(url, *, configured=lambda tool: tool, **config):
    told, clock = [], Clock()
    async with asyncio.TaskGroup() as tasks:
        resources = Resources(None, clock, observe=lambda event, /, **fields: told.append((event, fields)))
        config = McpConfig(url=url, headers=HEADERS, **config)
        server = KIND.serve("vault", config, configured, resources)
        shared, registry = SharedToolServer(server), Registry([], clock=clock)
        shared.publish_to(registry)
        await start_tool_servers([shared], tasks)
        try:
            yield Rig(server, UserToolsets(registry, [shared]), told, clock)
        finally:
            await shared.aclose()


class Arrivals:
    """The users whose requests have arrived at a server, in order, and the sessions that are open at it."""

    def __init__(self):
        self.users = []
        self.open = set()
        self.sessions = set()

    async def __call__(self, app, scope, receive, send):
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        self.users.append(user_of(headers))
        if (session := headers.get("mcp-session-id")) is not None:
            self.sessions.add(session)
            (self.open.discard if scope["method"] == "DELETE" else self.open.add)(session)
        await app(scope, receive, send)


@asynccontextmanager
async def vault(wiki=None, *, around=None, **more):
    async with wiki_at(wiki or Vault(), around=around) as url, vault_at(url, **more) as rig:
        yield rig


ANNE, BOB = "anne-s3cret", "bob-s3cret"


@pytest.mark.parametrize("legacy", [False, True])
async def test_each_user_has_a_list_of_their_own_which_is_offered_to_no_other(legacy):
    async with vault(Vault(legacy=legacy)) as rig:
        nobody = await rig.toolsets.toolset_for(NO_CREDENTIALS)
        assert nobody.specs == {}
        assert {name: spec.needs for name, spec in nobody.unlisted.items()} == {"vault": {"x-vault"}}
        for token in (ANNE, BOB, ANNE):
            registry = await rig.registry(token)
            assert registry is await rig.registry(token), "nothing is made anew while nothing changes"
            assert registry is not await rig.registry(token, "another"), "a value is known of one client alone"
            user = token.partition("-")[0]
            assert [*registry.specs][:4] == ["vault_whoami", "vault_wait", "vault_fail", f"vault_of_{user}"]
            assert await rig.call(token) == user


@pytest.mark.parametrize("legacy", [False, True])
async def test_a_session_lives_as_long_as_the_request_that_began_it(legacy):
    arrived = Arrivals()
    async with vault(Vault(legacy=legacy), around=arrived) as rig:
        async with rig.request(ANNE) as (_, call):
            assert [await call(), await call()] == ["anne: Bearer [secret]"] * 2
            assert len(arrived.sessions) == (1 if legacy else 0)
        await rig.no_session_is_left()
        assert not arrived.open
        asked = len(arrived.users)
        await rig.registry(ANNE)
        assert len(arrived.users) == asked, "within a minute the list is known, and nothing is begun"
        rig.clock.now += 61
        await rig.registry(ANNE)
        assert len(arrived.users) > asked
        await rig.no_session_is_left()
        assert not arrived.open


async def test_nothing_of_a_token_is_in_lists_answers_errors_and_events():
    async with vault() as rig, rig.request(ANNE) as (registry, call):
        said = await call()
        with pytest.raises(ToolError) as failed:
            await call("fail")
        seen = f"{registry.specs} {said} {failed.value} {rig.told}"
    assert said == "anne: Bearer [secret]"
    assert registry.specs["vault_whoami"].description == "For Bearer [secret]."
    assert "vault__secret_" in registry.specs
    assert "s3cret" not in seen


async def test_two_users_at_random_never_get_the_others_answer_nor_a_cached_one_of_the_other():
    async with vault(configured=lambda tool: replace(tool, cache_seconds=60)) as rig:
        chosen = random.Random(7)

        async def ask():
            token = chosen.choice((ANNE, BOB))
            return token.startswith(await rig.call(token))

        assert all(await asyncio.gather(*(ask() for _ in range(60))))


async def test_nothing_is_begun_for_a_request_that_may_not_use_the_server():
    arrived = Arrivals()
    async with vault(around=arrived) as rig:
        registry = await rig.toolsets.toolset_for(rig.credentials(ANNE), lambda server: server.group != "vault")
        assert (registry.specs, arrived.users) == ({}, [])


async def test_a_call_is_made_with_the_requests_own_value_whichever_users_list_the_tool_is_from():
    async with vault() as rig:
        registry, bob = await rig.registry(ANNE), rig.credentials(BOB)
        context = CallContext("app", default_timeout=10, credentials=bob)
        assert (await registry.execute(ToolCall("id", "vault_whoami", "{}"), context)).text.startswith("bob")
        bob.end()
        with pytest.raises(ToolError, match="not reached any more"):
            await registry.execute(ToolCall("id", "vault_whoami", "{}"), context)
        await rig.no_session_is_left()


async def test_a_value_that_the_server_refuses_costs_that_request_its_tools():
    async with vault(around=lambda _, *asgi: answering(401, b"no")(*asgi)) as rig:
        assert (await rig.registry(ANNE)).specs == {}
        await rig.no_session_is_left()
    assert [fields["why"] for event, fields in rig.told if event == "mcp.lost"] == ["answered HTTP 401"]


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
    arrived = Arrivals()
    async with vault(around=arrived) as rig:
        assert (await rig.registry("schl\u00fcssel")).specs == {}
    assert arrived.users == []


async def test_calls_of_a_server_that_is_served_no_more_fail():
    async with vault() as rig:
        registry = await rig.registry(ANNE)
    context = CallContext("app", default_timeout=10, credentials=rig.credentials(BOB))
    with pytest.raises(ToolError, match="not reached any more"):
        await registry.execute(ToolCall("id", "vault_whoami", "{}"), context)


async def test_a_server_that_does_not_list_in_time_holds_up_one_request_and_not_the_next(monkeypatch):
    monkeypatch.setattr("proxy.tools.kinds.mcp.users._PATIENCE", 1.0)
    arrived = Arrivals()

    async def silent(*_):
        await asyncio.Event().wait()

    async def around(_, *asgi):
        await arrived(silent, *asgi)

    async with vault(around=around) as rig:
        for _ in range(3):
            assert (await rig.registry(ANNE)).specs == {}
        await rig.no_session_is_left()
        assert len(arrived.users) == 1
        rig.clock.now += 11
        await rig.registry(ANNE)
        assert len(arrived.users) == 2


@pytest.mark.parametrize("legacy", [False, True])
async def test_a_server_that_restarts_during_a_request_gets_a_new_session_and_the_call_once_more(legacy):
    port = free_port()
    async with vault_at(f"http://127.0.0.1:{port}/mcp") as rig:
        async with wiki_at(Vault(legacy=legacy), port=port):
            request = rig.request(ANNE)
            _, call = await request.__aenter__()
            assert (await call()).startswith("anne")
        with pytest.raises(ToolUnavailable):
            await call()
        async with wiki_at(Vault(legacy=legacy), port=port):
            assert (await call()).startswith("anne")
            await request.__aexit__(None, None, None)
            await rig.no_session_is_left()


# A connection that arrives at the test's own server while it stops is left open there.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("legacy", [False, True])
async def test_no_session_outlives_its_request_when_clients_leave_while_the_server_restarts(legacy):
    """A hundred requests with ever new values, each left at another place, at a server that comes and goes."""
    port, arrived, chosen = free_port(), Arrivals(), random.Random(11)

    async def turns(most):
        for _ in range(chosen.randrange(most)):
            await asyncio.sleep(0)

    async def leave(number):
        asking = asyncio.create_task(rig.call(f"user{number}-s3cret"))
        await turns(300)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)

    async with vault_at(f"http://127.0.0.1:{port}/mcp") as rig:
        for first in range(0, 100, 25):
            async with wiki_at(Vault(legacy=legacy), port=port, around=arrived):
                leaving = [asyncio.create_task(leave(number)) for number in range(first, first + 25)]
                await turns(300)
            await asyncio.gather(*leaving)
        async with wiki_at(Vault(legacy=legacy), port=port, around=arrived):
            await rig.no_session_is_left()
            for token in (ANNE, BOB):
                assert await rig.call(token) == token.partition("-")[0]
            await rig.no_session_is_left()
    gc.collect()  # of such connections, while they are ignored


async def test_a_session_ends_even_if_the_client_swallows_its_cancellation(monkeypatch):
    connecting = asyncio.Event()

    @asynccontextmanager
    async def swallowing(*_, **__):
        """A client whose scopes take the cancellation for one of theirs, and which is connected after all."""
        connecting.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            asyncio.current_task().uncancel()
        yield

    monkeypatch.setattr("proxy.tools.kinds.mcp.users.open_client", swallowing)
    session = RequestSession(McpConfig(url="http://h"), lambda *_: None)
    session.task = asyncio.create_task(session.hold())
    await connecting.wait()
    session.close()
    await asyncio.wait_for(session.task, 20)
    with pytest.raises(ToolUnavailable):
        await session.client()


async def test_a_changed_definition_is_told_without_its_text():
    wiki = Vault()
    async with vault(wiki) as rig:
        await rig.registry(ANNE)
        wiki.says = "Obey"
        await rig.registry(BOB)
        assert [fields for event, fields in rig.told if event == "tool.changed"] == [], "lists differ by user"
        rig.clock.now += 61
        await rig.registry(ANNE)
    told = [fields for event, fields in rig.told if event == "tool.changed"]
    assert [one["tool"] for one in told] == ["whoami", "wait", "fail", "of_anne"]
    assert all(one["before"] != one["after"] and one["change"] is None for one in told)
    assert "Obey" not in str(rig.told)


def test_a_client_has_half_of_the_lists_at_most_and_pushes_no_others_out():
    lists = UserLists(FakeClock())
    for number in range(30):
        lists.put(f"quiet {number}", UserList("quiet"), seconds=60)
    for number in range(1000):
        lists.put(f"greedy {number}", UserList("greedy"), seconds=60)
        assert len(lists) <= MOST_LISTS
    assert [lists.get(f"quiet {number}") is not None for number in range(30)] == [True] * 30
    kept = [number for number in range(1000) if lists.get(f"greedy {number}") is not None]
    assert kept == [*range(1000 - MOST_LISTS // 2, 1000)]
