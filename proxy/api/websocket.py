"""Responses over WebSockets are not served. Codex asks for one first, and goes on over HTTP if the answer is 426.

At any other status it tries five times more, or gives up. So the answer depends on nothing else, not even on the key.
"""

from starlette.types import Scope

from proxy.api.body import header
from proxy.wire.errors import UpgradeRequired

PATHS = ("/v1/responses", "/responses")


def refuse_websocket(scope: Scope) -> None:
    """Raise `UpgradeRequired` if a request asks for responses over a WebSocket."""
    if scope["method"] != "GET" or scope["path"] not in PATHS:
        return
    offered = (header(scope, b"upgrade") or "").lower().split(",")
    if "websocket" in map(str.strip, offered):
        raise UpgradeRequired("Responses are not served over WebSockets; use POST.", headers={"connection": "close"})
