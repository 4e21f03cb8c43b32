"""The keys of a tool's service: its requests use them in turn, and another one where a key is refused."""

from collections.abc import Awaitable, Callable
from copy import copy
from typing import TYPE_CHECKING, TypeVar

from proxy.config.model import keys_of
from proxy.config.redaction import without_pieces
from proxy.keys.attempts import KeyAffinity, KeyAttempts, KeysSpent
from proxy.keys.cooldowns import KeyRefusal
from proxy.loop.results import ToolError, ToolUnavailable
from proxy.tools.state import refusal_in

if TYPE_CHECKING:
    from proxy.tools.tool_type import Resources

T = TypeVar("T")


class ToolKeys:
    """The keys of one tool.

    Attributes:
        pool: the pool; None: there is one key at most.
    """

    def __init__(
        self,
        name: str,
        api_key: str | tuple[str, ...] | None,
        base_url: str | None,
        resources: "Resources",
    ) -> None:
        self._keys = [*keys_of(api_key).values()] or [""]
        pools = resources.key_pools
        self.pool = None if pools is None else pools.pool_of(("tool", name), api_key, base_url or "")

    async def use(self, request: Callable[[str], Awaitable[T]]) -> T:
        """The result of a request with the first key that the service does not refuse.

        Args:
            request: makes the request with a key. What it raises quotes no part of a key in the end.

        Raises:
            ToolUnavailable: each key rests or was refused, for the reason of the last refusal; no failure of the
                service.
            Exception: anything else that `request` raises.
        """
        try:
            if self.pool is None:
                return await request(self._keys[0])
            attempts = KeyAttempts(self.pool, KeyAffinity())
            return await attempts.run(lambda key: request(key.key), self._refusal_in)
        except KeysSpent as spent:
            error = copy(spent.refusal)
            assert isinstance(error, ToolUnavailable)  # noqa: S101 - nothing else is a refusal
            error.wait, error.blame = max(1.0, spent.seconds), "nobody"
        except ToolError as exc:
            self._mask(exc)
            raise
        raise error

    def _mask(self, exc: ToolError) -> None:
        exc.why = exc.why and without_pieces(exc.why, self._keys)

    def _refusal_in(self, exc: Exception) -> KeyRefusal | None:
        """The refusal of the key in a failure, which is masked; None: the failure has another cause."""
        if isinstance(exc, ToolError):
            self._mask(exc)
        return refusal_in(exc)
