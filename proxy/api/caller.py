"""Who is calling, and how far they may go."""

from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from starlette.types import Scope

from proxy.config import LimitsConfig


@dataclass(frozen=True, slots=True)
class Caller:
    """An authenticated client, or anyone where no clients are configured.

    Attributes:
        name: for logs; None: anonymous.
        models: glob patterns of the models that it may use.
        tools: the server tools that it may use; None: all.
        limits: what its own `limits:` change.
        upstream_key: the key that it sent, for upstreams with `api_key: from_client`.
    """

    name: str | None = None
    models: tuple[str, ...] = ("*",)
    tools: frozenset[str] | None = None
    limits: LimitsConfig | None = None
    upstream_key: str | None = field(default=None, repr=False)

    def may_use(self, model: str) -> bool:
        """Whether one of its patterns fits."""
        return any(fnmatchcase(model, pattern) for pattern in self.models)


def caller_of(scope: Scope) -> Caller:
    """The caller that the auth middleware has found."""
    caller: Caller = scope["toolproxy.caller"]
    return caller


def set_caller(scope: Scope, caller: Caller) -> None:
    """For the auth middleware."""
    scope["toolproxy.caller"] = caller
