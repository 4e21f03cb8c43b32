"""What a terminal shows once the proxy serves."""

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
    [line] = [line for line in shown.splitlines() if "without a key" in line]
    assert line.startswith("  without a key  ")
    assert "client app (KEY_OF_THE_APP), client ops (KEY_OF_OPS)" in line


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
    assert callers in shown
    assert told == [("upstreams.gmi", "GMI_API_KEY is not set", None), ("tools.search", "KEY is not set", "other")]
    assert {"  gmi: disabled, GMI_API_KEY is not set", "  search: answered by its fallback other, KEY is not set"} < {
        *lines
    }
    assert "gmi (GMI_API_KEY), search (KEY)" in shown
    assert "search (by other)" in shown
