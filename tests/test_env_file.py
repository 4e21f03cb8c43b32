"""The file `.env` beside the configuration: it fills variables, and nothing else."""

import os
import signal

import pytest

from proxy.app.configuration import load
from proxy.commands.cli import main
from proxy.config.redaction import secrets_of
from proxy.server.reload import Trigger
from proxy.wire.errors import ConfigurationError
from tests.serving import CONFIG
from tests.test_cli import running, toolproxy
from tests.test_reload import status_with, until_each_worker, until_metric

TEXT = CONFIG.format(upstream="http://127.0.0.1:1", more='clients: [{name: app, key: "${APP_KEY}"}]')
FIRST, SECOND = "the-first-key-of-the-app", "the-second-key-of-the-app"


@pytest.fixture
def place(tmp_path):
    """A folder with a configuration."""
    (tmp_path / "config.yaml").write_text(TEXT)
    return tmp_path


def read(place, environ=None):
    return load(place / "config.yaml", environ or {}, env_file=place / ".env")


@pytest.mark.parametrize(
    ("environ", "key"), [({}, FIRST), ({"APP_KEY": ""}, FIRST), ({"APP_KEY": SECOND}, SECOND)], ids=str
)
def test_env_file_fills_variables_that_are_not_set_or_empty_in_the_environment(place, environ, key):
    (place / ".env").write_text(f"APP_KEY={FIRST}\n")
    assert read(place, environ).config.clients[0].key == key


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("export APP_KEY = plain  # a comment", "plain"),
        ("APP_KEY='single # quoted'", "single # quoted"),
        (r'APP_KEY="double \"quoted\""', 'double "quoted"'),
        ("OTHER=x\nAPP_KEY=${OTHER}$OTHER", "${OTHER}$OTHER"),
        ("APP_KEY=first\nAPP_KEY=last", "last"),
        ("\ufeffAPP_KEY=begun-by-windows\r\nB=\r\n", "begun-by-windows"),
        ('APP_KEY="two\nlines"', "two\nlines"),
    ],
)
def test_env_file_has_quotes_comments_and_no_expansion(place, line, value):
    (place / "config.yaml").write_text('tools: {t: {type: mcp, command: [x], env: {A: "${APP_KEY}"}}}')
    (place / ".env").write_bytes(line.encode())
    loaded = read(place)
    assert loaded.config.tools["t"].env == {"A": value}
    assert loaded.warnings == ()


def test_an_empty_value_in_env_file_is_as_if_not_set(place):
    (place / ".env").write_text("APP_KEY=\n")
    assert read(place).disabled["clients[0]"].why == "APP_KEY is not set"


def test_a_line_of_env_file_that_is_no_assignment_is_a_warning_that_does_not_quote_it(place):
    (place / ".env").write_text(f'# keys\n\n  canary one\nAPP_KEY={FIRST}\ncanary\n\nB="canary\nexport canary\nC=1')
    warnings = [f".env:{line}: is not an assignment NAME=value, and is ignored" for line in (3, 5, 7, 8)]
    loaded = read(place)
    assert (list(loaded.warnings), loaded.config.clients[0].key) == (warnings, FIRST)
    done = toolproxy("check", cwd=place)
    assert done.returncode == 0
    assert [f"toolproxy: warning: {warning}" for warning in warnings] == done.stderr.splitlines()
    assert "canary" not in done.stdout


@pytest.mark.parametrize(
    ("data", "line"),
    [(b"A=1\nAPP_KEY=canary\xff\n", 2), ("A=canary".encode("utf-16"), 1), ("A=1\nB=canary".encode("utf-16-le"), 1)],
)
def test_env_file_that_is_no_text_is_a_fault_with_its_line(place, data, line):
    (place / ".env").write_bytes(data)
    with pytest.raises(ConfigurationError) as raised:
        read(place)
    assert raised.value.faults == (f".env:{line}: is not UTF-8 text",)
    error = raised.value.__cause__ or raised.value.__context__
    assert error is None  # the codec's exception would hold the bytes


def test_a_folder_called_env_is_no_env_file(place):
    (place / ".env").mkdir()
    assert list(read(place).disabled) == ["clients[0]"]


def test_env_file_that_cannot_be_read_is_a_fault(place):
    (place / ".env").symlink_to(".env")
    with pytest.raises(ConfigurationError, match=r"\.env: cannot be read: .*; --no-env-file ignores it"):
        read(place)


def test_secrets_of_env_file_are_masked_like_those_of_the_environment(place):
    more = 'tools: {t: {type: http, description: d, url: "http://h/", headers: {X-Any: "${SOME_TOKEN}"}}}'
    (place / "config.yaml").write_text(more)
    (place / ".env").write_text("SOME_TOKEN=canary-token\n")
    loaded = read(place)
    assert loaded.secrets["tools.t"] == {"canary-token"}
    assert "canary-token" in secrets_of(loaded)


def test_env_file_sets_neither_options_nor_the_environment(place, monkeypatch, capsys):
    (place / ".env").write_text(f"APP_KEY={FIRST}\nTOOLPROXY_PORT=no-port\nTOOLPROXY_WORKERS=0\n")
    monkeypatch.chdir(place)
    before = dict(os.environ)
    main(["check"])
    assert "app: key set" in capsys.readouterr().out
    assert dict(os.environ) == before
    main(["check", "--no-env-file"])
    assert "APP_KEY is not set" in capsys.readouterr().out


async def test_a_reload_reads_env_file_anew(place):
    (place / ".env").write_text(f"APP_KEY={FIRST}\n")
    with running("serve", "--port", "0", cwd=place) as (process, url):
        assert await status_with(url, FIRST) == 200
        (place / ".env").write_text(f"APP_KEY={SECOND}\n")
        process.send_signal(signal.SIGHUP)
        await until_each_worker(url, SECOND, 200, looks=1)
        assert await status_with(url, FIRST) == 401
        (place / ".env").write_bytes(b"\xff")
        process.send_signal(signal.SIGHUP)
        await until_metric(url, 'reloads_total{outcome="refused"}', 1)
        assert await status_with(url, SECOND) == 200
        process.terminate()
        assert '"faults":[".env:1: is not UTF-8 text"]' in process.stderr.read()


async def test_watch_watches_env_file_which_need_not_exist_at_first(place):
    with running("serve", "--watch", "--port", "0", cwd=place) as (_, url):
        (place / ".env").write_text(f"APP_KEY={FIRST}\n")
        await until_each_worker(url, FIRST, 200, looks=1)
        await until_each_worker(url, "another", 401, looks=1)


async def test_serve_can_leave_env_file_alone(place):
    (place / ".env").write_bytes(b"\xff")
    with running("serve", "--no-env-file", "--port", "0", cwd=place) as (_, url):
        assert await status_with(url, "any") == 200


def test_a_watched_file_beside_the_configuration_changes_also_when_it_is_gone(place):
    seconds = iter(range(100))
    trigger = Trigger(now=lambda: next(seconds))
    beside = place / ".env"
    trigger.watch(place / "config.yaml", beside)
    assert [trigger.take() for _ in range(3)] == [None] * 3
    beside.write_text("A=1")
    assert [trigger.take() for _ in range(3)] == [None, "changed", None]
    beside.unlink()
    assert [trigger.take() for _ in range(3)] == [None, "changed", None]
    (place / "config.yaml").unlink()
    assert [trigger.take() for _ in range(3)] == [None, "gone", None]
