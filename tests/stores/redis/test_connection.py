import asyncio
import socket

import pytest
import trustme

from proxy.stores.shared.state import StateUnavailable
from tests.redis_server import RedisServer


async def ping(shared):
    async with shared.reached() as redis:
        return await redis.ping()


async def test_while_it_can_be_reached_nothing_is_said(process, heard):
    async with process() as shared:
        await shared.probe()
        assert await ping(shared)
        assert shared.readiness().usable
    assert heard == []


async def test_when_it_is_killed_that_is_told_once_and_when_it_is_back_again(process, heard, redis_server):
    async with process() as shared:
        assert await ping(shared)
        redis_server.stop()
        for _ in range(3):
            with pytest.raises(StateUnavailable, match="cannot be reached"):
                await ping(shared)
        await shared.probe()
        assert heard == ["state.unavailable"]
        assert shared.readiness().why_not.startswith("it cannot be reached: Connect")
        redis_server.start()
        with pytest.raises(StateUnavailable):  # nobody tries before a probe has
            await ping(shared)
        await shared.probe()
        assert await ping(shared)
    assert heard == ["state.unavailable", "state.recovered"]
    assert f"127.0.0.1:{redis_server.port}/0" in heard.said


async def test_after_it_was_started_again_in_a_moment_nobody_notices(process, heard, redis_server):
    async with process() as shared:
        assert await ping(shared)
        redis_server.stop()
        redis_server.start()
        assert await ping(shared)
    assert heard == []


async def test_it_may_be_away_from_the_start(process, heard, redis_server):
    redis_server.stop()
    async with process() as shared:
        await shared.probe()
        assert heard == ["state.unavailable"]
        redis_server.start()
        await shared.probe()
        assert await ping(shared)


async def test_a_server_that_takes_connections_and_says_nothing_is_not_waited_for_long(process, heard):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}"
        async with process(url=url) as shared, asyncio.timeout(5):
            with pytest.raises(StateUnavailable, match="no answer within 1 s"):
                await ping(shared)
            with pytest.raises(StateUnavailable):
                await ping(shared)
    assert heard == ["state.unavailable"]


ANSWERS = {
    b"-NOAUTH Authentication required.": "it wants a password, and state.url has none (NOAUTH)",
    b"-DENIED Redis is running in protected mode": "it is in protected mode and takes no connection from other machines: "
    "give it a password (DENIED)",
    b"-NOPERM User canary has no permissions to run the 'set' command": "its user may not run the commands that are "
    "needed (NOPERM)",
    b"-OOM command not allowed when used memory > 'maxmemory'.": "its memory is full (OOM)",
    b"-MISCONF Redis is configured to save RDB snapshots": "it takes no writes because it cannot save them to its disk "
    "(MISCONF)",
    b"-LOADING Redis is loading the dataset in memory": "it is still loading its data (LOADING)",
    b"-MOVED 3999 10.0.0.7:6381": "it is a node of a cluster, and a single server is needed (MOVED)",
    b"-ERR max number of clients reached": "it has as many clients as it takes",
    b"-ERR unknown command 'SET', with args beginning with: 'canary'": "it does not know a command that is needed: "
    "is it a Sentinel, or older than Redis 7?",
    b"-ERR something about the canary": "it refuses commands (ResponseError)",
    b"HTTP/1.1 400 Bad Request": "what answers there is not Redis",
    b"": "it closed the connection: is it Redis, and should the URL begin with rediss://?",
}


@pytest.mark.parametrize("scheme", ["redis", "rediss"])
@pytest.mark.parametrize(("answer", "why"), ANSWERS.items(), ids=[why[:30] for why in ANSWERS.values()])
async def test_why_a_server_cannot_be_used_is_told_in_words_of_ours(process, heard, answer, why, scheme):
    async def serve(reader, writer):
        if await reader.read(1000):
            writer.write(answer + b"\r\n" if answer else b"")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        at = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with process(url=f"{scheme}://{at}") as shared:
            await shared.probe()
            told = shared.readiness().why_not
    if scheme == "redis":
        assert told == why
    elif answer:
        assert told == "it does not speak TLS at that port: should the URL begin with redis://?"
    assert heard == ["state.unavailable"]
    assert "canary" not in heard.said
    assert told in heard.said


@pytest.mark.parametrize(
    ("userinfo", "why"),
    [
        ("", r"it wants a password, and state.url has none \(NOAUTH\)"),
        (":wr%40ng-secret@", r"it refuses the user or the password \(WRONGPASS\)"),
        ("nobody:wr%40ng-secret@", r"it refuses the user or the password \(WRONGPASS\)"),
    ],
)
async def test_a_password_that_is_refused_is_told_without_the_password(process, heard, tmp_path, userinfo, why):
    server = RedisServer(tmp_path, password="right-secret").start()
    try:
        async with process(url=f"redis://{userinfo}127.0.0.1:{server.port}/3") as shared:
            with pytest.raises(StateUnavailable, match=why) as caught:
                await ping(shared)
        async with process(url=server.url) as shared:
            assert await ping(shared)
    finally:
        server.stop()
    assert "secret" not in heard.said + str(caught.value) + repr(shared.readiness())
    assert f"127.0.0.1:{server.port}/3" in heard.said


async def test_certificates_are_verified(process, tmp_path, monkeypatch):
    authority, stranger = trustme.CA(), trustme.CA()
    certificate = tmp_path / "server.pem"
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(certificate)
    server = RedisServer(tmp_path, certificate=certificate).start()
    try:
        for trusted, host, fine in [(authority, "localhost", True), (authority, "127.0.0.1", False),
                                    (stranger, "localhost", False)]:  # fmt: skip
            trusted.cert_pem.write_to_path(tmp_path / "authority.pem")
            monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
            async with process(url=f"rediss://{host}:{server.port}/0") as shared:
                if fine:
                    assert await ping(shared)
                    continue
                with pytest.raises(StateUnavailable, match="certificate verify failed"):
                    await ping(shared)
    finally:
        server.stop()


async def test_a_command_that_is_refused_is_told_without_what_it_said(process, heard):
    async with process() as shared:
        with pytest.raises(StateUnavailable, match="does not know a command") as caught:
            async with shared.reached() as redis:
                await redis.execute_command("NOSUCHCOMMAND", "canary")
    assert "canary" not in heard.said + str(caught.value)


async def test_a_server_that_can_be_read_only_counts_as_away_until_it_can_be_written(process, heard, redis_server):
    async with process() as shared, process() as operator:
        await operator.client.replicaof("127.0.0.1", 1)
        await shared.probe()
        await shared.probe()
        assert heard == ["state.unavailable"]
        assert shared.readiness().why_not == "it is a replica, which cannot be written to (READONLY)"
        await operator.client.replicaof("NO", "ONE")
        await shared.probe()
        assert heard == ["state.unavailable", "state.recovered"]


async def test_it_is_probed_again_and_again(process, heard, redis_server):
    class Steps:
        """A clock that sleeps until the test says so."""

        def __init__(self):
            self.next = asyncio.Event()

        def time(self):
            return 0.0

        async def sleep(self, seconds):
            await self.next.wait()
            self.next.clear()

    clock = Steps()
    redis_server.stop()
    async with process(clock=clock) as shared, asyncio.TaskGroup() as group, asyncio.timeout(10):
        watching = group.create_task(shared.watch())
        await until(lambda: "state.unavailable" in heard, clock)
        redis_server.start()
        await until(lambda: "state.recovered" in heard, clock)
        watching.cancel()
        assert heard == ["state.unavailable", "state.recovered"]  # once each, however often it was probed
        assert shared.readiness().usable


async def until(happened, clock):
    while not happened():
        clock.next.set()
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("warm", [False, True], ids=["connecting", "connected"])
async def test_whoever_is_cancelled_in_the_middle_of_a_command_goes_no_further(process, warm):
    """However far the command has come: a request must end when its client has left."""
    async with process() as shared:

        async def command():
            await ping(shared)
            await asyncio.Event().wait()

        for steps in range(40):
            if warm:
                await ping(shared)
            else:
                await shared.pool.disconnect()
            task = asyncio.ensure_future(command())
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            done, _ = await asyncio.wait([task], timeout=1)
            assert done, f"lost after {steps} steps"
        assert await ping(shared)
