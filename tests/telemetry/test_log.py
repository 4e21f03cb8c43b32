import io
import logging
import re
import sys

import orjson
import pytest
import structlog

from proxy.config.model import TelemetryConfig
from proxy.kit import request_context
from proxy.telemetry import log
from proxy.telemetry.events import Content

WHENEVER = r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?"


@pytest.fixture
def written():
    """Configures the log and gives what is written."""
    stream = io.StringIO()

    def configure(**telemetry):
        log.configure(TelemetryConfig(**telemetry), stream=stream)
        return stream.getvalue

    yield configure
    structlog.reset_defaults()


def test_an_event_is_one_json_line_at_its_level(written):
    text = written()
    log.LogObserver()("tool.failed", tool="t", seconds=1.5, outcome="timeout", rung=None)
    log.LogObserver()("tool.started", tool="t")  # debug: not written
    (line,) = [orjson.loads(line) for line in text().splitlines()]
    assert line.pop("timestamp").endswith("Z")
    assert line == {"event": "tool.failed", "level": "warning", "tool": "t", "seconds": 1.5, "outcome": "timeout"}


@pytest.fixture
def a_request():
    request_context.fields.set({"request_id": "r"})
    request_context.add({"client": "app"})
    yield
    request_context.fields.set({})


def refused():
    try:
        int("secret")
    except ValueError:
        return sys.exc_info()


@pytest.mark.parametrize("log_content", [False, True])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"tool": None},
        {"tool": "t", "client": "other", "seconds": 0.5, "calls": 1, "usage": {"total_tokens": None}},
        {"exc_info": refused()},
        {"odd": {1: 2}, "half": "a\ud83d"},
        {"result": Content([1]), "turn": None},
    ],
)
@pytest.mark.usefixtures("a_request")
def test_an_event_is_the_same_line_as_by_any_other_way(written, fields, log_content):
    text = written(log_content=log_content)
    log.LogObserver()("tool.completed", **fields)
    structlog.get_logger().info("tool.completed", **fields)
    told, logged = (re.sub(WHENEVER, "now", line) for line in text().splitlines())
    assert told == logged
    assert told.startswith('{"timestamp":"nowZ","level":"info","event":"tool.completed","request_id":"r","client":')


@pytest.mark.parametrize("fields", [{}, {"odd": {1: 2}}, {"deep": orjson.loads(b"[" * 1000 + b"]" * 1000)}])
def test_each_line_says_when_in_utc(written, fields):
    text = written()
    log.LogObserver()("tool.completed", **fields)
    assert re.fullmatch(WHENEVER + "Z", orjson.loads(text())["timestamp"])


def test_for_people_a_line_begins_with_when(written):
    text = written(log_format="console")
    log.LogObserver()("mcp.connected", server="wiki")
    assert re.fullmatch(r"\d\d:\d\d:\d\d  mcp\.connected  server=wiki\n", text())


def test_what_a_line_says_of_time_itself_stays_as_it_is(written):
    text = written(log_format="console")
    structlog.get_logger().info("x", timestamp="once")
    assert text().startswith("once ")


@pytest.mark.parametrize("log_content", [False, True])
def test_half_of_an_emoji_does_not_cost_the_line(written, log_content):
    text = written(log_content=log_content)
    log.LogObserver()("tool.completed", tool="a\ud83d", seconds=0.5)
    line = orjson.loads(text())
    assert (line["tool"], line["seconds"]) == ("a?", 0.5)


def test_what_a_terminal_would_not_show_as_itself_is_escaped(written):
    text = written()
    odd = "a\u202eb\u200bc\u2028d\x9be\U000e0041f\ufeffg\x7fé中😀"
    log.LogObserver()("tool.failed", tool=odd)
    (line,) = text().split("\n")[:-1]
    assert orjson.loads(line)["tool"] == odd
    assert line.isprintable()
    assert "é中😀" in line
    assert r"a\u202eb\u200bc\u2028d\u009be\udb40\udc41f\ufeffg" in line


def test_a_number_of_any_size_does_not_cost_the_line(written):
    text = written()
    log.LogObserver()("tool.failed", tool=10**300)
    assert orjson.loads(text())["tool"] == str(10**300)


def test_a_field_that_cannot_be_written_does_not_cost_the_line(written):
    text = written()
    deep = orjson.loads(b"[" * 1000 + b"]" * 1000)
    log.LogObserver()("turn.completed", turn=1, response_model=deep, seconds=0.5)
    line = orjson.loads(text())
    assert (line["turn"], line["seconds"], line["response_model"]) == (1, 0.5, "(unreadable)")


def test_for_people_it_is_text(written):
    text = written(log_format="console", log_level="debug")
    log.LogObserver()("tool.started", tool="t")
    (line,) = text().splitlines()
    assert "tool.started" in line
    assert "tool=t" in line


@pytest.mark.parametrize(("log_format", "part"), [("json", '"level":"warning"'), ("console", "[warning")])
def test_the_servers_own_lines_come_in_the_same_form(written, log_format, part):
    text = written(log_format=log_format)
    logging.getLogger("uvicorn.error").warning("Invalid HTTP request received.")
    (line,) = text().splitlines()
    assert "Invalid HTTP request received." in line
    assert part in line


def test_what_was_said_is_text_where_it_is_wanted(written):
    text = written(log_content=True)
    log.LogObserver()("tool.completed", tool="t", result=Content("found"), arguments=Content({"query": "q"}))
    line = orjson.loads(text())
    assert (line["result"], line["arguments"]) == ("found", '{"query":"q"}')
