"""`surface` is each API, whole and streamed; `chat`, `responses` and `messages` are one of them, whole and streamed."""

import pytest

from tests.api.surfaces import Surface


def _surfaces(*kinds):
    def surface(request, upstream):
        kind, mode = request.param
        return Surface(kind, mode == "streamed", upstream)

    params = [(kind, mode) for kind in kinds for mode in ("whole", "streamed")]
    return pytest.fixture(params=params, ids="-".join)(surface)


surface = _surfaces("chat", "responses", "messages")
chat = _surfaces("chat")
responses = _surfaces("responses")
messages = _surfaces("messages")
