import fcntl
import os
import re
from pathlib import Path

import pytest

from proxy.app.configuration import parse
from proxy.kit import request_context
from proxy.paths import route_of
from proxy.telemetry import workers
from proxy.telemetry.events import FanOut
from proxy.telemetry.metrics import FirstSeenLabels, Metrics, upstream_error
from proxy.wire.errors import ConfigurationError

CONFIG = parse(
    "upstreams: {up: {base_url: 'http://u', api_key: k}, other: {base_url: 'http://o', api_key: k}}\n"
    "models: {m: {upstream: up}, '*': {upstream: up}}\n"
    "clients: [{name: app, key: k}]\n",
    {},
).config


class Counted:
    """Metrics, and what of them is not zero."""

    def __init__(self):
        self.metrics = Metrics(CONFIG, version="1")
        self.observe = FanOut([self.metrics], content=False)

    def __call__(self, event, /, **fields):
        self.observe(event, **fields)

    def request(self, *, path="/v1/chat/completions", status=200, stream=None, **said):
        request_context.fields.set({"request_id": "r"})
        request_context.add(said)
        self("request.started", method="POST", path=path)
        self("response.started", status=status, event_stream=bool(stream), seconds=0.2)
        self("request.completed", path=path, status=status, seconds=0.3, first_byte=0.2, event_stream=stream)

    @property
    def text(self):
        return self.metrics.scrape(tasks=tuple, keys={}).decode()

    @property
    def samples(self):
        lines = [line.rsplit(" ", 1) for line in self.text.splitlines() if not line.startswith("#")]
        return {name.removeprefix("toolproxy_"): float(value) for name, value in lines if float(value)}


@pytest.fixture
def counted():
    yield Counted()
    request_context.fields.set({})


def test_every_name_begins_with_toolproxy_and_every_series_says_what_it_is(counted):
    counted.request()
    lines = counted.text.splitlines()
    assert all(line.removeprefix("# HELP ").removeprefix("# TYPE ").startswith("toolproxy_") for line in lines)
    assert "_created" not in counted.text


def test_every_event_is_counted_in_the_text_that_dashboards_read(counted):
    said = {"client": "app", "model": "m", "turns": 3, "tool_calls": 2, "prompt_tokens": 30, "completion_tokens": 4}
    counted.request(**said, cached_tokens=10, cost=0.5, stop="max_turns", rung="withdraw", stream=True)
    counted("budget.checked", client="app", kinds={"day": (10, 2.5)})
    counted("limit.reached", kind="rate_limit_exceeded")
    for event, fields in EVENTS.items():
        counted(event, **fields)
    keys = {("upstream", "up"): ("usable", "resting"), ("tool", "t"): ("refused",)}
    text = counted.metrics.scrape(tasks=tuple, keys=keys).decode().partition("# HELP toolproxy_process")[0]
    text = re.sub(r"(config_last_reload_success_timestamp_seconds) [0-9.e+]+", r"\1 TIME", text)
    assert text == (Path(__file__).parent / "metrics.txt").read_text()


EVENTS = {
    "tool.completed": {"tool": "t", "seconds": 1, "answered_by": "u"},
    "tool.failed": {"tool": "t", "seconds": 2, "outcome": "timeout"},
    "tool.crashed": {"tool": "t", "seconds": 0, "exc_info": True},
    "tool.abandoned": {"tool": "t", "seconds": 0},
    "tool.cache_hit": {"tool": "t"},
    "tools.searched": {"outcome": "found"},
    "tool.checked": {"tool": "t", "outcome": "passed"},
    "page.completed": {"tool": "t", "page": 1},
    "page.failed": {"tool": "t", "page": 1, "outcome": "late"},
    "page.crashed": {"tool": "t", "page": 1},
    "tool.retried": {"tool": "t"},
    "tool.breaker_opened": {"tool": "t"},
    "tool.breaker_closed": {"tool": "u"},
    "tool.fell_back": {"tool": "t", "to": "u"},
    "tool.key_used": {"tool": "t", "key": 2},
    "upstream.answered": {"upstream": "up", "seconds": 3, "first": 1},
    "upstream.retried": {"upstream": "up", "code": "1305", "status": 429},
    "upstream.fell_back": {"upstream": "up", "to": "other", "code": "upstream_error", "status": 502},
    "turn.failed": {"upstream": "up", "code": "x", "status": 400},
    "relay.failed": {"upstream": "other", "code": "upstream_timeout", "status": 504},
    "upstream.key_used": {"upstream": "up", "key": 1},
    "upstream.breaker_opened": {"upstream": "up"},
    "upstream.breaker_closed": {"upstream": "other"},
    "continuation.sought": {"sought": 3, "found": 1},
    "continuation.kept": {"entries": 7, "bytes": 700},
    "server.started": {},
    "configuration.reloaded": {},
    "configuration.refused": {},
}


def test_a_request_is_counted_by_route_client_model_and_status(counted):
    counted.request(client="app", model="m")
    counted.request(client="app", model="m", status=429)
    samples = counted.samples
    assert samples['requests_total{client="app",model="m",route="/v1/chat/completions",status="200"}'] == 1
    assert samples['requests_total{client="app",model="m",route="/v1/chat/completions",status="429"}'] == 1
    assert samples['request_seconds_count{model="m",route="/v1/chat/completions"}'] == 2
    assert samples['request_first_byte_seconds_sum{model="m",route="/v1/chat/completions"}'] == pytest.approx(0.4)


def test_an_observation_is_counted_in_its_bucket(counted):
    counted.request(client="app", model="m")
    samples = counted.samples
    assert samples['request_seconds_bucket{le="0.5",model="m",route="/v1/chat/completions"}'] == 1
    assert 'request_seconds_bucket{le="0.25",model="m",route="/v1/chat/completions"}' not in samples


def test_what_strangers_choose_makes_no_new_series(counted):
    counted.request(client="app", model="unlisted-0", path="/nowhere/0")
    before = len(counted.text.splitlines())
    for number in range(1, 200):
        counted.request(client="app", model=f"unlisted-{number}", path=f"/nowhere/{number}")
        counted("turn.failed", upstream="up", code=f"code-{number}", status=400)
    after = counted.samples
    assert after['requests_total{client="app",model="other",route="other",status="200"}'] == 200
    assert after['upstream_errors_total{error="invalid_request",upstream="up"}'] == 199
    assert len(counted.text.splitlines()) - before <= 1 + 2  # the errors' own


def test_open_requests_and_streams_are_counted_while_they_are_open(counted):
    counted("request.started", method="POST", path="/v1/responses")
    counted("response.started", status=200, event_stream=True, seconds=0.1)
    assert (counted.samples["open_requests"], counted.samples["open_streams"]) == (1, 1)
    counted("request.completed", path="/v1/responses", status=200, seconds=1, first_byte=0.1, event_stream=True)
    assert {"open_requests", "open_streams"}.isdisjoint(counted.samples)


def test_one_that_nobody_waited_for_has_no_first_byte(counted):
    counted("request.started", method="POST", path="/v1/chat/completions")
    counted("request.completed", path="/v1/chat/completions", status=499, seconds=1, first_byte=None, event_stream=None)
    assert any(name.startswith("requests_total{") and 'status="499"' in name for name in counted.samples)
    assert not any(name.startswith("request_first_byte") for name in counted.samples)
    assert "open_requests" not in counted.samples


def test_what_a_request_has_used_and_which_limit_it_met(counted):
    said = {"client": "app", "model": "m", "turns": 3, "tool_calls": 2, "prompt_tokens": 30, "completion_tokens": 4}
    counted.request(**said, stop="max_turns", rung="withdraw")
    counted("limit.reached", kind="rate_limit_exceeded")
    counted.request(error="rate_limit_exceeded", status=429)  # an upstream's
    counted.request(stop="answer", error="invalid_api_key")
    samples = counted.samples
    assert samples['request_turns_sum{model="m"}'] == 3
    assert samples['request_tool_calls_sum{model="m"}'] == 2
    assert samples['tokens_total{client="app",kind="prompt",model="m"}'] == 30
    assert samples['tokens_total{client="app",kind="completion",model="m"}'] == 4
    assert {name: value for name, value in samples.items() if name.startswith("limits")} == {
        'limits_total{kind="max_turns"}': 1,
        'limits_total{kind="rate_limit_exceeded"}': 1,
    }
    assert samples['forced_answers_total{rung="withdraw"}'] == 1


def test_a_request_that_has_used_nothing_makes_no_series_of_use(counted):
    counted.request(status=401)
    series = [line for line in counted.text.splitlines() if not line.startswith("#")]
    assert series
    assert not [line for line in series if "turns" in line or "tokens" in line or "request_tool_calls" in line]


def test_a_request_that_was_handed_through_is_no_loop_without_turns(counted):
    counted.request(client="app", model="m", prompt_tokens=3, completion_tokens=2)
    assert counted.samples['tokens_total{client="app",kind="prompt",model="m"}'] == 3
    assert "toolproxy_request_turns_count" not in counted.text


def test_tools_are_counted_by_outcome(counted):
    counted("tool.completed", tool="t", seconds=1)
    counted("tool.failed", tool="t", seconds=2, outcome="timeout")
    counted("tool.crashed", tool="t", seconds=0, exc_info=True)
    counted("tool.abandoned", tool="t", seconds=0)
    counted("tool.cache_hit", tool="t")
    counted("tool.retried", tool="t", attempt=1, outcome="error")
    counted("tool.breaker_opened", tool="t", seconds=30)
    counted("tool.fell_back", tool="t", to="u", outcome="error")
    samples = counted.samples
    for outcome in ("ok", "timeout", "crashed", "abandoned"):
        assert samples[f'tool_calls_total{{outcome="{outcome}",tool="t"}}'] == 1
    assert samples['tool_seconds_sum{tool="t"}'] == 3
    assert samples['tool_cache_hits_total{tool="t"}'] == 1
    assert samples['tool_breaker_openings_total{tool="t"}'] == 1
    assert samples['tool_retries_total{tool="t"}'] == 1
    assert samples['tool_fallbacks_total{to="u",tool="t"}'] == 1


def test_upstreams_are_counted_by_what_their_errors_mean(counted):
    counted("upstream.answered", upstream="up", seconds=3, first=1)
    counted("upstream.answered", upstream="up", seconds=3, first=None)
    counted("upstream.retried", upstream="up", code="1305", status=429, wait=1)
    counted("upstream.fell_back", upstream="up", to="other", code="upstream_error", status=502)
    counted("relay.failed", upstream="up", code="upstream_timeout", status=504)
    samples = counted.samples
    assert samples['upstream_seconds_count{upstream="up"}'] == 2
    assert samples['upstream_first_seconds_count{upstream="up"}'] == 1
    for error in ("rate_limit_exceeded", "upstream_error", "upstream_timeout"):
        assert samples[f'upstream_errors_total{{error="{error}",upstream="up"}}'] == 1
    assert samples['upstream_retries_total{upstream="up"}'] == 1
    assert samples['upstream_fallbacks_total{to="other",upstream="up"}'] == 1


def test_a_breaker_is_shown_while_it_is_open(counted):
    counted("upstream.breaker_opened", upstream="up", seconds=30)
    assert counted.samples['upstream_breaker_open{upstream="up"}'] == 1
    counted("upstream.breaker_closed", upstream="up")
    assert 'upstream_breaker_open{upstream="up"}' not in counted.samples


def test_a_tool_is_shown_while_it_is_not_called(counted):
    counted("tool.breaker_opened", tool="t", seconds=None, cause="key")
    assert counted.samples['tool_breaker_open{tool="t"}'] == 1
    counted("tool.breaker_closed", tool="t")
    assert 'tool_breaker_open{tool="t"}' not in counted.samples


def test_continuations_are_counted_when_they_are_sought_and_kept(counted):
    counted("continuation.sought", sought=3, found=1)
    counted("continuation.kept", entries=7, bytes=700)
    counted("continuation.kept")
    samples = counted.samples
    assert (samples['state_lookups_total{outcome="hit"}'], samples['state_lookups_total{outcome="miss"}']) == (1, 2)
    assert (samples["state_entries"], samples["state_bytes"]) == (7, 700)


@pytest.mark.parametrize(
    ("code", "status", "meaning"),
    [
        ("insufficient_quota", 429, "insufficient_quota"),
        ("1210", 400, "invalid_request"),
        (None, 401, "invalid_api_key"),
        ("x", 503, "upstream_error"),
        (None, None, "upstream_error"),
    ],
)
def test_an_upstreams_own_code_is_told_by_its_status(code, status, meaning):
    assert upstream_error(code, status) == meaning


def test_paths_are_known_ones_or_other():
    assert route_of("/v1/models/some/name") == "/v1/models/{id}"
    assert route_of("/v1/embeddings") == "/v1/embeddings"
    assert route_of("/debug/requests/abc") == "/debug/requests/{id}"
    assert route_of("/v1/embeddings/../x") == "other"


def test_names_that_become_known_with_time_have_a_limit_too():
    few = FirstSeenLabels(2)
    assert [few(name) for name in ("a", "b", "c", "a")] == ["a", "b", "other", "a"]


TWO = "server: {workers: 2}\n"


def test_workers_count_in_a_directory_that_is_there_as_long_as_they_are(monkeypatch, tmp_path):
    monkeypatch.setenv(workers.VARIABLE, str(tmp_path))
    with workers.shared_directory(parse(TWO, {}).config):
        made = workers.directory()
        assert made.startswith(str(tmp_path))
        assert list(tmp_path.iterdir())
    assert list(tmp_path.iterdir()) == []


def test_directories_of_killed_supervisors_are_removed_and_those_in_use_are_not(monkeypatch, tmp_path):
    killed, in_use, foreign = (tmp_path / f"toolproxy-metrics-{name}" for name in ("killed", "used", "no-lock"))
    for folder in (killed, in_use, foreign):
        folder.mkdir()
        (folder / "recent-1.jsonl").write_text("a conversation")
    (killed / "in-use").touch()
    monkeypatch.setenv(workers.VARIABLE, str(tmp_path))
    with (in_use / "in-use").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with workers.shared_directory(parse(TWO, {}).config):
            assert not killed.exists()
            assert (in_use / "recent-1.jsonl").exists()
            assert foreign.exists()


def test_check_and_serve_agree_about_a_directory_that_cannot_be_made(monkeypatch, tmp_path):
    monkeypatch.setenv(workers.VARIABLE, str(tmp_path / "nowhere"))
    with pytest.raises(ConfigurationError, match=r"set PROMETHEUS_MULTIPROC_DIR to one"):
        workers.check_directory(parse(TWO, {}).config)


@pytest.mark.parametrize("config", [parse("", {}).config, parse(TWO + "telemetry: {metrics: false}", {}).config])
def test_one_worker_and_one_without_metrics_count_in_no_directory(monkeypatch, tmp_path, config):
    monkeypatch.setenv(workers.VARIABLE, str(tmp_path))
    with workers.shared_directory(config):
        assert workers.directory() is None
    assert list(tmp_path.iterdir()) == []


def test_what_a_dead_worker_had_open_is_forgotten_and_what_it_counted_is_not(tmp_path):
    files = [
        "gauge_livesum_999999999.db",
        "counter_999999999.db",
        "gauge_livesum_1.db",
        f"gauge_livesum_{os.getpid()}.db",
    ]
    for name in files:
        (tmp_path / name).touch()
    workers.remove_gauges_of_dead_workers(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(files[1:])
