"""`GET /healthz`: the process lives. `GET /readyz`: it can serve. Both without a key, and without secrets."""

from collections.abc import Sequence

from starlette.types import Receive, Scope, Send

from proxy.api.replies import send_json
from proxy.breaker import State
from proxy.loop.chat import Json
from proxy.ports import Ports, Readiness


class Healthz:
    """Always 200."""

    async def __call__(self, _: Scope, __: Receive, send: Send) -> None:
        """ASGI."""
        await send_json(send, {"status": "ok"})


class Readyz:
    """200 with a usable upstream, 503 without one and while the process is about to stop.

    An upstream that is left alone for a while counts as usable: the next replica would find it no better. Shared state
    that is away is told, and done without.
    """

    def __init__(self, ports: Ports) -> None:
        self._ports = ports

    async def __call__(self, _: Scope, __: Receive, send: Send) -> None:
        """ASGI."""
        upstreams, (state,) = self._ports.upstream_states(), _listed([self._ports.state()])
        status = "ready" if any(upstream.usable for upstream in upstreams) else "no usable upstream"
        if self._ports.lifecycle.draining:
            status = "draining"
        report: Json = {
            "status": status,
            "upstreams": _listed(upstreams),
            "tools": _listed(self._ports.tool_states()),
            "state": state,
        }
        await send_json(send, report, status=200 if status == "ready" else 503)


def _listed(states: Sequence[Readiness]) -> list[Json]:
    return [_told(state) for state in states]


def _told(state: Readiness) -> Json:
    told: Json = {"name": state.name, "usable": state.usable}
    if not state.usable:
        told["why_not"] = state.why_not
    if state.breaker not in (None, State.CLOSED):
        told["breaker"] = state.breaker
    return told
