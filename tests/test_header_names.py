import re
from pathlib import Path

import pytest

import proxy
from proxy.api.affinity import _HEADERS as SESSION_HEADERS
from proxy.app.configuration import parse
from proxy.config.redaction import secrets_of
from proxy.kit.header_names import HOP_BY_HOP, READ_BY_US, SECRET_NAME, WRITTEN_BY_US
from proxy.tools.sent_headers import SentHeaders
from proxy.wire.credentials import NO_CREDENTIALS

ENTRY = "tools: {{t: {{type: http, description: d, parameters: {{}}, url: 'http://h/', headers: {{{name}: {value}}}}}}}"


@pytest.mark.parametrize(
    "name",
    ["X-Signature", "X-Credential", "Authorization", "Cookie", "X-Api-Key", "X-Pass", "X-Secret", "Private-Token"],
)
def test_a_secret_header_is_masked_in_the_log_and_in_results_alike(name):
    loaded = parse(ENTRY.format(name=name, value="s3cret-value"), {})
    assert "s3cret-value" in secrets_of(loaded)
    assert SentHeaders(loaded.config.tools["t"].headers).mask_for(NO_CREDENTIALS)("s3cret-value") == "[secret]"


@pytest.mark.parametrize("name", ["Accept", "User-Agent", "X-City"])
def test_other_headers_are_not(name):
    assert not SECRET_NAME.search(name)


def test_what_is_for_one_connection_is_nobodys_to_set():
    assert HOP_BY_HOP < WRITTEN_BY_US


def test_what_the_proxy_reads_holds_no_users_credential():
    rooms = [Path(proxy.__file__).parent / room for room in ("api", "pages", "server", "telemetry")]
    code = "\n".join(file.read_text() for room in rooms for file in room.rglob("*.py"))
    read = {*re.findall(r"header\(scope, b[\"']([a-z-]+)[\"']\)", code)} | {name.decode() for name in SESSION_HEADERS}
    assert len(read) > 15
    assert read <= READ_BY_US
