"""Who is calling, and how far they may go."""

from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from hashlib import sha256

from starlette.types import Scope

from proxy.loop.limits import LimitOverrides


@dataclass(frozen=True, slots=True)
class Caller:
    """An authenticated client, or anyone where no clients are configured.

    Attributes:
        name: for logs; None: anonymous.
        models: glob patterns of the models that it may use.
        tools: the server tools that it may use; None: all.
        limits: what its own `limits:` change.
        admin: whether it may read /debug.
        upstream_key: the key that it sent, for upstreams with `api_key: from_client`.
    """

    name: str | None = None
    models: tuple[str, ...] = ("*",)
    tools: frozenset[str] | None = None
    limits: LimitOverrides | None = None
    admin: bool = False
    upstream_key: str | None = field(default=None, repr=False)

    @property
    def scope(self) -> str:
        """What this caller may see of what is kept between requests: its own, and nobody else's."""
        if self.name is not None:
            return f"client:{self.name}"
        return f"key:{sha256(self.upstream_key.encode()).hexdigest()}" if self.upstream_key else "anyone"

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
