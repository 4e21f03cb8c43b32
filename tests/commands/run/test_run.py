"""`toolproxy run` as a process, with small programs in the place of the agents."""

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import httpx
import orjson
import pytest

from proxy.commands import cli
from proxy.commands.run.last_words import refusals_in, use_in
from tests.test_cli import PLAIN, ROOT, running

# Reads its settings as the agent of its name does, asks the proxy, and says what it has seen.
AGENT = """#!{python}
import json, os, re, sys, tomllib, urllib.request
name, words, environ = os.path.basename(sys.argv[0]), sys.argv[1:], dict(os.environ)
if name == "claude":
    settings = words[words.index("--settings") + 1]
    environ |= json.loads(settings if settings.startswith("{{") else open(settings).read())["env"]
    url, key, model = environ["ANTHROPIC_BASE_URL"], environ["ANTHROPIC_AUTH_TOKEN"], environ["ANTHROPIC_MODEL"]
    path, body = "/v1/messages", {{"max_tokens": 9, "messages": [{{"role": "user", "content": "hello"}}]}}
elif name == "codex":
    said = {{}}
    for option, value in zip(words, words[1:]):
        if option == "-c":
            key, _, value = value.partition("=")
            said[key] = tomllib.loads("x = " + value)["x"]
    provider = said["model_providers." + said["model_provider"]]
    assert provider["wire_api"] == "responses"
    url, key, model = provider["base_url"].removesuffix("/v1"), environ[provider["env_key"]], said["model"]
    path, body = "/v1/responses", {{"input": "hello"}}
else:
    said = json.loads(environ["OPENCODE_CONFIG_CONTENT"])
    provider, _, model = said["model"].partition("/")
    options = said["provider"][provider]["options"]
    assert model in said["provider"][provider]["models"]
    url, key = options["baseURL"].removesuffix("/v1"), options["apiKey"]
    path, body = "/v1/chat/completions", {{"messages": [{{"role": "user", "content": "hello"}}]}}
def ask(key):
    headers = {{"Authorization": "Bearer " + key, "Content-Type": "application/json"}}
    request = urllib.request.Request(url + path, json.dumps({{"model": model, **body}}).encode(), headers)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({{}}))
    try:
        return opener.open(request).read().decode()
    except urllib.error.HTTPError as exc:
        return str(exc.code)
print(json.dumps({{"url": url, "key": key, "model": model, "pid": os.getpid(), "cwd": os.getcwd(), "words": words,
                  "answer": ask(key), "stranger": ask("another-key")}}), flush=True)
sys.stdin.read()
sys.exit(7)
"""
CONFIG = """
server: {{port: {port}}}
upstreams: {{up: {{base_url: "{model}/v1", api_key: key-of-the-upstream}}}}
models: {{first: {{upstream: up}}, second: {{upstream: up}}, "family-*": {{upstream: up}}}}
{more}
"""
ANSWER = "Nothing had to be looked up"


@pytest.fixture(scope="module")
def model():
    with running("mock-upstream") as (_, url):
        yield url


@pytest.fixture
def place(tmp_path, model):
    """A home, programs in the place of the agents, and a working directory whose files want to change something."""
    (tmp_path / "bin").mkdir()
    for name in ("claude", "codex", "opencode"):
        (tmp_path / "bin" / name).write_text(AGENT.format(python=sys.executable))
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "home").mkdir()
    here = tmp_path / "repository"
    here.mkdir()
    (here / "config.yaml").write_text("upstreams: {evil: {base_url: 'http://127.0.0.1:1', api_key: k}}")
    (here / ".env").write_text("KEY_OF_THE_USER=evil\nTOOLPROXY_KEY=evil\nTOOLPROXY_CONFIG=config.yaml\n")
    for module in ("yaml", "sqlite3", "dotenv", "uvloop", "tomllib"):
        (here / f"{module}.py").write_text("raise SystemExit('a module of the working directory was imported')")
    return tmp_path


def configure(place, model, *, port=1, more=""):
    path = place / "toolproxy.yaml"
    path.write_text(CONFIG.format(port=port, model=model, more=more))
    return path


def environment(place, **more):
    kept = {
        name: value for name, value in PLAIN.items() if not name.startswith(("XDG_", "ANTHROPIC_", "CLAUDE", "CODEX"))
    }
    path = f"{place / 'bin'}:{os.environ['PATH']}"
    return {**kept, "HOME": str(place / "home"), "PATH": path, "PYTHONPATH": str(ROOT), **more}


@contextmanager
def run(place, *words, **environ):
    """A run whose agent has told what it has seen, and waits for the end of its input."""
    program = "from proxy.__main__ import main; main()"  # as the installed command: not with `-m`
    log = (place / "stderr").open("ab")
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", program, "run", *map(str, words)],
        env=environment(place, **environ),
        cwd=place / "repository",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
    )
    try:
        line = process.stdout.readline()
        assert line, (place / "stderr").read_text()
        yield process, orjson.loads(line)
    finally:
        process.kill()
        process.wait()
        for file in (process.stdin, process.stdout, log):
            file.close()


def files_of(place):
    return {path: path.read_bytes() for path in place.rglob("*") if path.is_file() and path.name != "stderr"}


def wait_until_gone(url):
    ends_at = time.monotonic() + 20
    while time.monotonic() < ends_at:
        try:
            httpx.get(f"{url}/healthz")
        except httpx.TransportError:
            return
        time.sleep(0.05)
    raise AssertionError(f"{url} still answers")


@pytest.mark.parametrize("agent", ["claude", "codex", "opencode"])
def test_run_becomes_the_agent_with_a_proxy_that_demands_a_random_key_and_ends_with_it(place, model, agent):
    config = configure(place, model)
    before = files_of(place)
    with run(place, agent, "--config", config, "--", "-p", "two words", "--") as (process, saw):
        assert ANSWER in saw["answer"]
        assert (saw["stranger"], saw["model"]) == ("401", "first")
        assert re.fullmatch(r"tp_[\w-]{43}", saw["key"])
        assert (saw["pid"], saw["cwd"]) == (process.pid, str(place / "repository"))
        assert saw["words"][-3:] == ["-p", "two words", "--"]
        assert saw["key"] not in str(saw["words"])
        process.stdin.close()
        assert process.wait(20) == 7
        assert process.stdout.read() == b""
    wait_until_gone(saw["url"])
    said = (place / "stderr").read_text()
    assert all(line.startswith("toolproxy: ") for line in said.splitlines())
    log = place / "home" / re.search(r"log: ~/(.+)", said)[1]
    assert '"server.ready"' in log.read_text()
    written = [path for path, content in files_of(place).items() if before.get(path) != content]
    state = place / "home" / ".local" / "state" / "toolproxy"
    assert written
    assert all(path.is_relative_to(state) for path in written)
    assert (state / "toolproxy.db").exists()
    assert state.stat().st_mode & 0o077 == 0


def test_the_proxy_of_a_run_that_is_killed_is_gone_and_another_run_goes_on(place, model):
    config = configure(place, model)
    with (
        run(place, "codex", "--config", config) as (killed, saw),
        run(place, "claude", "--config", config, "--model", "second") as (other, others),
    ):
        assert others["model"] == "second"
        assert saw["url"] != others["url"]
        killed.kill()
        assert killed.wait(20) == -signal.SIGKILL
        wait_until_gone(saw["url"])
        assert httpx.get(f"{others['url']}/readyz").status_code == 200
        assert other.poll() is None


def test_a_proxy_that_runs_already_is_used_with_the_users_key_and_stays(place, model):
    config = configure(place, model, more="clients: [{name: app, key: '${TOOLPROXY_KEY}'}]")
    environ = {"TOOLPROXY_KEY": "a-key-of-the-users"}
    words = ("opencode", "--config", config, "--key-env", "MINE")
    with (
        running("serve", "--config", str(config), "--port", "0", environ=environ) as (_, url),
        run(place, *words, MINE="a-key-of-the-users", TOOLPROXY_PORT=url.rpartition(":")[2]) as (process, saw),
    ):
        assert (saw["url"], saw["key"]) == (url, "a-key-of-the-users")
        assert ANSWER in saw["answer"]
        process.stdin.close()
        assert process.wait(20) == 7
        assert httpx.get(f"{url}/readyz").status_code == 200
        for variable, value, fault in (
            ("MINE", "wrong", "refuses the key that MINE has"),
            ("TOOLPROXY_KEY", "", "TOOLPROXY_KEY"),
        ):
            words = ["run", "claude", "--config", str(config), *(["--key-env", "MINE"] if value else [])]
            done = subprocess.run(
                [sys.executable, "-m", "proxy", *words],
                env=environment(place, **{variable: value}, TOOLPROXY_PORT=url.rpartition(":")[2]),
                capture_output=True,
                text=True,
                check=False,
                cwd=ROOT,
            )
            assert (done.returncode, done.stdout) == (1, "")
            assert fault in done.stderr.splitlines()[-1]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act for another user")
def test_a_server_of_another_user_at_the_address_is_neither_asked_nor_used(place, model):
    impostor = (
        "import os, socket\n"
        "os.setuid(65534)\n"
        "listener = socket.create_server(('127.0.0.1', 0))\n"
        "print(listener.getsockname()[1], flush=True)\n"
        'body = b\'{"status": "ready", "upstreams": [], "tools": [], "state": {}}\'\n'
        "while True:\n"
        "    connection, _ = listener.accept()\n"
        "    print('asked', connection.recv(9999), flush=True)\n"
        "    connection.sendall(b'HTTP/1.0 200 OK\\r\\nContent-Length: %d\\r\\n\\r\\n' % len(body) + body)\n"
        "    connection.close()\n"
    )
    command = [sys.executable, "-I", "-c", impostor]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd="/") as other:
        try:
            port = int(other.stdout.readline())
            with run(place, "codex", "--config", configure(place, model, port=port)) as (_, saw):
                assert saw["url"] != f"http://127.0.0.1:{port}"
                assert ANSWER in saw["answer"]
        finally:
            other.kill()
        assert other.stdout.read() == b""


@pytest.mark.parametrize(
    ("more", "words", "environ", "fault"),
    [
        ("", ["--key-env", "UNSET"], {}, "--key-env: UNSET is not set"),
        (
            "clients: [{name: a, key: long-enough-key}]",
            [],
            {},
            "demands a key of its callers, and none was given: set TOOLPROXY_KEY",
        ),
        ("", [], {"TOOLPROXY_CONFIG": "config.yaml"}, "TOOLPROXY_CONFIG is the relative path 'config.yaml'"),
        ("", [], {"PATH": "/nowhere"}, "Codex is not installed; this installs it: npm install -g @openai/codex"),
        ("offer: {mode: sometimes}", [], {}, "toolproxy.yaml:5: offer.mode: must be"),
    ],
)
def test_what_stands_in_the_way_of_a_run_is_one_clear_line(
    place, model, monkeypatch, capsys, more, words, environ, fault
):
    config = configure(place, model, more=more)
    monkeypatch.chdir(place / "repository")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(os, "fork", None)  # a fault that is overlooked must not make this process an agent
    environ = environment(place, **{"TOOLPROXY_CONFIG": str(config), **environ})
    for name in (*os.environ, *environ):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as stopped:
        cli.main(["run", "codex", *words])
    assert stopped.value.code == 1
    said = capsys.readouterr()
    assert fault in said.err.splitlines()[-1]
    assert said.out == ""


def test_without_a_usable_model_run_says_what_serve_would_say(place):
    done = subprocess.run(
        [sys.executable, "-m", "proxy", "run", "claude"],
        env=environment(place),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    configuration, own, fault = done.stderr.splitlines()
    assert configuration == f"toolproxy: configuration: {ROOT / 'config.yaml'}, the shipped one"
    assert "toolproxy init" in own
    assert fault.startswith("toolproxy: there is no usable upstream: set ZAI_API_KEY or GMI_API_KEY")


def test_run_without_an_agent_lists_them_and_says_which_are_installed(tmp_path, monkeypatch, capsys):
    (tmp_path / "codex").write_text("")
    (tmp_path / "codex").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    cli.main(["run"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["claude", "codex", "opencode"]
    assert lines[0].endswith("not installed: npm install -g @anthropic-ai/claude-code")
    assert lines[1].endswith(str(tmp_path / "codex"))


@pytest.mark.parametrize("entry", ["", ".", "bin"])
def test_a_program_of_the_working_directory_is_not_started_for_an_entry_of_path_that_is_not_absolute(
    place, model, entry
):
    (place / "repository" / "bin").mkdir()
    for folder in (place / "repository", place / "repository" / "bin"):
        (folder / "claude").write_text("#!/bin/sh\necho evil\n")
        (folder / "claude").chmod(0o755)
    path = f"{entry}:{place / 'bin'}:{os.environ['PATH']}"
    with run(place, "claude", "--config", configure(place, model), PATH=path) as (_, saw):
        assert ANSWER in saw["answer"]
        assert "relative entries of PATH are ignored" in (place / "stderr").read_text()


def test_a_state_folder_that_others_may_write_is_made_the_users_own(place, model):
    folder = place / "home" / ".local" / "state" / "toolproxy"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    with run(place, "claude", "--config", configure(place, model)):
        assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a folder of another user's")
def test_a_state_folder_of_another_user_is_refused(place, model):
    folder = place / "home" / ".local" / "state" / "toolproxy"
    folder.mkdir(parents=True)
    os.chown(folder, 12345, 12345)
    done = subprocess.run(
        [sys.executable, "-m", "proxy", "run", "claude", "--config", str(configure(place, model))],
        env=environment(place),
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 1
    assert "belongs to another user: set XDG_STATE_HOME" in done.stderr


def test_a_refused_key_is_told_with_the_cure_once_the_agent_has_ended(place):
    script = place / "refusing.yaml"
    refusal = '{status: 401, body: {error: {code: "401", message: "token\\u001b[2J expired"}}}'
    script.write_text(f"conversations: [{{turns: [{refusal}]}}]")
    with running("mock-upstream", "--script", str(script)) as (_, url):
        config = configure(place, url, more="telemetry: {log_level: error, log_format: console}")
        with run(place, "claude", "--config", config) as (process, _):
            before = (place / "stderr").read_text().splitlines()
            process.stdin.close()
            assert process.wait(20) == 7
            ends_at = time.monotonic() + 20
            while len(said := (place / "stderr").read_text().splitlines()) < len(before) + 2:
                assert time.monotonic() < ends_at
                time.sleep(0.05)
    assert said[len(before) :] == [
        "toolproxy: toolproxy.yaml:3: upstreams.up.api_key: the key was refused: HTTP 401: token [2J expired",
        f"toolproxy: set another key, and try it: toolproxy check --probe --config {config}",
    ]


@pytest.mark.parametrize("cause", ["key", "quota"])
def test_the_refused_key_of_a_search_is_told_with_the_last_reason(cause):
    log = [
        b"not JSON",
        b"[]",
        b'{"event": "tool.failed", "tool": "web_search", "why": "its key was refused (HTTP 403)"}',
        f'{{"event": "tool.breaker_opened", "tool": "web_search", "cause": "{cause}"}}'.encode(),
        b'{"event": "tool.breaker_opened", "tool": "weather", "cause": "busy"}',
        b'{"event": "turn.failed", "upstream": "zai", "code": "upstream_error"}',
    ]
    assert refusals_in(log) == {"tools.web_search": "its key was refused (HTTP 403)"}


def test_what_a_run_has_used_is_summed_over_its_requests_of_models():
    log = [
        b"not JSON",
        b'{"event": "request.completed", "path": "/v1/models", "status": 200}',
        b'{"event": "request.completed", "model": "m", "searches": 1, "prompt_tokens": 1200, "completion_tokens": 10}',
        b'{"event": "request.completed", "model": "m", "prompt_tokens": 30, "completion_tokens": 5}',
        b'{"event": "tool.completed", "model": "m", "tool": "web_search"}',
        b'{"event": "request.completed", "path": "/mcp", "mcp": "tools/call", "searches": 1}',
    ]
    assert use_in(log) == "2 requests, 2 searches, 1,230 tokens read and 15 written"
    assert use_in(log[:2]) == ""
