"""The parts that the API gets from the composition root."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from proxy.api.known import KnownMessages
from proxy.config.model import Config
from proxy.kit.readiness import Readiness
from proxy.kit.secrets import Secrets
from proxy.ports import (
    Budgets,
    ClientStore,
    Clock,
    MakeDialect,
    MayUse,
    Observer,
    RecentRequests,
    Router,
    Scrape,
    Toolset,
)
from proxy.recording.recording import Recording
from proxy.wire.credentials import Credentials


class Cases(Protocol):
    """The recordings of the last requests, each available as a case."""

    def reserve(self, size: int) -> bool:
        """Reserve so many bytes for a recording; False: there is no more memory for recordings."""
        ...

    def keep(self, recording: Recording) -> None:
        """Keep a recording that is complete."""
        ...

    async def find(self, request_id: str) -> bytes | None:
        """The case of the newest request with that id, as JSON; None if it is not kept."""
        ...


@dataclass(frozen=True, slots=True)
class Ports:
    """Everything that the API gets from the composition root."""

    config: Config
    needs_key: bool
    for_agent: bool  # see `Loaded`
    router: Router
    toolset: Toolset
    dialect: MakeDialect
    store: ClientStore
    budgets: Budgets
    secrets: Callable[[], Secrets]
    observe: Observer
    clock: Clock
    upstream_states: Callable[[], Sequence[Readiness]]
    tool_states: Callable[[], Sequence[Readiness]]
    state: Callable[[], Readiness]
    is_draining: Callable[[], bool]
    user_headers: frozenset[str] = frozenset()  # the headers of requests that hold credentials for tools
    # The tools of a request with credentials: `toolset`, and what servers list for them, as far as the request may use
    # tools of theirs; None: no server does.
    toolset_for: Callable[[Credentials, MayUse], Awaitable[Toolset]] | None = None
    known: KnownMessages = field(default_factory=KnownMessages)
    scrape: Scrape | None = None
    recent_requests: RecentRequests | None = None
    cases: Cases | None = None
