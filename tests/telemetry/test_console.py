"""The log on a terminal, rendered, and as a real process writes it."""

import os
import pty
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from proxy.kit.terminal import Style, style_of
from proxy.telemetry.console import WIDTH, Console

ROOT = Path(__file__).parent.parent.parent
LINE = {"timestamp": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), "level": "info", "request_id": "r"}
COMPLETED = {**LINE, "event": "request.completed", "method": "POST", "path": "/v1/chat/completions"}


def rendered(*lines, details=False):
    console = Console(Style(colors=False), details=details)
    return [text for line in lines if (text := console(line))]


def test_a_request_is_one_line_with_its_columns():
    counted = {"turns": 2, "tool_calls": 3, "searches": 2, "prompt_tokens": 1204, "completion_tokens": 310}
    (text,) = rendered(
        {**COMPLETED, "client": "app", "model": "glm-4.7", "status": 200, "seconds": 2.314, **counted, "stop": "answer"}
    )
    when, *cells = text.split()
    assert re.fullmatch(r"\d\d:\d\d:\d\d", when)
    assert " ".join(cells) == "app glm-4.7 200 2.31 s 2 searches answer 1,204+310"


def test_the_columns_of_all_requests_begin_at_the_same_places():
    short = {**COMPLETED, "client": "a", "model": "m", "status": 200, "seconds": 0.5, "turns": 1, "stop": "answer"}
    long = {**short, "client": "c" * 40, "model": "n" * 80, "seconds": 1234.5, "turns": 12, "tool_calls": 34,
            "prompt_tokens": 123456, "completion_tokens": 65432, "stop": "client_tool_calls"}  # fmt: skip
    first, second = rendered(short, long)
    assert first.index("200") == second.index("200")
    assert first.index("answer") == second.index("client_tool_calls")
    assert len(second) <= WIDTH == 80


def test_a_failure_stands_below_its_request():
    failed = {**LINE, "level": "warning", "event": "turn.failed", "upstream": "gmi", "why": "HTTP 500:\n\x1b[2Jbroken"}
    lines = rendered(failed, {**COMPLETED, "model": "m", "status": 502, "seconds": 0.1, "error": "upstream_error"})
    (text,) = lines
    first, second = text.splitlines()
    assert first.endswith("upstream_error")
    assert second.strip() == "gmi: HTTP 500: [2Jbroken"


def test_a_failure_without_words_has_the_upstreams_status_and_code():
    failed = {**LINE, "level": "warning", "event": "turn.failed", "upstream": "zai", "code": "upstream_error"}
    for said, shown in (
        ({"upstream_status": 500}, "zai: upstream_error (HTTP 500)"),
        ({"upstream_status": 429, "upstream_code": "1302"}, "zai: upstream_error (HTTP 429, code 1302)"),
        ({"upstream_code": "x", "upstream_message": "No."}, "zai: No. (code x)"),
        ({"upstream_status": 401, "why": "HTTP 401: no"}, "zai: HTTP 401: no"),
    ):
        (text,) = rendered({**failed, **said}, {**COMPLETED, "status": 502, "error": "upstream_error"})
        assert text.splitlines()[1].strip() == shown


def test_a_long_cause_takes_several_lines_and_a_very_long_one_is_cut():
    for words, lines in ((14, 3), (400, 5)):
        failed = {**LINE, "level": "warning", "event": "turn.failed", "upstream": "gmi", "why": "out of order " * words}
        (text,) = rendered(failed, {**COMPLETED, "model": "m", "status": 502, "seconds": 0.1})
        assert len(text.splitlines()) - 1 <= lines
        assert text.endswith("…") is (words == 400)
        assert max(map(len, text.splitlines())) <= WIDTH


def test_what_a_tool_does_is_told_without_the_upstream_of_its_request():
    opened = {**LINE, "level": "warning", "event": "tool.breaker_opened", "upstream": "zai", "tool": "web_search"}
    assert [text.split() for text in rendered({**opened, "cause": "key"})] == [
        ["[warning]", "tool.breaker_opened", "tool=web_search", "cause=key"]
    ]


def test_a_model_that_there_is_not_is_named():
    (text,) = rendered({**COMPLETED, "unknown_model": "glm4.7", "status": 404, "error": "model_not_found"})
    assert text.split()[2:4] == ["glm4.7", "404"]


def test_a_web_page_that_may_not_call_is_named_with_the_setting_for_it():
    refused = {"origin": "http://localhost:5173", "status": 403, "error": "origin_not_allowed"}
    (text,) = rendered({**COMPLETED, "method": "OPTIONS", **refused})
    assert text.splitlines()[1].strip() == "server.cors.origins does not list http://localhost:5173"


def test_a_client_that_leaves_is_shown_as_such():
    (text,) = rendered({**COMPLETED, "model": "m", "status": 499, "seconds": 0.1})
    assert " 499 " in text
    assert text.endswith("the client left")


@pytest.mark.parametrize("details", [False, True])
def test_turns_and_tool_calls_are_details(details):
    console = Console(Style(colors=False), details=details)
    assert console.hides("turn.completed") is not details
    assert not console.hides("tool.failed")


class Terminal:
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("environ", "colors"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False), ({"TERM": "dumb", "FORCE_COLOR": "1"}, True)],
)
def test_colours_follow_the_usual_variables(environ, colors):
    assert style_of(Terminal(), environ).colors is colors


CONFIG = """
server: {port: 0}
upstreams: {up: {base_url: "http://127.0.0.1:9/v1", api_key: k, retries: 0}}
models: {m: {upstream: up}}
"""


def test_on_a_terminal_there_is_a_banner_and_a_line_for_each_request(tmp_path):
    (tmp_path / "config.yaml").write_text(CONFIG)
    ours, theirs = pty.openpty()
    environ = {**os.environ, "NO_COLOR": "1", "COLUMNS": "80"}
    command = [sys.executable, "-m", "proxy", "serve", "--config", str(tmp_path / "config.yaml")]
    process = subprocess.Popen(command, cwd=ROOT, env=environ, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    try:
        said = ""
        while "curl http" not in said:
            said += os.read(ours, 65536).decode()
        url = re.search(r"http://[0-9.:]+", said)[0]
        body = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
        assert httpx.post(f"{url}/v1/chat/completions", json=body).status_code == 502
        logged = ""
        while "refused" not in logged.lower():
            logged += os.read(ours, 65536).decode()
    finally:
        process.terminate()
        process.wait()
        os.close(ours)
    assert f"toolproxy is serving at {url}/v1" in said
    assert f"OPENAI_BASE_URL={url}/v1" in said
    assert f"ANTHROPIC_BASE_URL={url} " in said
    request = next(line for line in logged.splitlines() if "upstream_error" in line)
    assert re.match(r"\d\d:\d\d:\d\d  - +m +502 ", request)
    assert len(request) <= WIDTH


def test_a_secret_is_masked_before_its_text_is_shortened_or_wrapped():
    secret = "sk-" + "0123456789" * 4
    console = Console(Style(colors=False), details=False, redact=lambda text: text.replace(secret, "***"))
    cut = console({**COMPLETED, "unknown_model": secret, "status": 404, "seconds": 0.1})
    event = {**LINE, "level": "error", "event": "configuration.refused", "faults": ("word " * 17 + secret,)}
    for text in (cut, console(event)):
        assert "***" in text
        assert secret[:6] not in text
