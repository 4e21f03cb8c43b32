"""The credentials of a request's user, and the tools that they give to the request."""

from typing import Final

from msgspec import Struct
from starlette.types import Scope

from proxy.api.access import CALLER, Caller
from proxy.api.body import header
from proxy.api.ports import Ports
from proxy.api.sealed import SealingKeys
from proxy.ports import MayUse, Toolset
from proxy.recording.recording import CURRENT
from proxy.wire.chat import ToolSpec
from proxy.wire.code import CODE_INTERPRETER
from proxy.wire.credentials import NO_CREDENTIALS, Credentials

CREDENTIALS: Final = "toolproxy.credentials"
"""The key of a request's `Credentials` in its scope; `middleware.user_sessions` ends them."""


class RequestTools(Struct, frozen=True):
    """The tools of one request.

    Attributes:
        toolset: the tools of the configuration, and those that servers list for the user.
        credentials: the credentials of the user.
    """

    toolset: Toolset
    credentials: Credentials = NO_CREDENTIALS

    def has(self, name: str) -> bool:
        """Whether there is a tool of that name for whose calls the request has all headers."""
        spec = self.toolset.specs.get(name)
        return spec is not None and spec.needs <= self.credentials.names

    @property
    def code_interpreter(self) -> ToolSpec | None:
        """The tool that serves `code_interpreter`; None: there is none."""
        name = self.toolset.serving.get(CODE_INTERPRETER, "")
        return self.toolset.specs[name] if self.has(name) else None


class CredentialReader:
    """Reads the credentials of requests, as the tools of a configuration need them."""

    def __init__(self, ports: Ports) -> None:
        self._headers = {name: name.encode() for name in ports.user_headers}
        self._keys = SealingKeys(ports.secrets, ports.config, now=ports.clock.time)
        self._toolset, self._toolset_for = ports.toolset, ports.toolset_for

    def credentials_of(self, scope: Scope) -> Credentials:
        """The credentials of a request: the same object each time."""
        if (known := scope.get(CREDENTIALS)) is not None:
            return known  # type: ignore[no-any-return]
        values = {name: value for name, sent in self._headers.items() if (value := header(scope, sent))}
        if not values:
            return NO_CREDENTIALS
        caller: Caller = scope[CALLER]
        made = scope[CREDENTIALS] = Credentials(values, self._keys.for_caller(caller), scope=caller.scope)
        return made

    async def tools_of(self, credentials: Credentials, may_use: MayUse | None) -> RequestTools:
        """The tools of a request. A user's own servers are waited for, a few seconds at most, if their list is unknown.

        Args:
            credentials: the credentials of the request.
            may_use: whether it may use tools of a server. None: it may use no user's tools.
        """
        toolset = self._toolset
        if self._toolset_for is not None and credentials.names and may_use is not None:
            toolset = await self._toolset_for(credentials, may_use)
        if (recording := CURRENT.get()) is not None:
            recording.tools = toolset.specs
        return RequestTools(toolset, credentials)
