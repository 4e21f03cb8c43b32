"""What a terminal shows once the proxy serves."""

import re
import shlex
from pathlib import Path

import orjson
import pytest

from proxy.app.configuration import parse
from proxy.commands.overview import describe
from proxy.kit.terminal import Style
from proxy.server.banner import banner
from proxy.server.reload import report

CONFIG = """
upstreams:
  zai: {base_url: "http://zai", api_key: k, profile: glm}
  gmi: {base_url: "http://gmi", api_key: "${GMI_API_KEY}", profile: gpt_oss}
models: {glm: {upstream: zai}}
"""
SHIPPED = (Path(__file__).parent.parent.parent / "config.yaml").read_text()


@pytest.mark.parametrize(
    ("more", "pages"),
    [
        ("", "http://h:1/chat, http://h:1/debug"),
        ("clients: [{name: a, key: a-key-of-16-characters}]", None),
        ("server: {allow_anonymous: true}", None),
    ],
)
def test_the_pages_are_named_where_they_can_be_opened_and_what_has_no_key_quietly(more, pages):
    shown = banner("http://h:1", parse(f"{CONFIG}{more}\n", {}), Style(colors=False)).splitlines()
    rows = {line[2:17].strip(): line[17:] for line in shown if line.strip()}
    assert rows.get("pages") == pages
    assert rows["without a key"] == "gmi (GMI_API_KEY)"


def test_a_client_without_a_key_is_called_by_its_name_and_set_apart_from_the_label():
    more = "clients: [{name: app, key: '${KEY_OF_THE_APP}'}, {name: ops, key: '${KEY_OF_OPS}'}]"
    shown = banner("http://h:1", parse(f"{CONFIG}{more}\n", {}), Style(colors=False))
    lines = shown.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("  without a key  "))
    assert [line[17:] for line in lines[at : at + 2]] == [
        "gmi (GMI_API_KEY), client app (KEY_OF_THE_APP),",
        "client ops (KEY_OF_OPS)",
    ]


@pytest.mark.parametrize("clients", [{}, {"TOOLPROXY_KEY": "a-key-of-16-characters"}])
def test_it_fits_80_columns_and_its_commands_are_what_old_shells_and_curls_take(clients):
    loaded = parse(SHIPPED, {"ZAI_API_KEY": "k" * 40, **clients})
    shown = banner("http://127.0.0.1:8080", loaded, Style(colors=False))
    assert max(map(len, shown.splitlines())) <= 80
    rows = re.split(r"^  (?=\S)", shown, flags=re.MULTILINE)
    (command,) = [row.removeprefix("curl").strip() for row in rows if row.startswith("curl ")]
    words = shlex.split(command.replace("\\\n", ""))
    assert words[:2] == ["curl", "http://127.0.0.1:8080/v1/chat/completions"]
    assert words[-4:-1] == ["-H", "Content-Type: application/json", "-d"]
    assert ("Authorization: Bearer YOUR_KEY" in words) is bool(clients)
    body = orjson.loads(words[-1])
    assert body["model"] == "glm-5.3"
    assert body["messages"][0]["content"] == "What is new in Python? Search the web."


@pytest.mark.parametrize(
    ("more", "callers"),
    [
        ("", "none configured: anyone on this machine may call (set TOOLPROXY_KEY)"),
        ("server: {allow_anonymous: true}", "none configured: anyone who reaches this address may call"),
    ],
)
def test_what_is_disabled_and_who_may_call_is_the_same_in_the_banner_in_check_and_in_the_log(more, callers):
    more += "\ntools: {search: {type: serper, api_key: '${KEY}', fallback: other}, other: {type: clock}}"
    loaded, told = parse(f"{CONFIG}{more}\n", {}), []
    report(loaded, lambda event, **fields: told.append((fields["where"], fields["why"], fields["fallback"])))
    lines, shown = describe(loaded, {}), banner("http://h:1", loaded, Style(colors=False))
    assert any(callers in line for line in lines)
    assert callers in " ".join(shown.split())
    assert told == [("upstreams.gmi", "GMI_API_KEY is not set", None), ("tools.search", "KEY is not set", "other")]
    assert {"  gmi: disabled, GMI_API_KEY is not set", "  search: answered by its fallback other, KEY is not set"} < {
        *lines
    }
    assert "gmi (GMI_API_KEY), search (KEY)" in " ".join(shown.split())
    assert "search (by other)" in " ".join(shown.split())
