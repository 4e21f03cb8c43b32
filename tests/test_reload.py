"""Reloading from outside: real processes, real signals, real files."""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import ClassVar

import httpx
import msgspec
import orjson
import pytest

from proxy.app import create_app
from proxy.app.configuration import parse
from proxy.config import model as c
from proxy.config import redaction
from proxy.server.graceful import Server
from proxy.server.process import _put_in_force, uvicorn_config
from proxy.server.reload import FileWatch, Reloads, Trigger, keep_fixed, report
from tests.fakes import FakeUpstream, chunk, stream, whole
from tests.serving import CONFIG, serving
from tests.test_cli import running

ASK = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
OLD, NEW = "the-old-key-of-the-app", "the-new-key-of-the-app"
SYSTEMD_ANALYZE = shutil.which("systemd-analyze")
FAULTY = "server:\n  prot: 1\n"


def clients(*keys, more=""):
    return f"clients: [{{name: app, key: [{', '.join(keys)}]}}]\n{more}"


@asynccontextmanager
async def proxying(tmp_path, *options, replies=()):
    """The command in front of a fake upstream; `write` replaces the file."""
    async with serving(FakeUpstream([*replies]), lifespan="off") as upstream:
        config = tmp_path / "config.yaml"

        def write(more):
            text = more if more == FAULTY else CONFIG.format(upstream=upstream, more=more)
            (tmp_path / "new").write_text(text)
            (tmp_path / "new").replace(config)

        write(clients(OLD))
        with running("serve", "--port", "0", "--config", str(config), *options) as (process, url):
            yield process, url, write


async def status_with(url, key):
    """The status of a request over a connection of its own."""
    async with httpx.AsyncClient(timeout=20) as client:
        headers = {"authorization": f"Bearer {key}"}
        return (await client.get(f"{url}/v1/models", headers=headers)).status_code


async def until_each_worker(url, key, status, *, looks=12):
    """Wait until that many requests in a row, each over a connection of its own, are answered like this."""
    async with asyncio.timeout(20):
        while {await status_with(url, key) for _ in range(looks)} != {status}:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.05)


async def metric(url, name):
    async with httpx.AsyncClient(timeout=20) as client:
        lines = (await client.get(f"{url}/metrics")).text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"toolproxy_{name}"))


async def until_metric(url, name, value):
    async with asyncio.timeout(20):
        while await metric(url, name) != value:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_key_changes_while_a_stream_is_open_and_a_faulty_file_changes_nothing(tmp_path, workers):
    gate = asyncio.Event()
    half = stream(chunk({"content": "One"}), gate, chunk({"content": " two"}), chunk({}, "stop"))
    async with (
        proxying(tmp_path, "--workers", str(workers), replies=[half]) as (process, url, write),
        httpx.AsyncClient(timeout=30, headers={"authorization": f"Bearer {OLD}"}) as client,
    ):
        async with client.stream("POST", f"{url}/v1/chat/completions", json={**ASK, "stream": True}) as answer:
            pieces = answer.aiter_text()
            text = await anext(pieces)
            write(FAULTY)
            process.send_signal(signal.SIGHUP)
            await until_metric(url, 'reloads_total{outcome="refused"}', 1)
            assert await metric(url, "config_last_reload_successful") == 0
            write(clients('"${NOT_SET_ANYWHERE}"'))  # would let anyone in
            process.send_signal(signal.SIGHUP)
            await until_metric(url, 'reloads_total{outcome="refused"}', 2)
            assert await status_with(url, OLD) == 200
            write(clients(NEW, more="server: {max_body_bytes: 1000}\nstate: {ttl: 5}"))
            process.send_signal(signal.SIGHUP)
            await until_each_worker(url, OLD, 401)
            await until_each_worker(url, NEW, 200)
            assert await metric(url, "config_last_reload_successful") == 1
            gate.set()
            text += "".join([piece async for piece in pieces])
        assert text.endswith("data: [DONE]\n\n")
        body = {"json": {**ASK, "padding": "x" * 1000}, "headers": {"authorization": f"Bearer {NEW}"}}
        assert (await client.post(f"{url}/v1/chat/completions", **body)).status_code == 413
        process.terminate()
        _, log = await asyncio.to_thread(process.communicate)
    lines = [orjson.loads(line) for line in log.splitlines()]
    events = [line["event"] for line in lines]
    for event in ("server.started", "server.ready", "configuration.reloaded", "server.draining", "server.stopped"):
        assert events.count(event) == 1, event
    [faulty, opening] = [line["faults"] for line in lines if line["event"] == "configuration.refused"]
    assert faulty == ["config.yaml:2: server.prot: " + faulty[0].partition("prot: ")[2]]
    assert opening[0].startswith("no client is usable any more, so anyone could call")
    assert lines[events.index("configuration.needs_restart")]["where"].endswith(": state.ttl")
    assert process.returncode == 0


async def test_a_watched_file_that_is_replaced_is_read(tmp_path):
    async with proxying(tmp_path, "--watch") as (_, url, write):
        write(clients(NEW))
        await until_each_worker(url, NEW, 200, looks=1)


async def test_signals_from_the_first_moment_on_do_no_harm(tmp_path):
    async with proxying(tmp_path, replies=[whole("Hi")]) as (process, url, _):
        for _ in range(50):
            process.send_signal(signal.SIGHUP)
        await until_metric(url, "config_last_reload_successful", 1)
        process.terminate()
        while process.poll() is None:
            process.send_signal(signal.SIGHUP)
            await asyncio.sleep(0.01)
        assert process.returncode == 0


async def test_what_has_not_changed_goes_on_and_what_has_is_closed_with_its_last_request():
    first = parse(CONFIG.format(upstream="http://127.0.0.1:1", more=""), {})
    app = create_app(first)
    async with serving(app):
        before = app.current
        await app.reload(parse(CONFIG.format(upstream="http://127.0.0.1:1", more="limits: {max_turns: 2}"), {}))
        assert app.current is not before
        assert app.current.upstreams["up"] is before.upstreams["up"]
        kept = before.registry.tool_states["web_search"]
        assert app.current.registry.tool_states["web_search"] is kept
        kept.breaker.trip(0, float("inf"))
        kept.cause = "key"
        await app.reload(first)
        assert app.current.registry.tool_states["web_search"].breaker.allows(0)
        await app.reload(parse(CONFIG.format(upstream="http://127.0.0.1:2", more=""), {}))
        assert app.current.upstreams["up"] is not before.upstreams["up"]


def test_a_change_of_a_file_is_seen_once_and_only_when_it_has_settled(tmp_path):
    path, link = tmp_path / "one", tmp_path / "link"
    path.write_text("a")
    link.symlink_to(path)
    watch = FileWatch(link)
    assert watch.look() is None
    path.write_text("a longer text")
    assert [watch.look() for _ in range(3)] == [None, "changed", None]
    path.unlink()
    assert watch.look() is None
    other = tmp_path / "other"
    other.write_text("another")
    link.unlink()
    link.symlink_to(other)
    assert [watch.look() for _ in range(3)] == [None, "changed", None]


def test_a_watched_file_that_is_gone_is_told_of_once_and_read_when_there_is_one_again(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(text := CONFIG.format(upstream="http://127.0.0.1:1", more=""))
    seconds, told = iter(range(100)), []
    trigger = Trigger(now=lambda: next(seconds))
    trigger.watch(path)
    reloads = Reloads(
        before := parse(text, {}),
        load=lambda: parse(path.read_text(), {}),
        check=lambda *_: None,
        trigger=trigger,
        observe=lambda event, /, **_: told.append(event),
    )
    path.unlink()
    assert [reloads.reload() for _ in range(5)] == [None] * 5
    assert told == ["configuration.gone"]
    assert reloads.loaded is before
    path.write_text(text)
    assert [reloads.reload() is None for _ in range(5)] == [True, False, True, True, True]
    assert told == ["configuration.gone", "configuration.reloaded"]


def test_a_reload_tells_only_the_news_of_what_is_disabled():
    told = []
    text = 'upstreams: {a: {base_url: "http://a/v1", api_key: "${A}"}, b: {base_url: "http://b/v1", api_key: "${B}"}}'
    one, two = parse(text, {"A": "k" * 9}), parse(text, {})

    def observe(event, /, **fields):
        if event == "configuration.disabled":
            told.append(fields["where"])

    report(one, observe)
    report(one, observe, before=one)
    report(two, observe, before=one)
    assert told == ["upstreams.b", "upstreams.a"]


def test_requests_to_read_the_file_are_joined():
    trigger = Trigger(now=lambda: 0.0)
    assert trigger.take() is None
    trigger.ask()
    trigger.ask()
    assert [trigger.take(), trigger.take()] == ["changed", None]


def test_what_is_bound_at_the_start_keeps_its_value():
    before = parse("server: {workers: 2}\nstate: {ttl: 5}\n", {})
    loaded, changed = keep_fixed(parse("server: {workers: 3, max_headers: 7}\nstate:\n  ttl: 6\n", {}), before)
    assert (loaded.config.server.workers, loaded.config.server.max_headers, loaded.config.state.ttl) == (2, 7, 5)
    assert changed == ["config.yaml:1: server.workers", "config.yaml:3: state.ttl"]


class Spied:
    """Notes which keys of a section are read, but for the masking of secrets, which reads all of them."""

    read: ClassVar[set] = set()

    def __getattribute__(self, name):
        if sys._getframe(1).f_globals["__name__"] != redaction.__name__:  # noqa: SLF001
            Spied.read.add(name)
        return super().__getattribute__(name)


async def test_what_is_read_only_when_a_process_starts_is_marked_as_needing_a_restart():
    loaded = parse(CONFIG.format(upstream="http://127.0.0.1:1", more=""), {})
    sections = {"server": c.ServerConfig, "state": c.StateConfig, "telemetry": c.TelemetryConfig}
    spies = {name: type(name, (Spied, kind), {}, frozen=True, kw_only=True)() for name, kind in sections.items()}
    loaded = msgspec.structs.replace(loaded, config=msgspec.structs.replace(loaded.config, **spies))
    Spied.read.clear()
    app = create_app(loaded)
    server = Server(uvicorn_config(loaded.config, app), grace=loaded.config.server.shutdown_grace_seconds)
    async with serving(app):
        at_the_start = {*Spied.read}
        Spied.read.clear()
        await _put_in_force(app, server, loaded)
    keys = {name: kind for kind in sections.values() for name in kind.__struct_fields__}
    only_then = {name for name in at_the_start - Spied.read if name in keys}
    assert only_then >= {"max_entries", "max_bytes", "otlp_endpoint"}
    assert {name for name in only_then if name not in keys[name].needs_restart} == set()


def test_a_second_start_says_who_has_the_port_and_how_to_reload_it(tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG.format(upstream="http://127.0.0.1:1", more=""))
    with running("serve", "--port", "0", "--config", str(config)) as (process, url):
        command = [sys.executable, "-m", "proxy", "serve", "--port", url.rpartition(":")[2], "--config", str(config)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"process {process.pid} (" in done.stderr
    assert f"kill -HUP {process.pid};" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_systemd_is_told_of_start_reload_and_stop(tmp_path, monkeypatch):
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG.format(upstream="http://127.0.0.1:1", more=""))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.settimeout(20)
        systemd.bind(str(tmp_path / "notify"))
        command = [sys.executable, "-m", "proxy", "serve", "--port", "0", "--config", str(config)]
        environ = {**os.environ, "NOTIFY_SOCKET": str(tmp_path / "notify")}
        process = subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        assert systemd.recv(100) == b"READY=1"
        process.send_signal(signal.SIGHUP)
        reloading, usec = systemd.recv(100).split(b"\n")
        assert reloading == b"RELOADING=1"
        assert 0 <= time.monotonic() - int(usec.removeprefix(b"MONOTONIC_USEC=")) / 1e6 < 60
        assert systemd.recv(100) == b"READY=1"
        process.terminate()
        assert systemd.recv(100) == b"STOPPING=1"
        assert process.wait(20) == 0


@pytest.mark.skipif(not SYSTEMD_ANALYZE, reason="needs systemd-analyze")
def test_the_unit_is_one_that_systemd_accepts(tmp_path):
    unit = tmp_path / "toolproxy.service"
    text = (Path(__file__).parent.parent / "deploy" / "systemd" / "toolproxy.service").read_text()
    unit.write_text(text.replace("/usr/local/bin/toolproxy", sys.executable))
    done = subprocess.run([SYSTEMD_ANALYZE, "verify", str(unit)], capture_output=True, text=True, check=False)
    assert [line for line in done.stderr.splitlines() if "toolproxy" in line] == []
    assert "ExecReload=/bin/kill -HUP $MAINPID" in text


async def test_an_mcp_server_stays_with_its_entry_and_ends_with_the_last_request_that_may_call_it():
    command = orjson.dumps([sys.executable, str(Path(__file__).with_name("mcp_server.py"))]).decode()
    with_server = f"tools: {{wiki: {{type: mcp, command: {command}}}}}"
    base = "upstreams: {up: {base_url: 'http://127.0.0.1:1', api_key: k}}\n"
    app = create_app(parse(base + with_server, {}))
    async with serving(app):
        names = {*app.current.registry.specs}
        assert names
        first, source = app.current, app.current.tool_servers["wiki"]
        first.open_requests += 1  # as an open request does
        await app.reload(parse(base + with_server + "\nlimits: {max_turns: 2}", {}))
        assert app.current.tool_servers["wiki"] is source
        assert {*app.current.registry.specs} == names
        await app.reload(parse(base, {}))
        assert not app.current.registry.specs
        assert source.server.state().usable
        first.open_requests -= 1
        await app.reload(parse(base + "limits: {max_turns: 3}", {}))
        app._close_if_idle(first)  # noqa: SLF001 - as the end of the request does
        async with asyncio.timeout(20):
            while source.server.state().usable:  # noqa: ASYNC110 - nobody announces it
                await asyncio.sleep(0.01)
