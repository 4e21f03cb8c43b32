"""`GET /healthz`: the process lives. `GET /readyz`: it can serve. Both without a key, and without secrets."""

from collections.abc import Sequence

from starlette.types import Receive, Scope, Send

from proxy.api.replies import send_json
from proxy.core.chat import Json
from proxy.ports import Ports, Readiness


class Healthz:
    """Always 200."""

    async def __call__(self, _: Scope, __: Receive, send: Send) -> None:
        """ASGI."""
        await send_json(send, {"status": "ok"})


class Readyz:
    """200 with a usable upstream, 503 without one. Shared state that is away is told, and done without."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports

    async def __call__(self, _: Scope, __: Receive, send: Send) -> None:
        """ASGI."""
        upstreams, tools = self._ports.upstream_states(), self._ports.tool_states()
        ready = any(state.usable for state in upstreams)
        (state,) = _listed([self._ports.state()])
        report: Json = {
            "status": "ready" if ready else "no usable upstream",
            "upstreams": _listed(upstreams),
            "tools": _listed(tools),
            "state": state,
        }
        await send_json(send, report, status=200 if ready else 503)


def _listed(states: Sequence[Readiness]) -> list[Json]:
    return [
        {"name": state.name, "usable": state.usable, **({} if state.usable else {"why_not": state.why_not})}
        for state in states
    ]
