import asyncio
import socket

import pytest
import trustme
from redis.exceptions import ResponseError

from proxy.core.errors import StateUnavailable
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


@pytest.mark.parametrize("userinfo", ["", ":wr%40ng-secret@", "nobody:wr%40ng-secret@"])
async def test_a_password_that_is_refused_is_told_without_the_password(process, heard, tmp_path, userinfo):
    server = RedisServer(tmp_path, password="right-secret").start()
    try:
        async with process(url=f"redis://{userinfo}127.0.0.1:{server.port}/3") as shared:
            with pytest.raises(StateUnavailable, match="refuses the user or the password") as caught:
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
        with pytest.raises(StateUnavailable, match=ResponseError.__name__) as caught:
            async with shared.reached() as redis:
                await redis.execute_command("NOSUCHCOMMAND", "canary")
    assert "canary" not in heard.said + str(caught.value)


async def test_a_server_that_can_be_read_only_counts_as_away_until_it_can_be_written(process, heard, redis_server):
    async with process() as shared, process() as operator:
        await operator.client.replicaof("127.0.0.1", 1)
        await shared.probe()
        await shared.probe()
        assert heard == ["state.unavailable"]
        assert shared.readiness().why_not == "it refuses commands (ReadOnlyError)"
        await operator.client.replicaof("NO", "ONE")
        await shared.probe()
        assert heard == ["state.unavailable", "state.recovered"]


async def test_it_is_probed_again_and_again(process, heard, redis_server):
    class Steps:
        """A clock that sleeps until the test says so."""

        def __init__(self):
            self.next = asyncio.Event()

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
