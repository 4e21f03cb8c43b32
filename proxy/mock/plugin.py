"""The pytest fixture `toolproxy_mock`: the scripted upstream on a free port of loopback, for the tests of an app.

    def test_my_app_answers(toolproxy_mock):
        toolproxy_mock.script({"text": "It rains."})
        assert ask(base_url=toolproxy_mock.url) == "It rains."
        assert toolproxy_mock.requests[0]["messages"][-1]["content"] == "What is the weather?"

pytest loads this module with every start where the package is installed, so it imports nothing until a test asks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from proxy.mock.running import RunningMock


@pytest.fixture(scope="session")
def _toolproxy_mock_server() -> Iterator[RunningMock]:
    """The one server of a test session."""
    from proxy.mock.running import RunningMock  # noqa: PLC0415 - see above

    with RunningMock() as running:
        yield running


@pytest.fixture
def toolproxy_mock(_toolproxy_mock_server: RunningMock) -> Iterator[RunningMock]:
    """A running scripted upstream that has neither a script of an earlier test nor its requests."""
    _toolproxy_mock_server.reset()
    yield _toolproxy_mock_server
    _toolproxy_mock_server.reset()
