"""`state: redis://`: state that workers and replicas share through a Redis server, which may be unavailable.

Every key begins with `toolproxy:` and expires, but for the secret.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import cache
from hashlib import sha256
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
from redis import asyncio as redis
from redis import exceptions
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from proxy.ports import Clock, Observer
from proxy.stores.shared.state import SECONDS, MadeSecret, SharedState

NAMESPACE: Final = "toolproxy"

_PROBE_KEY = f"{NAMESPACE}:probe"
_SECRET_KEY = f"{NAMESPACE}:secret"
_MAX_CONNECTIONS = 32  # of one process; further commands wait, each command takes well under a millisecond
_DEFAULT_PORT = 6379


class SharedRedis(SharedState):
    """The connections of this process to Redis, and whether it can be reached.

    Args:
        url: `redis://` or `rediss://`, with user and password if the server requires them.
        clock: times the probes.
        observe: takes one event when Redis becomes unavailable, and one when it has recovered.
    """

    name = "redis"
    place = "Redis"

    def __init__(self, url: str, *, clock: Clock, observe: Observer) -> None:
        super().__init__(_address(url), clock=clock, observe=observe)
        self.pool: redis.ConnectionPool = redis.BlockingConnectionPool.from_url(
            url,
            max_connections=_MAX_CONNECTIONS,
            timeout=SECONDS,
            # `_translated` has the timeout. The client's is an asyncio.wait_for, which before Python 3.12 swallows a
            # cancellation in the moment of success: a request would go on after its client has left.
            socket_timeout=None,
            socket_connect_timeout=None,
            # One retry, on a new connection, because a restart of Redis breaks all old connections.
            retry=Retry(NoBackoff(), 1, supported_errors=(exceptions.ConnectionError,)),
        )
        self.client: redis.Redis = redis.Redis(connection_pool=self.pool)
        self._script = cache(self.client.register_script)

    @asynccontextmanager
    async def reached(self) -> AsyncIterator[redis.Redis]:
        """The client, for the few commands within the `with` statement.

        Raises:
            StateUnavailable: Redis cannot be reached, or refuses the command.
        """
        self.require()
        async with self._translated():
            yield self.client

    async def run(self, script: str, keys: Sequence[str], args: Sequence[str | bytes | int]) -> Any:
        """What a script in Lua returns. Raises `StateUnavailable`, as `reached` does."""
        async with self.reached():
            return await self._script(script)(keys=keys, args=args)

    async def keep_secret(self, secret: MadeSecret) -> MadeSecret:
        """Write a key that expires, and the secret, which does not."""
        async with self._translated():
            commands = self.client.pipeline(transaction=False)
            commands.set(_PROBE_KEY, b"", ex=60)
            commands.set(_SECRET_KEY, msgspec.json.encode(secret), nx=True)
            commands.get(_SECRET_KEY)
            *_, kept = await commands.execute()
        return _secret_in(kept) or secret

    async def read_secret(self) -> MadeSecret | None:
        """The secret that is kept, also in a replica, or where the memory is full."""
        async with self._translated():
            return _secret_in(await self.client.get(_SECRET_KEY))

    async def aclose(self) -> None:
        """Close all connections to Redis."""
        await self.client.aclose()
        await self.pool.aclose()

    @asynccontextmanager
    async def _translated(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(SECONDS):
                yield
        except (exceptions.RedisError, OSError) as exc:
            raise self.lost(_in_plain_words(exc)) from exc


def key(*parts: str) -> str:
    """The name of a key, with the prefix of the proxy."""
    return ":".join((NAMESPACE, *parts))


def _secret_in(kept: Any) -> MadeSecret | None:
    """The secret in the value of its key; None if there is none. A value that somebody else has written is one too."""
    if kept is None:
        return None
    try:
        return msgspec.json.decode(kept, type=MadeSecret)
    except msgspec.MsgspecError:
        return MadeSecret(sha256(kept).hexdigest(), made_at=0.0)


def _address(url: str) -> str:
    """The host, port and database of the URL, which may be logged."""
    parts = urlsplit(url)
    return f"{parts.hostname}:{parts.port or _DEFAULT_PORT}/{parts.path.strip('/') or 0}"


# A part of an error of redis-py (Redis's own message, or the name of the exception's class) -> the reason.
_REASONS: Final = {
    "Authentication required": "it wants a password, and state.url has none (NOAUTH)",
    "HELLO must be called": "it wants a password, and state.url has none (NOAUTH)",
    "invalid username-password pair": "it refuses the user or the password (WRONGPASS)",
    "called without any password configured": "it has no password, and state.url gives one",
    "NoPermissionError": "its user may not run the commands that are needed (NOPERM)",
    "DENIED": "it is in protected mode and takes no connection from other machines: give it a password (DENIED)",
    "ReadOnlyError": "it is a replica, which cannot be written to (READONLY)",
    "OutOfMemoryError": "its memory is full (OOM)",
    "MISCONF": "it takes no writes because it cannot save them to its disk (MISCONF)",
    "BusyLoadingError": "it is still loading its data (LOADING)",
    "MovedError": "it is a node of a cluster, and a single server is needed (MOVED)",
    "DB index is out of range": "it has no database of that number",
    "max number of clients": "it has as many clients as it takes",
    "unknown command": "it does not know a command that is needed: is it a Sentinel, or older than Redis 7?",
    "Connection closed by server": "it closed the connection: is it Redis, and should the URL begin with rediss://?",
    "WRONG_VERSION_NUMBER": "it does not speak TLS at that port: should the URL begin with redis://?",
    "InvalidResponse": "what answers there is not Redis",
}


def _in_plain_words(exc: Exception) -> str:
    """The reason of a failure. Redis's own message may quote a command, and the system's an address."""
    said = f"{type(exc).__name__} {exc}"
    for part, why in _REASONS.items():
        if part in said:
            return why
    match exc:
        case exceptions.AuthenticationError() | exceptions.AuthorizationError():
            return "it refuses the user or the password"
        case exceptions.TimeoutError() | TimeoutError():
            return f"it gave no answer within {SECONDS:g} s"
        case exceptions.ResponseError():
            return f"it refuses commands ({type(exc).__name__})"
        case _:
            words = getattr(exc.__cause__ or exc.__context__, "strerror", None)
            return f"it cannot be reached: {words}" if words else "it cannot be reached"
