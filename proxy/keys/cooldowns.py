"""When one key of a provider rests, and for how long: a table without I/O and without a clock of its own.

                   refused on account of the key
      USABLE ----------------------------------------> RESTING --- its time is over ---> USABLE
        ^                                                                                  |
        +--- answered: the doubling begins anew ------------------------------------------+

A refusal and an answer count by when their call began: of the calls that were under way when a rest began, none doubles
it or ends it. A plan without some model makes the key rest for that model alone.
"""

from typing import Final, Literal, TypeAlias

from msgspec import Struct, field

from proxy.kit.breaker import doubled
from proxy.kit.readiness import KeyState

KeyCause: TypeAlias = Literal["refused", "credit", "window", "rate", "model"]
"""Why a key rests: the provider refuses it or its account (`refused`), it has no credit left, its quota of some hours
or days is used up (`window`), it has sent too much just now (`rate`), or its plan lacks the model."""

_MINUTE, _HOUR, _DAY = 60.0, 3600.0, 86400.0
# The first rest of each kind where the provider names no time, and the longest one; each is twice the one before.
_RESTS: Final[dict[KeyCause, tuple[float, float]]] = {
    "refused": (_MINUTE, _HOUR),
    "credit": (10 * _MINUTE, _HOUR),
    "window": (10 * _MINUTE, _HOUR),
    "rate": (2.0, _MINUTE),
    "model": (_HOUR, _HOUR),
}
# A rate is a matter of minutes, whatever a provider says: some name the end of a quota of hours (claude-relay-service
# issue 1189). A quota's end is believed from a minute, for clocks that differ, to the longest month.
LONGEST_RATE: Final = 10 * _MINUTE
_SHORTEST_WINDOW, _LONGEST_WINDOW = _MINUTE, 31 * _DAY
# With a pattern in `models:`, strangers choose the names of models.
_MOST_MODELS = 100


class KeyRefusal(Struct, frozen=True):
    """A provider's refusal of a call on account of its key.

    Attributes:
        cause: the reason.
        seconds: the seconds until the key may be used again; None: the provider does not say.
        why: what the provider says, for the log.
        is_certain: whether the refusal is certainly about the key; if not, another key is tried, and this one not put
            to rest.
    """

    cause: KeyCause
    seconds: float | None = None
    why: str = ""
    is_certain: bool = True


class Cooldown(Struct):
    """A rest from `began` to `until`, in seconds on a clock that never goes back.

    Attributes:
        cause: the reason.
        error: the refusal, which answers requests while no key can be used.
    """

    cause: KeyCause
    began: float
    until: float
    error: Exception


class KeyCooldowns(Struct, weakref=True):
    """The rests of one key. Times are seconds on a clock that never goes back."""

    _latest: Cooldown | None = None
    _of_models: dict[str, Cooldown] = field(default_factory=dict)
    _doublings: dict[KeyCause, int] = field(default_factory=dict)

    def at(self, now: float, model: str = "") -> Cooldown | None:
        """The rest that keeps the key from being used for a model now; of two, the longer one."""
        resting = self._latest if self._latest is not None and now < self._latest.until else None
        if self._of_models and (of_model := self._of_models.get(model)) is not None and now < of_model.until:
            return of_model if resting is None or of_model.until > resting.until else resting
        return resting

    @property
    def is_over(self) -> bool:
        """Whether nothing is known of any rest, not even of one in the past."""
        return self._latest is None and not self._of_models

    def state(self, now: float) -> KeyState:
        """Whether the key can be used now, or why not."""
        rest = self._latest
        return "usable" if rest is None or rest.cause == "model" or now >= rest.until else rest.cause

    def refused(self, refusal: KeyRefusal, error: Exception, *, began: float, now: float, model: str = "") -> bool:
        """Put the key to rest; whether that is news: not if a call was refused that had begun before the rest did."""
        cause = refusal.cause
        before = self._of_models.get(model) if cause == "model" else self._latest
        late = before if before is not None and began <= before.began else None  # it began while the call was under way
        is_counted = late is not None and late.cause == cause
        doublings = self._doublings.get(cause, 0) - is_counted
        until = now + cooldown_seconds(refusal, doublings)
        if late is not None and ((is_counted and refusal.seconds is None) or until <= late.until):
            return False
        rest = Cooldown(cause, now, until, error)
        if cause == "model":
            self._of_models.pop(model, None)
            if len(self._of_models) >= _MOST_MODELS:
                del self._of_models[next(iter(self._of_models))]
            self._of_models[model] = rest
        else:
            self._latest = rest
            self._doublings[cause] = doublings + 1
        return True

    def answered(self, *, began: float, model: str = "") -> bool:
        """Count an answer to a call that began at `began`; whether that ended the doubling of a rest."""
        if (of_model := self._of_models.get(model)) is not None and began > of_model.began:
            del self._of_models[model]
        if self._latest is None or began <= self._latest.began:
            return False
        self._latest = None
        self._doublings.clear()
        return True


def cooldown_seconds(refusal: KeyRefusal, doublings: int = 0) -> float:
    """The length of a rest: as the provider says, within bounds; otherwise it is doubled that many times."""
    cause, said = refusal.cause, refusal.seconds
    if said is not None and cause == "window":
        return min(max(said, _SHORTEST_WINDOW), _LONGEST_WINDOW)
    if said is not None and cause == "rate":
        return min(said, LONGEST_RATE)
    first, longest = _RESTS[cause]
    return doubled(first, doublings, longest=longest)
