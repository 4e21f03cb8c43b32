"""Every command in the documents is run as it stands there, or is known to be run by another test."""

import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tomllib
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.free_port import free_port
from tests.test_cli import PLAIN, ROOT, running
from tests.test_docs import PAGES

TEXTS = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "ARCHITECTURE.md", ROOT / "CHANGELOG.md"]
PROGRAMS = r"(?:toolproxy|make|curl|python3? -m|pip|podman|docker|kubectl|systemctl|sqlite3|kill|\(umask) .+"
# What needs a cluster, a service manager, a registry or an account, and where it is tried instead.
ELSEWHERE = {
    r"claude": "Claude Code needs npm; its requests are recorded in tests/api/messages",
    r"python -m tests\.agents\.record FOLDER": "needs the agents from npm; what it records is played by tests/agents",
    r"(\.venv/bin/)?toolproxy run (claude|codex|opencode)\b.*": "tests/commands/run, with programs in the agents' place",
    r"toolproxy check --accept": "an option of 0.2.0, in its part of the changelog",
    r"(make image && )?podman run\b.*|docker run --init": "tests/image.py",
    r"docker compose restart proxy|kubectl\b.*": "tests/test_deploy.py",
    r"systemctl reload( toolproxy)?|kill -HUP PID": "tests/test_reload.py",
    r"kill -9": "bench/durable.py",
    r"pip wheel --no-deps \.": "fetches its build requirements; tests/test_deploy.py has what a wheel holds",
}


def fenced(text):
    """The lines of shell examples, continued ones put together."""
    for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            if command := line.partition("  #")[0].partition("# ")[0].strip():
                yield command


def inline(text):
    """Commands within sentences and tables."""
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    yield from (code for code in re.findall(r"`([^`\n]+)`", prose) if re.fullmatch(PROGRAMS, code))


def commands():
    texts = [page.read_text() for page in TEXTS]
    found = dict.fromkeys(command for text in texts for command in (*fenced(text), *inline(text)))
    return [command for command in found if not any(re.fullmatch(known, command) for known in ELSEWHERE)]


@pytest.fixture
def place(tmp_path):
    """A working directory with the files that the documents speak of."""
    (tmp_path / "config.yaml").write_text((ROOT / "config.yaml").read_text())
    script = re.search(
        r"```yaml\n(# conversations\.yaml\n.*?)```", (ROOT / "docs" / "testing.md").read_text(), re.DOTALL
    )
    (tmp_path / "conversations.yaml").write_text(script[1])
    sqlite3.connect(tmp_path / "state.db").execute("CREATE TABLE t (x)").connection.close()
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    for name, module in (("toolproxy", "proxy"), ("python", None)):
        command = f'exec "{sys.executable}" {f"-m {module}" if module else ""} "$@"'
        (bin_ / name).write_text(f"#!/bin/sh\n{command}\n")
        (bin_ / name).chmod(0o755)
    return tmp_path


@pytest.fixture(scope="module")
def model():
    """A scripted model and search for the shipped configuration."""
    with running("mock-upstream") as (_, url):
        yield url


def environment(place, model):
    keys = dict.fromkeys(("ZAI_API_KEY", "GMI_API_KEY", "SERPER_API_KEY"), "key-of-a-test")
    servers = {"ZAI_BASE_URL": f"{model}/v1", "GMI_BASE_URL": f"{model}/v1", "SERPER_BASE_URL": model, "KEY": "unused"}
    return {**PLAIN, **keys, **servers, "PATH": f"{place / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}


def ended(command, where, environ, *, stdin=""):
    done = subprocess.run(
        ["bash", "-c", command],  # noqa: S607 - found as users find it
        cwd=where,
        env=environ,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


@contextmanager
def started(command, where, environ):
    """A command that serves, and its first line with an address."""
    process = subprocess.Popen(
        ["bash", "-c", f"exec {command}" if "=" not in command.split()[0] else command],  # noqa: S607 - as above
        cwd=where,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,  # the log, where no terminal and no free port is asked for
        text=True,
        start_new_session=True,
    )
    try:
        line = next((line for line in process.stdout if re.search("server.ready|http://.*(/v1|/chat)", line)), "")
        yield line
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(30)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def try_toolproxy(command, place, environ, port):
    match command.split():
        case [_, "serve" | "mock-upstream", *_] | [_, "demo", "--serve", *_]:
            command = re.sub("--script( FILE| PATH)?$", "--script conversations.yaml", command)
            with started(command if "--port" in command else f"{command} --port {port}", place, environ) as line:
                assert f":{port}" in line
        case [_, "init"]:
            (place / "config.yaml").unlink()
            assert "config.yaml is written" in ended(command, place, environ)
        case [_, "check", *_]:
            if "--probe" in command:  # Z.AI's own search has an address of its own
                text = re.sub(
                    r"  zai_search:.*?(?=  fetch_page)", "", (place / "config.yaml").read_text(), flags=re.DOTALL
                )
                (place / "config.yaml").write_text(text.replace("fallback: zai_search", ""))
            assert "zai: key set" in ended(command.replace("PATH", "config.yaml"), place, environ)
        case [_, "hash-key"]:
            digest = ended(command, place, environ, stdin="a-key-of-twenty-letters\n")
            assert re.fullmatch(r"[0-9a-f]{64}\n", digest)
        case [_, "demo"]:
            assert "nanaimo" in ended(command, place, environ).lower()


def try_make(command, _place, environ, port):
    # What is installed is taken for up to date, since tests install nothing.
    command = re.sub(r"\bmake\b", "make -o .venv/.demo -o .venv/.dev -o .venv/.deploy -o .venv/.redis", command)
    if command.endswith(" demo"):
        assert "nanaimo" in ended(command, ROOT, environ).lower()
    elif command.endswith(" run"):
        with started(command, ROOT, {**environ, "TOOLPROXY_PORT": str(port)}) as line:
            assert f":{port}" in line
    else:  # the others take minutes, or write files
        assert ended(command.replace("make", "make --dry-run", 1), ROOT, environ)


def try_python(command, _place, environ, _port):
    """The bench takes minutes; its options are at least those that the documents name."""
    options = ended(f"{command.split(' --')[0]} --help", ROOT, environ)
    assert all(word in options for word in command.split() if word.startswith("--"))


def try_curl(command, place, environ, port):
    with started(f"toolproxy serve --port {port}", place, environ):
        assert "data: [DONE]" in ended(command, place, environ)


def try_pip(command, *_):
    """What would be installed is what the project's extras have."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    known = {re.match(r"[\w-]+", one)[0] for group in extras.values() for one in group}
    for package in command.split()[2:]:
        group = re.fullmatch(r"'\.\[(\w+)\]'", package)
        assert (group[1] in extras) if group else (package in known)


def try_backup(command, place, environ, _port):
    if shutil.which("sqlite3") is None:
        pytest.skip("there is no sqlite3 command")
    ended(command, place, environ)
    assert (place / "copy.db").stat().st_mode & 0o777 == 0o600


def try_export(command, place, environ, _port):
    ended(command, place, environ)


TRIALS = {
    "toolproxy": try_toolproxy,
    "make": try_make,
    "python": try_python,
    "curl": try_curl,
    "pip": try_pip,
    "(umask": try_backup,
    "export": try_export,
}


@pytest.mark.parametrize("command", commands())
def test_a_command_of_the_documents_works(command, place, model):
    port = free_port()
    as_tried = re.sub(r"\b(8080|9000)\b", str(port), command).replace("=...", "=key-of-a-test")
    program = next(word for word in command.split() if "=" not in word)
    TRIALS[program](as_tried, place, environment(place, model), port)


def test_what_is_tried_elsewhere_is_still_in_the_documents():
    written = "\n".join(page.read_text() for page in TEXTS)
    for known, where in ELSEWHERE.items():
        assert re.search(known, written), known
        for path in re.findall(r"\b(?:tests|bench)/[\w/]+\.py", where):
            assert Path(ROOT / path).exists()
