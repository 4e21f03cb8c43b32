"""The base of every shared state, which may become unavailable and is used again once it has recovered.

    available --(a command fails)--> unavailable --(a probe succeeds)--> available

While it is unavailable, each process uses a state of its own, so no request is refused. No commands are sent, so no
request waits for a server that is known not to answer. A probe once a second finds out whether it has recovered.

The state also keeps the secret that seals what clients keep for the proxy. The first process makes it, and all use it.
Each probe puts it back if the state has lost it, as a Redis without persistence does when it restarts.
"""

from abc import ABC, abstractmethod
from secrets import token_hex
from typing import ClassVar, Final, TypeVar

from msgspec import Struct

from proxy.kit.readiness import Readiness
from proxy.kit.secrets import Secrets
from proxy.ports import Clock, Observer

SECONDS: Final = 1.0  # the timeout of a command; a request goes on without the shared state rather than wait longer
_PROBE_SECONDS: Final = 1.0


class StateUnavailable(Exception):
    """The shared state cannot be used. The message gives the cause, without secrets."""


class MadeSecret(Struct, frozen=True):
    """The secret that a shared state keeps, and when it was made, in seconds since 1970."""

    value: str
    made_at: float


class SharedState(ABC):
    """A shared state, which may be unavailable.

    Args:
        at: its address, fit for the log.
        clock: times the probes.
        observe: takes one event when the state becomes unavailable, and one when it has recovered.

    Attributes:
        name: the kind of the state.
        place: what people call it.
    """

    name: ClassVar[str]
    place: str

    def __init__(self, at: str, *, clock: Clock, observe: Observer) -> None:
        self.clock = clock
        self._at = at
        self.observe = observe
        self._why_not: str | None = None
        self._secret: MadeSecret | None = None
        self._sealed_without_secret = False
        self._sealing_since = 0.0

    @abstractmethod
    async def keep_secret(self, secret: MadeSecret) -> MadeSecret:
        """Write something, to find out whether that is possible, and keep a secret unless one is kept already.

        Returns the secret that is kept. Raises `StateUnavailable`.
        """

    @abstractmethod
    async def read_secret(self) -> MadeSecret | None:
        """The secret that is kept, also where nothing can be written. Raises `StateUnavailable`."""

    @abstractmethod
    async def aclose(self) -> None:
        """Close all connections to the shared state."""

    def require(self) -> None:
        """Raise `StateUnavailable` while the state is known to be unavailable."""
        if self._why_not is not None:
            raise StateUnavailable(self._why_not)

    def lost(self, why: str) -> StateUnavailable:
        """Note that the state is unavailable, and return the error to raise."""
        if self._why_not is None:
            self.observe("state.unavailable", at=self._at, why=why)
        self._why_not = why
        return StateUnavailable(why)

    async def probe(self) -> None:
        """Find out whether the state can be reached and written to, and learn the secret that it keeps."""
        try:
            if self._secret is None:  # before anything is written, because on a full disk it can still be read
                self._learn(await self.read_secret())
            self._learn(await self.keep_secret(self._secret or MadeSecret(token_hex(32), self.clock.time())))
        except StateUnavailable:
            self._sealed_without_secret = self._secret is None
            return
        if self._why_not is not None:
            self._why_not = None
            self.observe("state.recovered", at=self._at)

    def _learn(self, secret: MadeSecret | None) -> None:
        if self._secret is None and secret is not None:
            self._sealing_since = self.clock.time() if self._sealed_without_secret else secret.made_at
        self._secret = secret

    def secrets(self, given: tuple[str, ...]) -> Secrets:
        """The secrets of the configuration, and the one that is kept here, if it is known."""
        if self._secret is None:
            return Secrets(given, self.clock.time())
        return Secrets((*given, self._secret.value), self._sealing_since)

    async def watch(self) -> None:
        """Probe periodically, until cancelled."""
        while True:
            await self.clock.sleep(_PROBE_SECONDS)
            await self.probe()

    def readiness(self) -> Readiness:
        """The state of the store for `/readyz`."""
        return Readiness(self.name, usable=self._why_not is None, why_not=self._why_not)


Shared = TypeVar("Shared", bound=SharedState)
"""The shared state of a kind of store."""
