"""docs/openapi.yaml says what the proxy takes and answers, and the proxy keeps to it."""

import asyncio
import re
import sys
from pathlib import Path
from typing import get_args

import pytest
import yaml
from hypothesis import settings
from openapi_spec_validator import OpenAPIV31SpecValidator

from proxy.api.endpoints import state_as_json
from proxy.kit.breaker import BreakerState
from proxy.kit.readiness import Readiness
from proxy.loop.results import Cause
from proxy.paths import OTHER_ROUTE, ROUTES, route_of
from tests.fakes import streamed, whole
from tests.serving import proxy_of

ROOT = Path(__file__).parent.parent
PAGE = yaml.safe_load((ROOT / "docs" / "openapi.yaml").read_text())
MCP = "server: {mcp: true}\n"
CLIENTS = MCP + "clients: [{name: app, key: key-of-the-app, admin: true}]"  # the key that schemathesis.toml has
SCHEMATHESIS = Path(sys.executable).with_name("schemathesis")
METHODS = {re.sub(r":\w+\}", "}", row.path): {*row.methods.split(", ")} for row in ROUTES if row.methods}
HANDED_ON = {"/v1/embeddings", "/v1/completions"}


def test_the_page_is_an_openapi_description():
    assert PAGE["openapi"].startswith("3.1")
    assert list(OpenAPIV31SpecValidator(PAGE).iter_errors()) == []


def test_every_path_of_ours_has_a_name_in_metrics_and_traces():
    assert {path for path in METHODS if route_of(path) == OTHER_ROUTE} == set()


def test_every_path_of_ours_is_on_it_with_its_methods():
    described = {
        path: {name.upper() for name in operations if name != "parameters"}
        for path, operations in PAGE["paths"].items()
        if path not in HANDED_ON
    }
    assert described == METHODS


def test_the_states_of_readyz_are_described_with_all_that_they_may_say():
    described = PAGE["components"]["schemas"]["State"]["properties"]
    full = Readiness("t", usable=False, why_not="no key", breaker=BreakerState.OPEN, cause="quota")
    assert described.keys() == state_as_json(full).keys()
    assert described["cause"]["enum"] == list(get_args(Cause))
    assert described["breaker"]["enum"] == [state for state in BreakerState if state is not BreakerState.CLOSED]


@pytest.mark.hypothesis
async def test_the_proxy_keeps_to_it_whatever_it_is_sent(upstream, tmp_path, logged):
    upstream.replies = [lambda request: streamed("Hi") if request.get("stream") else whole("Hi")]
    known = {"enum": ["m", "alias", "nobody's"]}
    schemas = {**PAGE["components"]["schemas"], "ModelName": {**PAGE["components"]["schemas"]["ModelName"], **known}}
    page = {**PAGE, "components": {**PAGE["components"], "schemas": schemas}}
    (tmp_path / "openapi.yaml").write_text(yaml.safe_dump(page))
    options = ["--no-color", "--config-file", ROOT / "tests" / "schemathesis.toml"]
    if settings.get_current_profile_name() == "fuzz":
        effort = ["--phases", "examples,coverage,fuzzing,stateful", "--max-examples", "200"]
    else:
        effort = ["--phases", "examples,fuzzing", "--max-examples", "2", "--seed", "1", "--generation-deterministic"]
    async with proxy_of(upstream, more=CLIENTS) as url:
        run = ["run", "openapi.yaml", "--url", url, "--continue-on-failure", *effort]
        process = await asyncio.create_subprocess_exec(
            SCHEMATHESIS, *options, *run, cwd=tmp_path, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        said, _ = await process.communicate()
    assert process.returncode == 0, said.decode()
    assert upstream.requests
    assert [line for line in logged() if line["event"].endswith((".crashed", "observer.failed"))] == []
