"""Whether the things that the proxy depends on can be used."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

KeyState: TypeAlias = Literal["usable", "refused", "credit", "window", "rate"]
"""Whether a key can be used, for any model that its plan has; otherwise why not."""


@dataclass(frozen=True, slots=True)
class Readiness:
    """The state of one upstream, one tool or the shared state, for `/readyz`.

    `breaker` is the state of its breaker, unless that is closed. `cause` is why a tool's breaker is open. `keys`:
    the state of each of several keys; None: it has one at most.
    """

    name: str
    usable: bool
    why_not: str | None = None
    breaker: str | None = None
    cause: str | None = None
    keys: Sequence[KeyState] | None = None

    @property
    def usable_keys(self) -> int:
        """The keys that can be used, if only after the rest of some seconds that a rate takes."""
        return sum(state in ("usable", "rate") for state in self.keys or ())
