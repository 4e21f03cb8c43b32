"""SIGHUP of a server that was started on a terminal: whether that is gone, or the file is to be read again."""

import fcntl
import os
import re
import signal
import subprocess
import sys
import termios
import time
from contextlib import contextmanager

import httpx
import pytest

from proxy.server.hangup import Hangup

CONFIG = """
upstreams: {up: {base_url: "http://127.0.0.1:9/v1", api_key: k}}
models: {m: {upstream: up}}
server: {port: 0, workers: %d, idle_timeout_seconds: 1}
"""


class Terminal:
    """A clock and a terminal, for a `Hangup`."""

    def __init__(self, *, exists=True, **more):
        self.seconds, self.exists = 100.0, exists
        self.hangup = Hangup(now=lambda: self.seconds, has_terminal=lambda: self.exists, **more)

    def passes(self, seconds, *, exists=True):
        """Let time pass, in ticks of a tenth of a second; whether one of them found that the terminal has hung up."""
        found = []
        for _ in range(round(seconds * 10)):
            self.exists = exists
            self.seconds += 0.1
            found.append(self.hangup.look())
        return sum(found)


def test_a_terminal_that_goes_with_the_signal_has_hung_up_in_either_order():
    first = Terminal()
    assert first.passes(60) == 0
    first.hangup.signal()
    assert first.passes(1.5) == 0
    assert first.passes(5, exists=False) == 1
    after = Terminal()
    assert after.passes(1.5, exists=False) == 0
    after.hangup.signal()
    assert after.passes(5, exists=False) == 1


def test_a_signal_long_before_or_long_after_the_end_of_the_terminal_is_another_one():
    before = Terminal()
    before.hangup.signal()
    assert before.passes(2.5) == 0
    assert before.passes(5, exists=False) == 0
    after = Terminal()
    assert after.passes(2.5, exists=False) == 0
    after.hangup.signal()
    assert after.passes(5, exists=False) == 0


def test_a_process_that_was_busy_while_its_terminal_went_has_hung_up_too():
    terminal = Terminal()
    terminal.seconds += 30
    terminal.exists = False
    terminal.hangup.signal()
    terminal.seconds += 30
    assert terminal.passes(1, exists=False) == 1


@pytest.mark.parametrize("more", [{"exists": False}, {"is_ignored": True}])
def test_without_a_terminal_at_the_start_or_with_nohup_nothing_hangs_up(more):
    terminal = Terminal(**more)
    terminal.hangup.signal()
    assert terminal.passes(5, exists=False) == 0


@contextmanager
def on_terminal(tmp_path, *, workers=1, before=()):
    """The command on a terminal of its own, which `close` ends; with what is run before it by the same shell."""
    (tmp_path / "config.yaml").write_text(CONFIG % workers)
    ours, theirs = os.openpty()
    log = (tmp_path / "log").open("wb")
    process = subprocess.Popen(
        [*before, sys.executable, "-m", "proxy", "serve", "--config", str(tmp_path / "config.yaml")],
        stderr=log,
        preexec_fn=lambda: (os.setsid(), _take(theirs)),  # noqa: PLW1509 - no threads are running here
    )
    os.close(theirs)
    try:
        shown = b""
        while not (found := re.search(rb"serving at (http://\S+)/v1\r?\n", shown)):
            shown += os.read(ours, 64)  # so that the terminal may be closed before all is written
        yield process, found[1].decode(), lambda: os.close(ours)
    finally:
        process.kill()
        process.wait()
        log.close()


def _take(terminal):
    """Make the terminal the session's, with standard input and output; standard error stays."""
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
    os.dup2(terminal, 0)
    os.dup2(terminal, 1)


def reloads(url):
    text = httpx.get(f"{url}/metrics", timeout=20).text
    return sum(
        float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith("toolproxy_reloads_total")
    )


def until_reloaded(url, times):
    ends_at = time.monotonic() + 20
    while reloads(url) < times:
        assert time.monotonic() < ends_at


@pytest.mark.parametrize("workers", [1, 2])
def test_serve_stops_when_its_terminal_is_closed_and_reloads_at_a_sighup_beside_it(tmp_path, workers):
    with on_terminal(tmp_path, workers=workers) as (process, url, close):
        process.send_signal(signal.SIGHUP)
        if workers == 1:
            until_reloaded(url, 1)
        assert httpx.get(f"{url}/healthz", timeout=20).status_code == 200
        close()
        assert process.wait(timeout=30) == 0
    assert b"server.stopped" in (tmp_path / "log").read_bytes()


def test_serve_under_nohup_lives_on_without_its_terminal_and_reloads_at_sighup(tmp_path):
    nohup = ["sh", "-c", 'trap "" HUP; exec "$@"', "sh"]
    with on_terminal(tmp_path, before=nohup) as (process, url, close):
        close()
        process.send_signal(signal.SIGHUP)
        until_reloaded(url, 1)
        assert process.poll() is None
