"""Options that an earlier version had: what a configuration that still has one is told, and whether it starts."""

from pathlib import Path

import pytest

from proxy.app import configuration
from proxy.config import removed
from proxy.config.model import keys_of
from proxy.config.removed import REMOVED, Removed, removed_at
from proxy.wire.errors import ConfigurationError

ONE, TWO = "one-" + "1" * 16, "two-" + "2" * 16
OF_0_2 = """\
upstreams:
  zai:
    base_url: https://api.example/v1
    api_key:
      - {{key: "${{ONE}}", max_concurrent: 3}}
      - {{weight: 2, key: "${{TWO}}"}}
tools:
  web_search:
    type: serper
    api_key: [{{key: "${{ONE}}"}}, "${{TWO}}"]
{more}
"""


def parse(more=""):
    return configuration.parse(OF_0_2.format(more=more), {"ONE": ONE, "TWO": TWO}, name="config.yaml")


def test_a_configuration_of_0_2_with_limits_and_weights_of_keys_starts_with_a_warning_for_each():
    loaded = parse()
    keys = {1: ONE, 2: TWO}
    assert keys_of(loaded.config.upstreams["zai"].api_key) == keys_of(loaded.config.tools["web_search"].api_key) == keys
    said = [warning for warning in loaded.warnings if "max_concurrent" in warning]
    assert [warning.split(": ")[:2] for warning in said] == [
        ["config.yaml:5", "upstreams.zai.api_key[0]"],
        ["config.yaml:6", "upstreams.zai.api_key[1]"],
        ["config.yaml:10", "tools.web_search.api_key[0]"],
    ]
    assert all("write the key itself" in warning for warning in said)


@pytest.mark.parametrize(
    ("api_key", "fault"),
    [
        ('[{key: "${ONE}", number: 7}]', "[0].number: unknown key; known are key, max_concurrent, weight"),
        ("[{max_concurrent: 3}]", "[0]: must be text, not a mapping"),
        ('[{key: "${ONE}"}, "${ONE}"]', ": key 2 is the same as key 1"),
        ("[{key: [k]}]", "[0]: must be text, not a list"),
    ],
)
def test_an_entry_of_a_list_of_keys_that_no_version_had_is_a_fault(api_key, fault):
    text = f"upstreams: {{up: {{base_url: 'http://up/v1', api_key: {api_key}}}}}"
    with pytest.raises(ConfigurationError) as raised:
        configuration.parse(text, {"ONE": ONE}, name="config.yaml")
    assert raised.value.faults == (f"config.yaml:1: upstreams.up.api_key{fault}",)


def test_an_entry_without_a_value_for_its_key_disables_the_upstream_as_any_other_does():
    loaded = configuration.parse("upstreams: {up: {base_url: 'http://up/v1', api_key: [{key: '${NO}'}]}}", {})
    assert loaded.disabled["upstreams.up"].why == "NO is not set"


@pytest.mark.parametrize("level", ["warning", "fault"])
def test_a_removed_option_is_a_warning_or_a_fault_at_its_line_as_its_row_says(monkeypatch, level):
    monkeypatch.setattr(removed, "REMOVED", (*REMOVED, Removed("offer.was", level, "SENTENCE")))
    if level == "warning":
        assert "config.yaml:12: offer.was: SENTENCE" in parse("\noffer: {was: 1}").warnings
        return
    with pytest.raises(ConfigurationError) as raised:
        parse("offer: {was: 1, never: 1}")
    unknown, fault = raised.value.faults
    assert (fault, "unknown key" in unknown) == ("config.yaml:11: offer.was: SENTENCE", True)


@pytest.mark.parametrize(
    ("tool", "key", "cure"),
    [
        ("{type: serper_scrape, api_key: k}", "type", "write `type: web_fetch`"),
        ("{type: serper, api_key: k, endpoint: images}", "endpoint", "leave `endpoint` out"),
        ("{type: serper, api_key: k, endpoint: '${ENDPOINT}'}", "endpoint", "leave `endpoint` out"),
    ],
)
def test_a_removed_type_or_value_is_a_fault_at_its_line_that_says_what_to_write(tool, key, cure):
    with pytest.raises(ConfigurationError) as raised:
        configuration.parse(f"tools:\n  one: {tool}", {"ENDPOINT": "places"}, name="config.yaml")
    [fault] = raised.value.faults
    assert fault.startswith(f"config.yaml:2: tools.one.{key}: ")
    assert cure in fault


def test_every_row_is_found_by_its_path_and_only_by_it():
    for row in REMOVED:
        path, value = row.path.replace("*", "any").replace("[]", "[12]"), next(iter(row.values), None)
        assert removed_at(path, value) is row
        assert removed_at(f"{path}.more", value) is removed_at(path, "any other") is None
    paths = [row.path for row in REMOVED]
    assert len({*paths}) == len(paths)


def test_every_removed_option_is_named_in_the_notes_for_upgrades():
    upgrades = (Path(__file__).parents[2] / "docs" / "upgrades.md").read_text()
    assert all(word in upgrades for row in REMOVED for word in (row.path, *row.values))
