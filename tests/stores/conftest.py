from contextlib import asynccontextmanager

import pytest

from proxy.app import SystemClock
from proxy.stores.redis.connection import SharedRedis
from proxy.stores.sqlite.database import SharedSqlite


class Heard(list):
    """An observer that remembers the names of the events, and everything that was said with them."""

    def __call__(self, event, /, **fields):
        self.append(event)
        self.said = f"{getattr(self, 'said', '')} {fields}"


@pytest.fixture
def heard():
    return Heard()


@pytest.fixture
def database(tmp_path, heard):
    """The database as one process has it open; each call is another one."""

    @asynccontextmanager
    async def opened(*, path=None, clock=None):
        shared = SharedSqlite(path or tmp_path / "state.db", clock=clock or SystemClock(), observe=heard)
        try:
            yield shared
        finally:
            await shared.aclose()

    return opened


@pytest.fixture
def process(redis_server, heard):
    """The connections of one process; each call is another one."""

    @asynccontextmanager
    async def connections(*, url=None, clock=None):
        shared = SharedRedis(url or redis_server.url, clock=clock or SystemClock(), observe=heard)
        try:
            yield shared
        finally:
            await shared.aclose()

    return connections


@pytest.fixture(params=["sqlite", "redis"])
def opened(request):
    """A function that opens the shared state as another process does."""
    return request.getfixturevalue("database" if request.param == "sqlite" else "process")
