"""The small endpoints: models, health, metrics, and the errors 404 and 405 for requests that are not served."""

import asyncio
from datetime import UTC, datetime
from functools import partial
from typing import cast

from starlette.types import Receive, Scope, Send

from proxy.api.access import CALLER, Caller
from proxy.api.body import header, read_body
from proxy.api.exchange import send_bytes, send_json
from proxy.api.ports import Ports
from proxy.api.websocket import refuse_websocket
from proxy.kit.breaker import BreakerState
from proxy.kit.readiness import Readiness
from proxy.ports import Scrape
from proxy.wire.chat import Json
from proxy.wire.errors import MethodNotAllowed, NotFound

_PROMETHEUS_TEXT = b"text/plain; version=0.0.4; charset=utf-8"


class Models:
    """`GET /v1/models` and `/v1/models/{id}`: the models that the client may use.

    The list has the names that the configuration spells out; a single model may also be one that matches a pattern. A
    request with the header `anthropic-version` is answered in the shape of Anthropic's API, any other in OpenAI's.
    """

    def __init__(self, ports: Ports) -> None:
        self._router = ports.router
        self._created = int(ports.clock.time())  # the configuration's models are as old as the process

    async def __call__(self, scope: Scope, _: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        caller: Caller = scope[CALLER]
        wanted = scope["path_params"].get("id")
        is_anthropic = header(scope, b"anthropic-version") is not None
        as_json = self._as_anthropic if is_anthropic else self._as_openai
        if wanted is not None:
            if self._router.upstream_of(wanted) is None or not caller.may_use(wanted):
                raise self._router.unknown(wanted, caller.may_use)
            await send_json(send, as_json(wanted))
            return
        names = [name for name in self._router.names() if caller.may_use(name)]
        page: Json = {"data": [as_json(name) for name in names]}
        ends = {"first_id": names[0] if names else None, "last_id": names[-1] if names else None}
        await send_json(send, {**page, "has_more": False, **ends} if is_anthropic else {"object": "list", **page})

    def _as_openai(self, name: str) -> Json:
        return {"id": name, "object": "model", "created": self._created, "owned_by": self._router.upstream_of(name)}

    def _as_anthropic(self, name: str) -> Json:
        created = datetime.fromtimestamp(self._created, UTC).isoformat()
        return {"type": "model", "id": name, "display_name": name, "created_at": created}


class Healthz:
    """`GET /healthz` and `/health`: 200 as long as the process lives. Needs no key."""

    def __init__(self, _: Ports) -> None:
        pass

    async def __call__(self, _: Scope, __: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        await send_json(send, {"status": "ok"})


class Readyz:
    """`GET /readyz`: 200 if an upstream is usable; 503 if none is, and while the process drains.

    It needs no key and shows no secrets. An upstream whose breaker is open counts as usable, because other replicas
    would have the same trouble with it; one whose keys are all refused, or without credit or quota, does not. A shared
    state that cannot be reached is reported but does not change the status, because the process works without it.
    """

    def __init__(self, ports: Ports) -> None:
        self._ports = ports

    async def __call__(self, _: Scope, __: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        upstreams = self._ports.upstream_states()
        status = "ready" if any(upstream.usable for upstream in upstreams) else "no usable upstream"
        if self._ports.is_draining():
            status = "draining"
        report: Json = {
            "status": status,
            "upstreams": [state_as_json(upstream) for upstream in upstreams],
            "tools": [state_as_json(tool) for tool in self._ports.tool_states()],
            "state": state_as_json(self._ports.state()),
        }
        await send_json(send, report, status=200 if status == "ready" else 503)


def state_as_json(readiness: Readiness) -> Json:
    """The state of an upstream, a tool or the shared state, without the fields that do not apply."""
    report: Json = {"name": readiness.name, "usable": readiness.usable}
    if not readiness.usable:
        report["why_not"] = readiness.why_not
    if readiness.breaker not in (None, BreakerState.CLOSED):
        report["breaker"] = readiness.breaker
    if readiness.cause is not None:
        report["cause"] = readiness.cause
    if readiness.keys is not None:
        report["keys"] = {"usable": readiness.usable_keys, "of": len(readiness.keys)}
    return report


class MetricsEndpoint:
    """`GET /metrics`: the metrics in Prometheus' text format. Needs no key."""

    def __init__(self, ports: Ports) -> None:
        self._scrape = cast("Scrape", ports.scrape)  # `app.routes` leaves the path out without it
        self._ports = ports

    async def __call__(self, _: Scope, __: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        tasks = partial(asyncio.all_tasks, asyncio.get_running_loop())
        states = {"upstream": self._ports.upstream_states(), "tool": self._ports.tool_states()}
        keys = {(kind, one.name): one.keys for kind, found in states.items() for one in found if one.keys is not None}
        # In a thread, because it takes milliseconds if there are many tasks or series.
        text = await asyncio.to_thread(self._scrape, tasks, keys)
        await send_bytes(send, 200, ((b"content-type", _PROMETHEUS_TEXT),), text)


class NotServed:
    """404 for the parts of OpenAI's and Anthropic's APIs that are neither served here nor passed to an upstream."""

    def __init__(self, ports: Ports) -> None:
        self._server, self._clock = ports.config.server, ports.clock

    async def __call__(self, scope: Scope, receive: Receive, _: Send) -> None:
        """Handle one ASGI connection."""
        # If the body were not read to its end, the connection would be closed and the client's next request lost.
        await read_body(scope, receive, self._server, self._clock)
        raise NotFound(f"There is no {scope['path']} here.")


class WrongMethod:
    """405 for a path that has only the `allowed` methods; 426 for the offer of a WebSocket for responses."""

    def __init__(self, allowed: str) -> None:
        self._allowed = allowed

    async def __call__(self, scope: Scope, _: Receive, __: Send) -> None:
        """Handle one ASGI connection."""
        refuse_websocket(scope)
        message = f"{scope['path']} takes {self._allowed}, not {scope['method']}."
        raise MethodNotAllowed(message, headers={"allow": self._allowed})
