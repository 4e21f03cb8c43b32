"""`toolproxy spend`: what clients have used, read from the state store by another process than the one that serves."""

import asyncio
from datetime import UTC, datetime

import httpx
import orjson
import pytest

from proxy.app.configuration import parse
from proxy.commands.cli import main
from proxy.commands.spend import report, spend_of
from proxy.wire.errors import ConfigurationError
from tests.api.test_budgets import COUNTS, KEY, SEARCH, counted
from tests.fakes import FakeClock
from tests.serving import CONFIG, proxy_of

CLIENTS = f"""
clients:
  - {{name: app, key: {KEY}, budget: {{per: day, tokens: 5000, tool_calls: 3, cost: 0.5}}}}
  - {{name: idle, key: key-of-a-client-that-asks-nothing, budget: {{per: month, tokens: 10}}}}
"""
TOKENS = COUNTS["total_tokens"]
PRICED = CONFIG.replace("m: {{upstream: up}}", "m: {{upstream: up, price: {{input: 2, output: 10}}}}")


class Calendar(FakeClock):
    """A clock that tells the time that it is given, and on which background tasks wait as on any other."""

    async def sleep(self, seconds):
        await asyncio.sleep(seconds)


@pytest.fixture
def clock():
    return Calendar(datetime(2026, 2, 27, 12, 0, 0, tzinfo=UTC).timestamp())


async def ask(url, model="m", **headers):
    headers = {"authorization": f"Bearer {KEY}", **headers}
    body = {"model": model, "messages": [{"role": "user", "content": "x"}]}
    async with httpx.AsyncClient() as client:
        assert (await client.post(f"{url}/v1/chat/completions", json=body, headers=headers)).status_code == 200


async def test_it_is_by_client_and_model_today_or_this_month_with_what_is_left_of_each_budget(upstream, state, clock):
    upstream.replies = [counted("", calls=SEARCH), counted("Hi")]
    more = CLIENTS + state
    config = parse(PRICED.format(upstream="http://up", more=more), {}).config
    async with proxy_of(upstream, config=PRICED, more=more, clock=clock) as url:
        await ask(url)
        clock.now += 86400
        await ask(url)
        await ask(url, "alias")
        today = await spend_of(config, clock, month=False)
        month = await spend_of(config, clock, month=True)
    assert (today["period"], month["period"], month["ends_at"]) == (
        "2026-02-28",
        "2026-02",
        "2026-03-01T00:00:00+00:00",
    )
    app, idle = today["clients"]
    assert {model: (use["requests"], use["tokens"]) for model, use in app["models"].items()} == {
        "m": (1, TOKENS),
        "alias": (1, TOKENS),
    }
    assert app["total"]["tokens"] == 2 * TOKENS
    assert app["budget"] == {
        "per": "day",
        "renewed_at": "2026-03-01T00:00:00+00:00",
        "tokens": {"limit": 5000, "used": 2 * TOKENS, "left": 5000 - 2 * TOKENS},
        "tool_calls": {"limit": 3, "used": 0, "left": 3},
        "cost": {"limit": 0.5, "used": 0.003, "left": 0.497},
    }
    assert (idle["models"], idle["budget"]["tokens"]) == ({}, {"limit": 10, "used": 0, "left": 10})
    assert month["clients"][0]["models"]["m"]["requests"] == 2
    assert month["clients"][0]["models"]["m"]["tool_calls"] == 1
    assert month["clients"][0]["budget"]["tokens"]["used"] == 2 * TOKENS
    assert "\n".join(report(today)) == (
        "2026-02-28 (UTC)\n"
        "client  model         requests  input  cached  output  tool calls   cost\n"
        "app     alias                1  1,000     600     100           0      0\n"
        "app     m                    1  1,000     600     100           0  0.003\n"
        "app     all models           2  2,000   1,200     200           0  0.003\n"
        "idle    nothing used         0      0       0       0           0      0\n"
        "\n"
        "client  budget               used  limit   left  renewed (UTC)\n"
        "app     tokens per day      2,200  5,000  2,800     2026-03-01\n"
        "app     tool calls per day      0      3      3     2026-03-01\n"
        "app     cost per day        0.003    0.5  0.497     2026-03-01\n"
        "idle    tokens per month        0     10     10     2026-03-01"
    )


async def test_a_client_that_the_configuration_no_longer_has_is_there_and_one_may_be_chosen(upstream, state, clock):
    upstream.replies = [counted("Hi")]
    without = parse(CONFIG.format(upstream="http://up", more=state), {}).config
    async with proxy_of(upstream, more=CLIENTS + state, clock=clock) as url:
        await ask(url)
        found = await spend_of(without, clock, month=False)
        assert [client["client"] for client in found["clients"]] == ["anyone", "app"]
        found = await spend_of(without, clock, month=False, client="app")
        assert [client["client"] for client in found["clients"]] == ["app"]
        with pytest.raises(
            ConfigurationError, match="there is no client 'nobody', and none has used anything in 2026-02-27"
        ):
            await spend_of(without, clock, month=False, client="nobody")


async def test_use_of_clients_without_a_budget_is_there_within_a_second(upstream, state, clock):
    upstream.replies = [counted("Hi")]
    config = parse(CONFIG.format(upstream="http://up", more=state), {}).config
    async with proxy_of(upstream, more=state, clock=clock) as url, asyncio.timeout(10):
        await ask(url)
        while not (found := await spend_of(config, clock, month=False))["clients"][0]["models"]:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert found["clients"][0]["models"]["m"]["requests"] == 1


@pytest.mark.parametrize(
    ("state", "fault"),
    [
        ("memory://", "state.url: memory:// keeps what clients use in the process that serves them"),
        (
            "sqlite:///{folder}/state.db",
            "state.url: there is no file {folder}/state.db: nothing has been counted there",
        ),
        (
            "sqlite:///state.db",
            "state.url: there is no file {folder}/state.db: nothing has been counted there; the path is relative to",
        ),
        ("redis://127.0.0.1:1", "state.url: it cannot be reached"),
    ],
)
def test_a_store_that_cannot_be_read_is_one_line(tmp_path, capsys, monkeypatch, state, fault):
    monkeypatch.chdir(tmp_path)
    text = (
        f"upstreams: {{up: {{base_url: 'http://up', api_key: k}}}}\nstate: {{url: '{state.format(folder=tmp_path)}'}}\n"
    )
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(SystemExit) as ended:
        main(["spend", "--config", str(tmp_path / "config.yaml")])
    assert ended.value.code == 1
    printed = capsys.readouterr()
    assert printed.err.startswith(f"toolproxy: {fault.format(folder=tmp_path)}")
    assert (printed.out, printed.err.count("\n")) == ("", 1)


def test_the_command_prints_a_table_or_json(tmp_path, capsys):
    url = f"sqlite:///{tmp_path}/state.db"
    (tmp_path / "config.yaml").write_text(
        f"upstreams: {{up: {{base_url: 'http://up', api_key: k}}}}\nclients: [{{name: app, key: {KEY}}}]\nstate: {{url: '{url}'}}\n"
    )
    (tmp_path / "state.db").touch()
    for options in ([], ["--month", "--client", "app"]):
        main(["spend", "--config", str(tmp_path / "config.yaml"), *options])
        assert "app     nothing used" in capsys.readouterr().out
        main(["spend", "--config", str(tmp_path / "config.yaml"), "--json", *options])
        assert orjson.loads(capsys.readouterr().out)["clients"][0]["client"] == "app"
