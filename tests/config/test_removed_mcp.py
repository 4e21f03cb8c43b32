"""Options of MCP servers and of checks that are gone: a fault where leaving one out would be less safe."""

import pytest

from proxy.config.reading import parse
from proxy.tools.kinds import KINDS
from proxy.wire.errors import ConfigurationError

TOOL = """
tools:
  t:
    type: mcp
    url: http://h
    headers: {a: "${request.headers.a}"}
    """


def read(text):
    return parse(text, {}, kinds=KINDS)


@pytest.mark.parametrize(
    ("text", "where", "instead"),
    [
        (TOOL + "definitions: pinned", "config.yaml:7: tools.t.definitions", "pin the version of the server"),
        (TOOL + "check: {url: 'http://c'}", "config.yaml:7: tools.t.check.url", "`check: module:function`"),
        ("tools_check: {url: 'http://c'}", "config.yaml:1: tools_check.url", "`check: module:function`"),
        ("tools_check: {function: 'a:b', headers: {a: b}}", "config.yaml:1: tools_check.headers", "module:function"),
    ],
)
def test_an_option_that_made_the_proxy_safer_is_a_fault_with_what_stands_in_its_place(text, where, instead):
    with pytest.raises(ConfigurationError) as refused:
        read(text)
    [line] = [fault for fault in refused.value.faults if fault.startswith(where)]
    assert instead in line


@pytest.mark.parametrize(
    ("option", "path"), [("definitions: accepted", "definitions"), ("max_sessions: 9", "max_sessions")]
)
def test_an_option_whose_absence_is_harmless_is_a_warning_with_its_line(option, path):
    [warning] = read(TOOL + option).warnings
    assert warning.startswith(f"config.yaml:7: tools.t.{path}: ")
    assert "remove the key" in warning
