"""405 for a path that exists."""

from starlette.types import Receive, Scope, Send

from proxy.loop.errors import MethodNotAllowed


class WrongMethod:
    """Stands behind a path for every method but the right one."""

    def __init__(self, allowed: str) -> None:
        self._allowed = allowed

    async def __call__(self, scope: Scope, _: Receive, __: Send) -> None:
        """ASGI."""
        message = f"{scope['path']} takes {self._allowed}, not {scope['method']}."
        raise MethodNotAllowed(message, headers={"allow": self._allowed})
