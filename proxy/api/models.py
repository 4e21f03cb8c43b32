"""`GET /v1/models` and `/v1/models/{id}`: the models that this client may use."""

from starlette.types import Receive, Scope, Send

from proxy.api.caller import caller_of
from proxy.api.replies import send_json
from proxy.loop.chat import Json
from proxy.loop.errors import ModelNotFound
from proxy.ports import Ports


class Models:
    """Both endpoints, as an ASGI callable."""

    def __init__(self, ports: Ports) -> None:
        self._router = ports.router
        self._owners = {name: model.upstream for name, model in ports.config.models.items()}
        self._created = int(ports.clock.time())  # the configuration's models are as old as the process

    async def __call__(self, scope: Scope, _: Receive, send: Send) -> None:
        """ASGI."""
        caller = caller_of(scope)
        usable = [self._describe(name) for name in self._router.names() if caller.may_use(name)]
        wanted = scope["path_params"].get("id")
        if wanted is None:
            await send_json(send, {"object": "list", "data": usable})
            return
        found = next((model for model in usable if model["id"] == wanted), None)
        if found is None:
            raise ModelNotFound(wanted)
        await send_json(send, found)

    def _describe(self, name: str) -> Json:
        return {"id": name, "object": "model", "created": self._created, "owned_by": self._owners[name]}
