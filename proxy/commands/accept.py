"""`toolproxy check --accept SERVER`: pins what a server says its tools are now, where changes of it are withheld."""

from collections.abc import Callable
from typing import Final

import httpx

from proxy.config.loaded import Loaded
from proxy.kit.no_observer import NoObserver
from proxy.kit.terminal import printable
from proxy.ports import Clock
from proxy.stores import open_state
from proxy.tools.kind import Resources
from proxy.tools.kinds import kind_of
from proxy.tools.result_cache import local_caches
from proxy.wire.errors import ConfigurationError

_IN_MEMORY: Final = (
    "state.url: memory:// keeps what is pinned in the process that serves, where nothing can be accepted: start that "
    "again, or set state.url to sqlite:///PATH or redis://HOST"
)


async def accept(
    loaded: Loaded, server: str, *, tool_client: Callable[[], httpx.AsyncClient], clock: Clock
) -> list[str]:
    """Pin the definitions of a server, and return what has been accepted, in lines.

    Raises:
        ConfigurationError: nothing can be accepted; the message says why.
    """
    path = f"tools.{server}"
    entry = loaded.config.tools.get(server)
    if entry is None:
        known = loaded.disabled.get(path)
        raise ConfigurationError([loaded.place_of(f"{path}: {known.why}") if known else f"there is no entry {path}"])
    take_over = kind_of(entry).accept
    if take_over is None:
        raise ConfigurationError([loaded.place_of(f"{path}: has nothing to accept: it is no MCP server")])
    if not loaded.config.state.is_shared:
        raise ConfigurationError([_IN_MEMORY])
    state = open_state(loaded.config.state, clock=clock, observe=NoObserver(), caches=local_caches(clock), memory=0)
    async with state.running(), tool_client() as client:
        resources = Resources(client, clock, secrets=loaded.secrets.get("", frozenset()), pins=state.pins)
        found = await take_over(server, entry, resources)
        why_not = state.readiness().why_not
    if why_not is not None:
        raise ConfigurationError([f"state.url: {why_not}"])
    if found.is_fault:
        raise ConfigurationError([loaded.place_of(f"{path}: {found.message}")])
    said, *changes = found.message.splitlines()
    return [f"{server}: {said}", *(f"  {printable(change)}" for change in changes)]
