"""How the command ends, and how its workers live: real processes, real signals."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import httpx
import orjson
import pytest

from tests.fakes import FakeUpstream, chunk, stream
from tests.serving import CONFIG, serving
from tests.test_cli import running

ASK = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "Hi"}]}
CHAT = "/v1/chat/completions"
ANEW = httpx.Limits(max_keepalive_connections=0)  # a connection for each request: any worker may get it


@asynccontextmanager
async def proxying(tmp_path, *, workers):
    """The command in front of an upstream whose answers stand still, half written, until the gate is opened."""
    gate = asyncio.Event()
    half = stream(chunk({"content": "One"}), gate, chunk({"content": " two"}), chunk({}, "stop"))
    config = tmp_path / "config.yaml"
    async with serving(FakeUpstream([half]), lifespan="off") as upstream:
        config.write_text(CONFIG.format(upstream=upstream, more=""))
        with running("serve", "--port", "0", "--workers", str(workers), "--config", str(config)) as (process, url):
            yield process, url, gate


async def streamed(client, url, begun):
    """The events of one stream; `begun` is released with each of them."""
    async with client.stream("POST", url + CHAT, json=ASK) as response:
        pieces = []
        async for piece in response.aiter_text():
            pieces.append(piece)
            begun.release()
        return "".join(pieces)


async def end_of(process, seconds):
    """The exit code, which has to be there in time, and what stood in the log."""
    _, log = await asyncio.wait_for(asyncio.to_thread(process.communicate), seconds)
    return process.returncode, log


async def until(condition):
    async with asyncio.timeout(20):
        while not await condition():  # noqa: ASYNC110 - processes send no events
            await asyncio.sleep(0.05)


async def is_draining(client, url):
    """Whether every one of a few health checks, each over a connection of its own, says so."""
    answers = [await client.get(f"{url}/readyz") for _ in range(4)]
    return all(answer.status_code == 503 and answer.json()["status"] == "draining" for answer in answers)


@pytest.mark.parametrize(("workers", "whole_group"), [(1, False), (2, False), (2, True)])
async def test_while_it_stops_open_streams_finish_health_is_answered_and_new_work_is_not_begun(
    tmp_path, workers, whole_group
):
    async with (
        proxying(tmp_path, workers=workers) as (process, url, gate),
        httpx.AsyncClient(timeout=30, limits=ANEW) as client,
    ):
        begun = asyncio.Semaphore(0)
        streams = [asyncio.ensure_future(streamed(client, url, begun)) for _ in range(50)]
        for _ in streams:
            await begun.acquire()
        for pid in [*(workers_of(process.pid) if whole_group else []), process.pid]:
            os.kill(pid, signal.SIGTERM)
        await until(lambda: is_draining(client, url))
        for _ in range(4):
            assert (await client.get(f"{url}/healthz")).status_code == 200
            refused = await client.post(url + CHAT, json=ASK)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "overloaded")
            assert int(refused.headers["retry-after"]) >= 1
            assert refused.headers["connection"] == "close"
        gate.set()
        for text in await asyncio.gather(*streams):
            assert text.endswith("data: [DONE]\n\n")
        code, log = await end_of(process, 10)
    assert code == 0
    assert "Traceback" not in log


def test_the_command_is_ready_for_signals_before_it_imports_anything_that_takes_time():
    code = "import sys, proxy.__main__; print(*sorted(m for m in sys.modules if m.startswith('proxy')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["proxy", "proxy.__main__"]


AS_FIRST_PROCESS = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]  # as in a container without an init
MAY_BE_FIRST = shutil.which("unshare") and not subprocess.run([*AS_FIRST_PROCESS, "true"], check=False).returncode


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    "launcher",
    [[], pytest.param(AS_FIRST_PROCESS, marks=pytest.mark.skipif(not MAY_BE_FIRST, reason="needs unshare, and leave"))],
    ids=["", "as the first process"],
)
async def test_a_signal_while_it_reads_its_configuration_ends_it(tmp_path, launcher, number):
    reading, config = tmp_path / "reading", tmp_path / "config.yaml"
    (tmp_path / "stuck.py").write_text(
        f"import pathlib, threading\npathlib.Path({str(reading)!r}).touch()\nthreading.Event().wait(30)\n"
    )
    config.write_text(
        CONFIG.format(upstream="http://127.0.0.1:1", more="  roll: {type: python, function: 'stuck:roll'}")
    )
    serve = ["serve", "--port", "0", "--config", str(config), "--app-dir", str(tmp_path)]
    with started([*launcher, sys.executable, "-m", "proxy", *serve]) as process:
        await until(async_(reading.exists))
        os.kill(command_in(process.pid, launcher), number)
        assert await end_of(process, 5) == (0, "")


async def test_a_signal_while_its_workers_start_ends_it_and_them(tmp_path):
    (tmp_path / "stuck.py").write_text(
        "import multiprocessing, threading\n"
        "if multiprocessing.parent_process():\n    threading.Event().wait(30)\n"
        "def roll(sides: int) -> str:\n    'Roll a die.'\n"
    )
    config = tmp_path / "config.yaml"
    tool = "  roll: {type: python, function: 'stuck:roll'}"
    config.write_text(CONFIG.format(upstream="http://127.0.0.1:1", more=tool))
    serve = ["serve", "--port", "0", "--workers", "2", "--config", str(config), "--app-dir", str(tmp_path)]
    with started([sys.executable, "-m", "proxy", *serve]) as process:
        await until(async_(lambda: len(workers_of(process.pid)) == 2))
        workers = workers_of(process.pid)
        process.send_signal(signal.SIGTERM)
        code, log = await end_of(process, 5)
    assert (code, [command_of(worker) for worker in workers]) == (0, [b"", b""])
    assert "Traceback" not in log


@contextmanager
def started(command):
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def command_in(pid, launcher):
    """The process that runs the command: a child of its launcher, where it has one."""
    if not launcher:
        return pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(children[0]) if children else None


async def writer_to(fifo):
    """A file descriptor, once somebody has opened the other end, who then reads until it is closed."""
    async with asyncio.timeout(20):
        while True:
            with suppress(OSError):
                return os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
            await asyncio.sleep(0.02)


async def test_a_front_has_three_seconds_to_notice_that_a_replica_stops(tmp_path):
    forwarded = {"x-forwarded-for": "192.0.2.1"}
    async with (
        proxying(tmp_path, workers=1) as (process, url, gate),
        httpx.AsyncClient(timeout=30, limits=ANEW) as client,
    ):
        begun = asyncio.Semaphore(0)
        stream = asyncio.ensure_future(streamed(client, url, begun))
        await begun.acquire()
        process.send_signal(signal.SIGTERM)
        signalled = time.monotonic()
        await until(lambda: is_draining(client, url))
        served = await client.get(f"{url}/v1/models", headers=forwarded)
        assert (served.status_code, served.headers["connection"]) == (200, "close")
        assert (await client.get(f"{url}/v1/models")).status_code == 503

        async def is_refused():
            return (await client.get(f"{url}/v1/models", headers=forwarded)).status_code == 503

        await until(is_refused)
        assert time.monotonic() - signalled > 3
        gate.set()
        assert (await stream).endswith("data: [DONE]\n\n")
        code, _ = await end_of(process, 10)
    assert code == 0


async def test_who_was_let_in_before_the_door_was_closed_is_answered(tmp_path):
    async with proxying(tmp_path, workers=1) as (process, url, _), httpx.AsyncClient() as client:
        place = httpx.URL(url)
        reader, writer = await asyncio.open_connection(place.host, place.port)
        await client.get(f"{url}/healthz")  # who came later was let in, so we were
        process.send_signal(signal.SIGTERM)
        await until(lambda: is_closed(place))
        writer.write(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        writer.close()
        code, _ = await end_of(process, 10)
    assert code == 0


async def is_closed(place):
    try:
        _, writer = await asyncio.open_connection(place.host, place.port)
    except ConnectionRefusedError:
        return True
    writer.close()
    return False


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_second_signal_is_immediate_and_streams_are_told(tmp_path, workers):
    async with (
        proxying(tmp_path, workers=workers) as (process, url, _),
        httpx.AsyncClient(timeout=30, limits=ANEW) as client,
    ):
        begun = asyncio.Semaphore(0)
        stream = asyncio.ensure_future(streamed(client, url, begun))
        await begun.acquire()
        process.send_signal(signal.SIGTERM)
        await until(lambda: is_draining(client, url))
        assert not stream.done()
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        text = await stream
        told = time.monotonic() - began
        code, _ = await end_of(process, 10)
    assert orjson.loads(text.rpartition("data: ")[2])["error"]["code"] == "overloaded"
    assert (code, told < 2) == (0, True)


async def test_idle_connections_and_half_sent_requests_do_not_keep_it(tmp_path):
    async with proxying(tmp_path, workers=1) as (process, url, _):
        host, port = url.removeprefix("http://").split(":")
        idle, half, silent = [await asyncio.open_connection(host, int(port)) for _ in range(3)]
        idle[1].write(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        await idle[0].readuntil(b"}")
        half[1].write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n")
        await half[1].drain()
        process.send_signal(signal.SIGTERM)
        code, _ = await end_of(process, 10)
        for reader, writer in (idle, half, silent):
            with suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()
    assert code == 0


def workers_of(pid):
    """The processes that serve; multiprocessing has another one, which keeps track of resources."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in children if b"spawn_main" in command_of(child)]


def command_of(pid):
    """A process's command; nothing when it has ended, or is only waiting to be buried."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:
        return b""


async def test_a_worker_that_dies_is_replaced_and_the_others_go_on(tmp_path):
    async with proxying(tmp_path, workers=2) as (process, url, _), httpx.AsyncClient(timeout=30, limits=ANEW) as client:
        before = workers_of(process.pid)
        os.kill(before[0], signal.SIGKILL)
        await until(async_(lambda: not command_of(before[0])))
        for _ in range(5):
            assert (await client.get(f"{url}/healthz")).status_code == 200
        await until(async_(lambda: len(set(workers_of(process.pid)) - {before[0]}) == 2))
        process.send_signal(signal.SIGTERM)
        code, log = await end_of(process, 10)
    assert code == 0
    (line,) = [line for line in map(orjson.loads, log.splitlines()) if line["event"] == "worker.died"]
    assert (line["pid"], line["exit_code"]) == (before[0], -signal.SIGKILL)


async def test_four_workers_serve_and_stop_at_once_whoever_asked_meanwhile(tmp_path):
    async with proxying(tmp_path, workers=4) as (process, url, _), httpx.AsyncClient(timeout=30, limits=ANEW) as client:
        for _ in range(8):
            assert (await client.get(f"{url}/healthz")).status_code == 200
        process.send_signal(signal.SIGTERM)
        code, log = await end_of(process, 10)
    assert code == 0
    assert "Traceback" not in log


def listens(pid, port):
    """Whether a process has a socket open that listens at a port."""
    table = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    listeners = {f"socket:[{row[9]}]" for row in table if row[1].endswith(f":{port:04X}") and row[3] == "0A"}
    return any(str(descriptor.readlink()) in listeners for descriptor in Path(f"/proc/{pid}/fd").iterdir())


async def test_only_the_workers_keep_the_listener_open_while_they_stop(tmp_path):
    """A client that connected after the last of them has closed it would get no answer from the first process."""
    async with (
        proxying(tmp_path, workers=2) as (process, url, gate),
        httpx.AsyncClient(timeout=30, limits=ANEW) as client,
    ):
        port, begun = httpx.URL(url).port, asyncio.Semaphore(0)
        stream = asyncio.ensure_future(streamed(client, url, begun))
        await begun.acquire()
        assert listens(process.pid, port)
        process.send_signal(signal.SIGTERM)
        await until(lambda: is_draining(client, url))
        assert not listens(process.pid, port)
        gate.set()
        await stream
        code, _ = await end_of(process, 10)
    assert code == 0


async def test_workers_do_not_outlive_their_supervisor(tmp_path):
    async with proxying(tmp_path, workers=2) as (process, _, __):
        workers = workers_of(process.pid)
        assert len(workers) == 2
        process.kill()
        await until(async_(lambda: not any(map(command_of, workers))))


def async_(condition):
    """A condition that is known at once, for `until`."""

    async def known():
        return condition()

    return known
