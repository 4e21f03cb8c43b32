"""The command as a user runs it: real processes, real signals, real sockets."""

import functools
import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

import httpx
import openai
import orjson
import pytest

from tests.free_port import free_port

ROOT = Path(__file__).parent.parent
SHIPPED = (ROOT / "config.yaml").read_text()
PLAIN = {key: value for key, value in os.environ.items() if not re.search("ZAI|GMI|SERPER|TOOLPROXY", key)}
PLAIN["TOOLPROXY_STATE_URL"] = "memory://"  # the shipped file would keep state in the working directory


def toolproxy(*arguments, environ=None, stdin="", cwd=ROOT):
    return subprocess.run(
        [sys.executable, "-m", "proxy", *arguments],
        env={**PLAIN, **(environ or {})},
        input=stdin,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@contextmanager
def running(*arguments, environ=None, cwd=ROOT):
    """A process that serves, and the URL that it says it serves at."""
    command = [sys.executable, "-m", "proxy", *arguments]
    process = subprocess.Popen(
        command, env={**PLAIN, **(environ or {})}, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        line = process.stdout.readline()
        found = re.search(r"http://\S+?(?=/v1)", line)
        assert found, f"{line!r} {process.stderr.read() if not line else ''}"
        yield process, found[0]
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def stopped(process, number=signal.SIGTERM):
    """What a process has said on standard error when a signal has ended it, without a traceback."""
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=20)
    assert process.returncode == 0
    assert "Traceback" not in stdout + stderr
    return stderr


def check_without(package, path):
    """`toolproxy check` where a package is not installed."""
    code = f"import sys; sys.modules[{package!r}] = None; from proxy.commands.cli import main; main(sys.argv[1:])"
    command = [sys.executable, "-c", code, "check", "--config", path]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def config(tmp_path):
    """Writes a configuration; the path of its file."""

    def written(text):
        path = tmp_path / "config.yaml"
        path.write_text(text)
        return str(path)

    return written


def test_without_any_key_it_says_in_one_line_which_it_wants():
    done = toolproxy("serve")
    assert done.returncode == 1
    assert done.stderr == (
        "toolproxy: there is no usable upstream: set ZAI_API_KEY or GMI_API_KEY, in the environment or in a .env file "
        "next to the configuration (`toolproxy demo` needs no key); keys come from z.ai/manage-apikey/apikey-list and "
        "console.gmicloud.ai\n"
    )
    assert done.stdout == ""


@pytest.mark.parametrize("key", ["ZAI_API_KEY", "GMI_API_KEY"])
def test_with_any_one_key_it_serves(key):
    with running("serve", "--port", "0", environ={key: "k"}) as (_, url):
        assert httpx.get(f"{url}/readyz").status_code == 200


def test_beyond_loopback_without_a_client_key_it_refuses_and_says_how_to_allow_it():
    done = toolproxy("serve", "--host", "0.0.0.0", "--port", "0", environ={"ZAI_API_KEY": "k"})
    assert done.returncode == 1
    assert "TOOLPROXY_KEY" in done.stderr
    assert "TOOLPROXY_ALLOW_ANONYMOUS" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("environ", [{"TOOLPROXY_KEY": "a-key-of-its-own"}, {"TOOLPROXY_ALLOW_ANONYMOUS": "true"}])
def test_beyond_loopback_with_one_or_with_leave_it_serves(environ):
    environ = {"ZAI_API_KEY": "k", "TOOLPROXY_HOST": "0.0.0.0", "TOOLPROXY_PORT": "0", **environ}
    with running("serve", environ=environ) as (_, url):
        assert httpx.get(url.replace("0.0.0.0", "127.0.0.1") + "/healthz").status_code == 200


@pytest.mark.parametrize("value", ["", " ", "tcp://10.96.0.7:8080"])
def test_a_variable_that_is_empty_or_comes_from_kubernetes_is_as_if_unset(config, tmp_path, value):
    upstreams = "upstreams: {up: {base_url: 'http://127.0.0.1:1/v1', api_key: k}}\nmodels: {m: {upstream: up}}\n"
    config("server: {port: 0}\n" + upstreams)
    environ = {f"TOOLPROXY_{name}": value for name in ("CONFIG", "HOST", "PORT", "WORKERS")}
    with running("serve", environ=environ, cwd=tmp_path) as (_, url):
        assert url.startswith("http://127.0.0.1:")
        assert httpx.get(f"{url}/healthz").status_code == 200


def test_a_variable_that_is_wrong_is_wrong_usage():
    done = toolproxy("serve", environ={"ZAI_API_KEY": "k", "TOOLPROXY_PORT": "udp"})
    said = "toolproxy serve: error: argument --port: 'udp' is not a port (0 to 65535)"
    assert (done.returncode, done.stderr.splitlines()[-1]) == (2, said)


def test_several_workers_without_a_folder_to_write_to_are_one_clear_line(tmp_path):
    environ = {"ZAI_API_KEY": "k", "PROMETHEUS_MULTIPROC_DIR": str(tmp_path / "nowhere")}
    done = toolproxy("serve", "--port", "0", "--workers", "2", environ=environ)
    assert (done.returncode, done.stdout) == (1, "")
    line = done.stderr.splitlines()[-1]
    assert line.startswith("toolproxy: several workers need a writable folder for their metrics (")
    assert line.endswith("set PROMETHEUS_MULTIPROC_DIR to one, or telemetry.metrics to false")
    assert "Traceback" not in done.stderr


def test_an_address_that_is_taken_is_one_clear_line():
    with running("serve", "--port", "0", environ={"ZAI_API_KEY": "k"}) as (_, url):
        done = toolproxy("serve", "--port", url.rsplit(":", 1)[1], environ={"ZAI_API_KEY": "k"})
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("toolproxy: cannot listen on 127.0.0.1:")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("workers", ["1", "2"])
def test_signals_stop_it_cleanly(number, workers):
    with running("serve", "--port", "0", "--workers", workers, environ={"ZAI_API_KEY": "k"}) as (process, url):
        httpx.get(f"{url}/healthz")
        stopped(process, number)


def test_what_is_still_open_when_the_grace_is_over_is_told_and_the_stop_is_clean(config, tmp_path):
    script = tmp_path / "script.yaml"
    # The first piece of GLM's text waits for the second; the third comes after the grace.
    script.write_text("pace: 2\nconversations: [{when: '', turns: [{text: 'One two three'}]}]")
    path = config(SHIPPED.replace("shutdown_grace_seconds: 30", "shutdown_grace_seconds: 1"))
    body = {"model": "glm-4.7", "stream": True, "messages": [{"role": "user", "content": "Hi"}]}
    with running("mock-upstream", "--script", str(script)) as (_, mock):
        environ = {"ZAI_API_KEY": "k", "ZAI_BASE_URL": f"{mock}/v1"}
        with (
            running("serve", "--port", "0", "--config", path, environ=environ) as (process, url),
            httpx.stream("POST", f"{url}/v1/chat/completions", json=body) as response,
        ):
            pieces = response.iter_text()
            assert "One" in next(pieces)
            process.send_signal(signal.SIGTERM)
            rest = "".join(pieces)
            _, stderr = process.communicate(timeout=20)
    assert orjson.loads(rest.removeprefix("data: "))["error"]["code"] == "overloaded"
    assert process.returncode == 0
    assert "Traceback" not in stderr


def test_the_log_has_a_json_line_per_request_turn_and_tool_call_and_no_content_or_secret(config):
    with running("mock-upstream") as (_, mock):
        environ = {
            "ZAI_API_KEY": "canary-zai",
            "SERPER_API_KEY": "canary-serper",
            "TOOLPROXY_KEY": "canary-client",
            "ZAI_BASE_URL": f"{mock}/v1",
            "SERPER_BASE_URL": mock,
        }
        path = config(SHIPPED.replace("log_level: info", "log_level: debug"))
        with running("serve", "--port", "0", "--config", path, environ=environ) as (process, url):
            client = openai.OpenAI(base_url=f"{url}/v1", api_key="canary-client", max_retries=0)
            ask = {"model": "glm-4.7", "messages": [{"role": "user", "content": "canary-question: Nanaimo?"}]}
            with client:
                client.chat.completions.create(**ASK_ID, **ask)
                for _ in client.chat.completions.create(**ask, stream=True):
                    pass
                with pytest.raises(openai.NotFoundError):
                    client.chat.completions.create(**{**ask, "model": "nope"})
            stderr = stopped(process)
    lines = [orjson.loads(line) for line in stderr.splitlines()]
    assert "canary" not in stderr
    mine = [line for line in lines if line.get("request_id") == "my-id"]
    assert [line["event"] for line in mine if line["level"] == "info"] == [
        "turn.completed",
        "tool.completed",
        "tool.completed",
        "turn.completed",
        "request.completed",
    ]
    done = mine[-1]
    assert (done["status"], done["model"], done["upstream"], done["client"]) == (200, "glm-4.7", "zai", "app")
    assert (done["turns"], done["tool_calls"], done["stop"], done["stream"]) == (2, 2, "answer", False)
    assert [line["status"] for line in lines if line["event"] == "request.completed"] == [200, 200, 404]


def test_several_workers_count_and_remember_together_and_leave_nothing_behind(tmp_path):
    shared = {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    with running("mock-upstream") as (_, mock):
        environ = {"ZAI_API_KEY": "k", "SERPER_API_KEY": "k", "ZAI_BASE_URL": f"{mock}/v1", "SERPER_BASE_URL": mock}
        with running("serve", "--port", "0", "--workers", "2", environ={**environ, **shared}) as (process, url):
            ask = {"model": "glm-4.7", "messages": [{"role": "user", "content": "Nanaimo?"}]}
            for number in range(12):  # each over a connection of its own, for either worker
                httpx.post(f"{url}/v1/chat/completions", json=ask, headers={"x-request-id": f"r{number}"})
            scrapes = [httpx.get(f"{url}/metrics").text for _ in range(6)]
            found = [httpx.get(f"{url}/debug/requests/r{number}").status_code for number in range(12)]
            stopped(process)
    for scrape in scrapes:
        assert 'model="glm-4.7",route="/v1/chat/completions",status="200"} 12.0' in scrape
        assert "toolproxy_open_requests 0.0" in scrape
        assert 'toolproxy_tool_calls_total{outcome="ok",tool="web_search"} 24.0' in scrape
        assert "\ntoolproxy_info{" in scrape
        assert "pid=" not in scrape
    assert found == [200] * 12
    assert list(tmp_path.iterdir()) == []


def test_without_the_extra_traces_are_refused_with_the_line_that_wants_them(config):
    text = "upstreams: {u: {base_url: 'http://u', api_key: k}}\ntelemetry:\n  otlp_endpoint: http://c:4318\n"
    done = check_without("opentelemetry", config(text))
    assert done.returncode == 1
    assert done.stderr.startswith("toolproxy: config.yaml:3: telemetry.otlp_endpoint: traces need a package")


ASK_ID = {"extra_headers": {"x-request-id": "my-id"}}


def test_check_says_which_keys_are_set_calls_nothing_usable_and_prints_no_secret():
    done = toolproxy("check", environ={"GMI_API_KEY": "canary"})
    assert done.returncode == 0
    assert "gmi: key set" in done.stdout
    assert "zai: disabled, ZAI_API_KEY is not set" in done.stdout
    assert "web_search: disabled, SERPER_API_KEY is not set" in done.stdout
    assert "glm-4.7: disabled, because its upstream zai is disabled" in done.stdout
    assert "usable" not in done.stdout
    assert done.stdout.splitlines()[-1] == "config.yaml is valid: the proxy would start"
    assert "canary" not in done.stdout + done.stderr


@pytest.mark.parametrize("command", ["check", "schema"])
def test_a_reader_of_the_output_that_leaves_early_gets_no_traceback(command):
    output, writer = os.pipe()
    os.close(output)
    with os.fdopen(writer, "wb") as closed:
        done = subprocess.run(
            [sys.executable, "-m", "proxy", command],
            env={**PLAIN, "ZAI_API_KEY": "a-key-of-its-own"},
            cwd=ROOT,
            stdout=closed,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    assert (done.returncode, done.stderr) == (1, b"")


def test_check_names_the_fallback_that_answers_for_a_search_without_a_key():
    done = toolproxy("check", environ={"ZAI_API_KEY": "a-key-of-its-own"})
    assert "  web_search: answered by its fallback zai_search, SERPER_API_KEY is not set\n" in done.stdout
    assert done.stderr == ""


def test_check_probes_the_servers_when_it_is_asked_to(config):
    with running("mock-upstream") as (_, mock):
        path = config(
            f"upstreams:\n  up: {{base_url: '{mock}/v1', api_key: k}}\n  down: {{base_url: 'http://127.0.0.1:9', api_key: k}}\n"
            f"models: {{m: {{upstream: up}}, n: {{upstream: down}}}}\n"
            f"tools: {{web_search: {{type: serper, api_key: k, base_url: '{mock}'}}}}\n"
        )
        done = toolproxy("check", "--probe", "--config", path)
    assert done.returncode == 1
    probed = (
        r"probes:\n  upstreams.up: usable, m answers\n  tools.web_search: usable, no results in \d+ ms for 'news'\n"
        r"config.yaml is valid, but 1 of 3 servers cannot be used\n\Z"
    )
    assert re.search(probed, done.stdout)
    refused = "nothing listens at this address: the connection was refused"
    assert done.stderr == f"toolproxy: config.yaml:3: upstreams.down.base_url: {refused}\n"


def test_check_lists_mcp_servers_by_whom_they_reach_and_looks_at_them_when_it_is_asked_to(config):
    script = ROOT / "tests" / "mcp_server.py"
    path = config(
        "upstreams: {up: {base_url: 'http://127.0.0.1:9', api_key: k}}\n"
        f"tools:\n  wiki: {{type: mcp, command: [{sys.executable}, {script}], allow: [echo, fail]}}\n"
        "  down: {type: mcp, url: 'http://127.0.0.1:9/mcp', headers: {x-key: '${WIKI_KEY}'}}\n"
        "  own: {type: mcp, url: 'http://127.0.0.1:9/mcp', headers: {x-key: '${request.headers.X-Own}'}}\n"
    )
    done = toolproxy("check", "--probe", "--config", path, environ={"WIKI_KEY": "canary"})
    assert done.returncode == 1
    assert f"  wiki: no key needed, mcp, {sys.executable}, tools are listed at start" in done.stdout
    assert "  down: no key needed, mcp, 127.0.0.1:9, tools are listed at start" in done.stdout
    assert "  tools.wiki: usable, 2 tools: echo, fail\n" in done.stdout
    for_each = "tools are listed for each user, by the header x-own of their requests"
    assert f"  own: no key needed, mcp, 127.0.0.1:9, {for_each}\n" in done.stdout
    assert f"  tools.own: not asked: {for_each}\n" in done.stdout
    assert "toolproxy: config.yaml:4: tools.down: cannot be reached\n" in done.stderr
    assert "canary" not in done.stdout + done.stderr


def test_an_mcp_server_without_the_extra_is_one_clear_line(config):
    done = check_without("mcp", config("tools:\n  wiki: {type: mcp, url: 'http://127.0.0.1:9/mcp'}\n"))
    said = "toolproxy: config.yaml:2: tools.wiki.type: needs a package that is not installed: pip install mcp\n"
    assert (done.returncode, done.stderr) == (1, said)


def test_check_names_every_fault_with_its_line(config):
    path = config("tools:\n  web_search:\n    type: serber\nserver: {port: x}\n")
    done = toolproxy("check", "--config", path)
    first, second, *_ = done.stderr.splitlines()
    assert done.returncode == 1
    assert first.startswith("toolproxy: config.yaml:3: tools.web_search.type: unknown type 'serber'")
    assert second.startswith("toolproxy: config.yaml:4: server.port: ")
    assert toolproxy("serve", "--config", path).returncode == 1


PYTHON_TOOLS = """
import threading

def roll_dice(sides: int = 6) -> str:
    return f"rolled {sides}"

def hang() -> str:
    threading.Event().wait()
"""
WITH_TOOLS = """
upstreams: {{up: {{base_url: "{upstream}/v1", api_key: k}}}}
models: {{m: {{upstream: up}}}}
limits: {{tool_timeout: 0.2}}
tools:
  roll_dice: {{type: python, function: "dice_tools:roll_dice"}}
  hang: {{type: python, function: "dice_tools:hang"}}
  weather: {{type: http, description: d, url: "https://api.example.com:8443/x", headers: {{X-Key: "${{K}}"}}}}
  now: {{type: clock, aliases: [clock{more}]}}
"""


def project(folder, *, upstream="http://127.0.0.1:9", more=""):
    """A folder with a configuration, a module of tools, and an installed distribution that offers one more."""
    (folder / "dice_tools.py").write_text(PYTHON_TOOLS)
    (folder / "config.yaml").write_text(WITH_TOOLS.format(upstream=upstream, more=more))
    installed = folder / "cards-3.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: cards\nVersion: 3.0\n")
    (installed / "entry_points.txt").write_text("[toolproxy.tools]\ndraw_card = cards:draw\n")
    return folder


@pytest.mark.parametrize("where", ["in the working directory", "in --app-dir"])
def test_check_says_where_each_tool_comes_from(tmp_path, where):
    folder = project(tmp_path)
    elsewhere = ["--app-dir", str(folder), "--config", str(folder / "config.yaml")]
    named, cwd = (elsewhere, ROOT) if where == "in --app-dir" else ([], folder)
    done = toolproxy("check", *named, cwd=cwd, environ={"K": "canary"})
    assert done.stderr == ""
    assert "roll_dice: no key needed, python, dice_tools:roll_dice" in done.stdout
    assert "weather: no key needed, http, api.example.com:8443" in done.stdout
    assert "now: no key needed, clock, built in" in done.stdout
    assert "installed, not configured: entry point draw_card of cards 3.0" in done.stdout
    assert "canary" not in done.stdout


@pytest.mark.parametrize("command", [("check",), ("serve", "--port", "0"), ("serve", "--port", "0", "--workers", "2")])
def test_tools_that_cannot_be_had_are_one_clear_line_each(tmp_path, command):
    folder = project(tmp_path)
    (folder / "dice_tools.py").write_text("import no_such_module")
    done = toolproxy(*command, cwd=folder)
    assert done.returncode == 1
    lines = [line for line in done.stderr.splitlines() if line.startswith("toolproxy: ")]
    for at, (name, line) in enumerate(zip(("roll_dice", "hang"), lines, strict=True), 6):
        assert line.startswith(
            f"toolproxy: config.yaml:{at}: tools.{name}.function: dice_tools:{name} cannot be imported"
        )
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", [("check",), ("serve", "--port", "0")])
def test_a_name_that_two_tools_have_is_one_clear_line(tmp_path, command):
    folder = project(tmp_path, more=", die")
    module = "from proxy import Tool\nhang = Tool.from_function(roll_dice, aliases=('die',))\n"
    (folder / "dice_tools.py").write_text(PYTHON_TOOLS + module)
    done = toolproxy(*command, cwd=folder)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "toolproxy: config.yaml:5: tools: there are two tools named 'die'"


@pytest.mark.parametrize("workers", ["1", "2"])
def test_python_tools_of_the_working_directory_are_run_and_one_that_hangs_does_not_hold_the_stop(tmp_path, workers):
    script = tmp_path / "script.yaml"
    calls = "calls: [{name: roll_dice, arguments: {sides: 20}}, {name: hang, arguments: {}}]"
    script.write_text(f"conversations: [{{when: '', turns: [{{{calls}}}, {{text: Done.}}]}}]")
    with running("mock-upstream", "--script", str(script)) as (_, mock):
        folder = project(tmp_path, upstream=mock)
        with running("serve", "--port", "0", "--workers", workers, cwd=folder) as (process, url):
            body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
            answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=20)
            stderr = stopped(process)
    assert answer.json()["choices"][0]["message"]["content"] == "Done."
    outcomes = {line["tool"]: line for line in map(orjson.loads, stderr.splitlines()) if "tool" in line}
    assert outcomes["roll_dice"]["event"] == "tool.completed"
    assert outcomes["hang"]["outcome"] == "timeout"


def test_a_configuration_that_does_not_exist_is_one_clear_line(tmp_path):
    done = toolproxy("serve", "--config", str(tmp_path / "none.yaml"))
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["serve", "--port", "x"], ["serve", "--workers", "0"]])
def test_wrong_usage_is_2(arguments):
    assert toolproxy(*arguments).returncode == 2


def test_toolproxy_alone_and_help_show_the_commands():
    alone, asked, option = toolproxy(), toolproxy("help"), toolproxy("--help")
    assert alone.stderr == asked.stdout == option.stdout
    assert "run the proxy" in asked.stdout
    assert toolproxy("help", "serve").stdout == toolproxy("serve", "--help").stdout != ""


@pytest.mark.parametrize("word", ["version", "-v", "-V"])
def test_the_version_is_told_by_the_words_that_people_try(word):
    assert toolproxy(word).stdout == toolproxy("--version").stdout != ""


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["serv"], "; did you mean serve?"),
        (["serve", "my/config.yaml"], "; the configuration is an option: --config my/config.yaml"),
        (["check", "--probe", "config.yml"], "; the configuration is an option: --config config.yml"),
        (
            ["run", "claude", "-p", "hi you"],
            "; arguments of the agent follow a --: toolproxy run claude -- -p 'hi you'",
        ),
        (["run", "cursor"], "; docs/agents.md has other agents"),
        (["run", "cluade"], "; did you mean claude?; docs/agents.md has other agents"),
        (["key", "ad", "x"], "; did you mean add?"),
    ],
)
def test_a_wrong_argument_is_told_with_what_may_have_been_meant(arguments, meant):
    done = toolproxy(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith(f"{meant}\n")


def test_hash_key_prints_what_the_configuration_wants():
    done = toolproxy("hash-key", stdin="a-key-of-my-own-1\n")
    assert (done.stdout, done.stderr) == (sha256(b"a-key-of-my-own-1").hexdigest() + "\n", "")
    assert "can be guessed" in toolproxy("hash-key", stdin="my-key\n").stderr
    assert toolproxy("hash-key", stdin="\n").returncode == 1


@pytest.mark.parametrize("key", ["a key of my own 1", "schl\u00fcssel-of-my-own"])
def test_hash_key_refuses_what_no_client_could_send(key):
    done = toolproxy("hash-key", stdin=f"{key}\n")
    why = "the key must be printable ASCII without blanks: it has to fit into a header"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"toolproxy: {why}\n")


@functools.cache
def demo():
    """What the demo prints with the SDKs."""
    return toolproxy("demo")


def test_the_demo_shows_the_conversation_and_ends_well():
    done = demo()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "system user assistant(2 calls) tool tool" in done.stdout
    assert "Take a jacket" in done.stdout
    assert "proxy -> pages   /weather/nanaimo, /ferries/departures" in done.stdout
    assert "Rain from two o'clock" in done.stdout
    assert "web_search_tool_result, web_search_tool_result, text, stop_reason end_turn" in done.stdout
    assert "demo --serve" in done.stdout[done.stdout.index("What next") :]
    assert done.stderr == ""


def test_the_demo_runs_without_the_sdks_and_shows_the_same():
    without = "import sys; sys.modules.update(openai=None, anthropic=None); from proxy.commands.cli import main; main(['demo'])"
    done = subprocess.run(
        [sys.executable, "-c", without], cwd=ROOT, env=PLAIN, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "app (plain HTTP)" in done.stdout
    shown = [
        re.sub(r":\d{5}|\d+ chunks", "", text)[300:].partition("What next")[0] for text in (done.stdout, demo().stdout)
    ]
    assert shown[0] == shown[1]


def test_a_port_of_the_chat_page_that_is_taken_is_one_clear_line():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = toolproxy("demo", "--serve", "--port", str(port))
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"toolproxy: cannot listen on 127.0.0.1:{port}: Address already in use")


def test_mock_upstream_plays_a_script_of_ones_own(tmp_path):
    path = tmp_path / "script.yaml"
    path.write_text("conversations: [{when: '', turns: [{text: Scripted.}]}]")
    with running("mock-upstream", "--script", str(path)) as (_, url):
        body = {"model": "gpt-oss", "messages": [{"role": "user", "content": "Hi"}]}
        answer = httpx.post(f"{url}/v1/chat/completions", json=body).json()
    assert answer["choices"][0]["message"]["content"] == "Scripted."
    for broken in ("conversations: []", "conversations: [{when: '[', turns: [{}]}]", "a: [", "x: 1"):
        path.write_text(broken)
        assert toolproxy("mock-upstream", "--script", str(path)).returncode == 1
    assert toolproxy("mock-upstream", "--script", str(tmp_path / "none")).returncode == 1


@pytest.mark.parametrize(
    ("script", "fault"),
    [
        ("conversations: [", ":1: is not YAML: a brace or bracket is not closed"),
        ("a: b: c", ":1: is not YAML: a text with a colon and a space in it needs quotes"),
        ("", ":1: must be a mapping, not empty"),
        ("conversations:\n- {when: ''}", ":2: conversations[0].turns: is missing"),
        (
            "conversations:\n- {when: '', turns: [{txt: x}]}",
            ":2: conversations[0].turns[0].txt: unknown key; known are ",
        ),
        (
            "conversations:\n- turns: [{text: x}]\n  when: '('",
            ":3: conversations[0].when: is not a regular expression: missing )",
        ),
    ],
)
def test_a_script_that_cannot_be_played_is_one_clear_line(tmp_path, script, fault):
    path = tmp_path / "script.yaml"
    path.write_text(script)
    done = toolproxy("mock-upstream", "--script", str(path))
    (line,) = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (1, "")
    assert line.startswith(f"toolproxy: {path}{fault}")


def test_mock_upstream_refuses_what_no_upstream_would_understand():
    bad = {
        "/v1/chat/completions": [
            b"", b"[]", b"{}", b'{"model":"m","messages":[5]}', b'{"model":"m","messages":[{}],"stream_options":1}'
        ],
        "/search": [b"", b"[]", b'{"num":"x"}'],
    }  # fmt: skip
    with running("mock-upstream") as (process, url):
        for path, bodies in bad.items():
            for body in bodies:
                response = httpx.post(url + path, content=body)
                error = response.json()["error"]
                assert (response.status_code, error["type"]) == (400, "invalid_request_error"), body
        assert stopped(process) == ""


def test_a_starter_configuration_is_written_once(tmp_path):
    missing = toolproxy("serve", cwd=tmp_path)
    assert (missing.returncode, missing.stdout) == (1, "")
    said = "cannot be read: no such file; `toolproxy init` writes one to start from"
    assert missing.stderr == f"toolproxy: config.yaml: {said}\n"
    done = toolproxy("init", "--config", "a folder/my config.yaml", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "toolproxy serve --config 'a folder/my config.yaml'" in done.stdout
    assert (tmp_path / "a folder/my config.yaml").read_text() == SHIPPED
    form = (tmp_path / "a folder/.env.example").read_text()
    assert form == (ROOT / ".env.example").read_text()  # people look for it in a checkout
    without_default = dict.fromkeys(re.findall(r"^[^#\n]*\$\{(\w+)\}", SHIPPED, re.MULTILINE))
    listed = re.findall(r"^(?!#)(.+)=", form, re.MULTILINE)
    assert [name for name in listed if name != "ZAI_BASE_URL"] == [*without_default]
    assert re.findall(r"^(?!#).*", form, re.MULTILINE)[:-1] == [
        f"{name}="
        for name in (
            "TOOLPROXY_KEY",
            "TOOLPROXY_ADMIN_KEY",
            "ZAI_API_KEY",
            "ZAI_BASE_URL",
            "GMI_API_KEY",
            "SERPER_API_KEY",
        )
    ]
    again = toolproxy("init", "--config", "a folder/my config.yaml", cwd=tmp_path)
    said = "toolproxy: a folder/my config.yaml already exists, and is not changed\n"
    assert (again.returncode, again.stderr) == (1, said)


def test_the_address_is_not_printed_into_a_log_of_json_but_where_a_free_port_is_asked_for():
    port = free_port()
    command = [sys.executable, "-m", "proxy", "serve", "--port", str(port)]
    environ = {**PLAIN, "ZAI_API_KEY": "k"}
    with subprocess.Popen(command, env=environ, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        lines = []
        while not lines or lines[-1]["event"] != "server.ready":
            lines.append(orjson.loads(process.stdout.readline()))
        process.terminate()
        lines += map(orjson.loads, process.stdout.read().splitlines())
    assert lines[-1]["event"] == "server.stopped"
