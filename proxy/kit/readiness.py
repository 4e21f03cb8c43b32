"""The state of one thing that the proxy depends on."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Readiness:
    """The state of one upstream, one tool or the shared state, for `/readyz`.

    `breaker` is the state of its breaker, unless that is closed. `cause` is why a tool's breaker is open.
    """

    name: str
    usable: bool
    why_not: str | None = None
    breaker: str | None = None
    cause: str | None = None
