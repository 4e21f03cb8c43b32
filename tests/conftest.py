import openai
import pytest

from tests.fakes import FakeUpstream


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def upstream():
    return FakeUpstream()


@pytest.fixture
def sdk():
    """The real OpenAI SDK, pointed at a proxy."""

    def client(url, *, api_key="client-key", **options):
        return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=api_key, max_retries=0, **options)

    return client
