"""What a terminal shows once the proxy serves."""

import pytest

from proxy.app.configuration import parse
from proxy.kit.terminal import Style
from proxy.server.banner import banner

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
    rows = {line[2:15].strip(): line[15:] for line in shown if line.strip()}
    assert rows.get("pages") == pages
    assert rows["without a key"] == "gmi (GMI_API_KEY)"
