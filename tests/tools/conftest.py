from contextlib import aclosing

import httpx
import pytest

from proxy.app import tool_client


@pytest.fixture
async def client():
    async with aclosing(tool_client(httpx.AsyncHTTPTransport())) as client:  # which `respx` can mock
        yield client
