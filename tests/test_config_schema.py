"""The schema of the configuration that editors use: as new as the program, and of the same opinion."""

import re
import subprocess
import sys

import config_schema
import jsonschema_rs
import orjson
import pytest
import yaml

from proxy.config import model as c
from proxy.tools.kinds import KINDS
from tests.schema import ROOT, SCHEMA, is_valid
from tests.test_cli import toolproxy

FIELDS = {name: found for name, found in SCHEMA["$defs"].items() if "properties" in found}


def test_the_committed_schema_is_made_of_the_code():
    assert (ROOT / "config.schema.json").read_text() == config_schema.text(), "run `make docs`"


def test_the_schema_is_a_schema_of_draft_2020_12():
    assert SCHEMA["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    jsonschema_rs.meta.validate(SCHEMA)


def patterns_in(node):
    if isinstance(node, dict):
        yield from (value for key, value in node.items() if key == "pattern" and isinstance(value, str))
        for value in node.values():
            yield from patterns_in(value)
    elif isinstance(node, list):
        for value in node:
            yield from patterns_in(value)


def test_its_patterns_are_read_by_validators_in_python_too():
    patterns = {*patterns_in(SCHEMA)}
    assert patterns
    for pattern in patterns:
        re.compile(pattern)


def test_the_command_prints_the_schema_wherever_it_runs(tmp_path):
    done = toolproxy("schema", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert orjson.loads(done.stdout) == SCHEMA


def test_the_first_line_of_the_shipped_configuration_names_the_schema_beside_it(tmp_path):
    first, _, _ = (ROOT / "config.yaml").read_text().partition("\n")
    assert first == "# yaml-language-server: $schema=config.schema.json"
    assert toolproxy("init", "--config", str(tmp_path / "my.yaml")).returncode == 0
    assert (tmp_path / "my.yaml").read_text().startswith(first)
    assert orjson.loads((tmp_path / "config.schema.json").read_bytes()) == SCHEMA
    again = toolproxy("init", "--config", str(tmp_path / "another.yaml"))
    assert (again.returncode, again.stderr) == (0, "")


def test_init_leaves_another_file_of_the_name_of_the_schema_alone(tmp_path):
    (tmp_path / "config.schema.json").write_text("{}")
    done = toolproxy("init", cwd=tmp_path)
    assert (done.returncode, (tmp_path / "config.schema.json").read_text()) == (0, "{}")
    assert done.stderr == "toolproxy: warning: config.schema.json already exists, and is not changed\n"


@pytest.mark.parametrize("path", ["config.yaml", "deploy/kubernetes/base/config.yaml"])
def test_the_configurations_that_are_shipped_are_valid(path):
    assert is_valid((ROOT / path).read_text())


@pytest.mark.parametrize("name", FIELDS)
def test_every_key_has_a_description_and_every_key_with_a_unit_says_it(name):
    for key, found in FIELDS[name]["properties"].items():
        if found.keys() == {"$ref"}:  # a key that all tools have
            continue
        unit = found.get("x-unit")
        assert found["description"], key
        assert unit is None or unit in found["description"].lower(), key
        if key.endswith(("_seconds", "_bytes", "_characters")):
            assert unit == key.rpartition("_")[2], key


def test_a_variable_may_stand_for_any_single_value():
    text = """
server: {port: "${A}", workers: "${A:-2}", cors: {origins: ["${A}"], max_age: "${A}"}, chat_page: "${A}"}
clients: [{name: "${A}", key: ["${A}"], budget: {per: "${A}", cost: "${A}"}, limits: {deadline: "${A}"}}]
upstreams: {u: {base_url: "http://${A}/v1", api_key: "${A}", profile: "${A}", headers: {X-A: "a ${A}"}}}
models: {m: {upstream: u, price: {input: "${A}", output: "${A}"}}}
tools:
  a: {type: "${A:-clock}", timeout: "${A}"}
  b: {type: http, description: d, url: "${A}", method: "${A}", query: {q: "${A}"}, result: "${A}"}
  c: {type: search, provider: "${A}", options: {x: "${A}"}}
  d: {type: search, provider: {url: u, fields: {url: "${A}"}, most: {count: "${A}"}, errors: [{means: "${A}"}]}}
state: {url: "${A}", ttl: "${A}"}
telemetry: {log_level: "${A}", otlp_endpoint: "${A}"}
"""
    assert is_valid(text)
    for no_single_value in ("server: ${A}", "clients: ${A}", "tools: {t: {type: clock, aliases: '${A}'}}"):
        assert not is_valid(no_single_value)
    assert not is_valid("server: {port: '${A'}")


@pytest.mark.parametrize("name", KINDS)
def test_the_type_of_a_tool_determines_its_keys(name):
    union = SCHEMA["properties"]["tools"]["additionalProperties"]["oneOf"]
    (made,) = [found for one in union if "$ref" in one and _type_of(found := _resolved(one)) == name]
    assert set(made["properties"]) == {"type", *KINDS[name].config.__struct_fields__}
    assert made["additionalProperties"] is False


def _resolved(reference):
    return SCHEMA["$defs"][reference["$ref"].removeprefix("#/$defs/")]


def _type_of(tool):
    return tool["properties"]["type"]["const"]


def test_nothing_that_serves_imports_what_only_the_schema_needs():
    code = "import sys; from proxy.commands.cli import main; main(['schema']); sys.exit('proxy.app' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.DEVNULL, check=False)
    assert done.returncode == 0


def test_the_schema_has_every_default_that_the_configuration_has():
    assert SCHEMA["$defs"]["ServerConfig"]["properties"]["port"]["default"] == c.ServerConfig().port
    made = yaml.safe_dump(
        {"server": {k: v["default"] for k, v in FIELDS["ServerConfig"]["properties"].items() if "default" in v}}
    )
    assert is_valid(made)
