import io
import os
from pathlib import Path

import certifi
import openai
import orjson
import pytest
import structlog
from hypothesis import settings

from proxy.config.model import TelemetryConfig
from proxy.telemetry import log
from tests.fakes import FakeUpstream
from tests.redis_server import RedisServer

# A property is tried the same few times in every run of the suite; `make fuzz` searches, with --hypothesis-profile=fuzz.
settings.register_profile("suite", max_examples=30, derandomize=True, database=None, deadline=None)
settings.register_profile("fuzz", max_examples=1500, deadline=None, print_blob=True)
settings.load_profile("suite")


@pytest.fixture(scope="session", autouse=True)
def few_authorities(tmp_path_factory):
    """Let clients trust one authority: reading all 140 takes 25 ms, and every other test makes a client."""
    end = "-----END CERTIFICATE-----\n"
    trusted = tmp_path_factory.mktemp("trusted") / "authority.pem"
    trusted.write_text(Path(certifi.where()).read_text().partition(end)[0] + end)
    os.environ["SSL_CERT_FILE"] = str(trusted)


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def upstream():
    return FakeUpstream()


@pytest.fixture
def redis_server(tmp_path):
    """A real one, empty; `stop` and `start` again at will."""
    server = RedisServer(tmp_path).start()
    yield server
    server.stop()


@pytest.fixture(params=["sqlite", "redis"])
def state(request, tmp_path):
    """The lines of a configuration whose state is in a file, or in Redis."""
    if request.param == "sqlite":
        return f"state: {{url: 'sqlite:///{tmp_path}/state.db'}}"
    return f"state: {{url: '{request.getfixturevalue('redis_server').url}'}}"


@pytest.fixture
def logged():
    """The log as it is written: a call gives its lines so far."""
    stream = io.StringIO()
    log.configure(TelemetryConfig(), stream=stream)
    yield lambda: [orjson.loads(line) for line in stream.getvalue().split("\n") if line]
    structlog.reset_defaults()


@pytest.fixture
def sdk():
    """The real OpenAI SDK, pointed at a proxy."""

    def client(url, *, api_key="client-key", **options):
        return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=api_key, max_retries=0, **options)

    return client
