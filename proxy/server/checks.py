"""Checks of a configuration before it is served, in addition to the checks of the file itself."""

import errno
import socket
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from proxy.app import create_app
from proxy.config.keys import SHORTEST_CLIENT_KEY
from proxy.config.loaded import Loaded
from proxy.config.model import Config, TelemetryConfig
from proxy.server.listener import listen
from proxy.telemetry import workers
from proxy.wire.errors import ConfigurationError


def check_startable(loaded: Loaded) -> None:
    """Refuse a configuration that cannot be served. `serve` and `check` both use this, so that they agree.

    Raises:
        ConfigurationError: no upstream is usable, the address is not safe to listen on, or a tool cannot be made.
    """
    if faults := [*_upstream_faults(loaded), *_exposure_faults(loaded), *_address_faults(loaded.config)]:
        raise ConfigurationError(faults)
    workers.check_directory(loaded.config)
    create_app(_without_telemetry(loaded))


def check_usable(loaded: Loaded, before: Loaded) -> None:
    """Refuse a reloaded configuration that cannot be served, or that would open the proxy to everyone.

    Raises:
        ConfigurationError: as for `check_startable`, or none of the clients in `before` is left.
    """
    if faults := [*_upstream_faults(loaded), *_exposure_faults(loaded), *_opening_faults(loaded, before)]:
        raise ConfigurationError(faults)
    create_app(_without_telemetry(loaded))


# Where the keys of the shipped configuration come from.
_SOURCES = {"ZAI_API_KEY": "z.ai/manage-apikey/apikey-list", "GMI_API_KEY": "console.gmicloud.ai"}


def _upstream_faults(loaded: Loaded) -> Iterator[str]:
    if not loaded.config.upstreams:
        disabled = loaded.disabled_in("upstreams").values()
        names = dict.fromkeys(name for entry in disabled for name in entry.variables)
        wanted, sources = " or ".join(names), [_SOURCES[name] for name in names if name in _SOURCES]
        where = "in the environment or in a .env file next to the configuration (`toolproxy demo` needs no key)"
        where += f"; keys come from {' and '.join(sources)}" if sources else ""
        reasons = [*_invalid_keys("upstreams.", loaded), *([f"set {wanted}, {where}"] if wanted else [])]
        yield f"there is no usable upstream: {'; '.join(reasons) or 'configure one'}"


def _invalid_keys(section: str, loaded: Loaded) -> list[str]:
    """The disabled entries of a section with a value that is not a key."""
    return [
        f"{where}: {entry.why}"
        for where, entry in loaded.disabled.items()
        if where.startswith(section) and not entry.variables
    ]


def _exposure_faults(loaded: Loaded) -> Iterator[str]:
    """Faults of an address other than loopback: no key is required, or a key can be guessed."""
    host = loaded.config.server.host
    if loaded.config.server.allow_anonymous or is_loopback(host):
        return
    if not loaded.needs_key:
        how = "set TOOLPROXY_KEY (or configure clients), or TOOLPROXY_ALLOW_ANONYMOUS=true to let anyone in"
        yield f"refusing to serve just anyone on {host}: {'; '.join([*_invalid_keys('clients[', loaded), how])}"
    for path, client in loaded.clients():
        if any(len(key) < SHORTEST_CLIENT_KEY for key in client.keys):
            why = (
                f"refusing to serve on {host}: the key of client {client.name!r} can be guessed, "
                f"it has fewer than {SHORTEST_CLIENT_KEY} characters"
            )
            yield loaded.place_of(f"{path}.key: {why}")


def _opening_faults(loaded: Loaded, before: Loaded) -> Iterator[str]:
    """Faults of keys that were not found: without clients anyone may call, which must not happen unnoticed."""
    if before.needs_key and not loaded.needs_key and not loaded.config.server.allow_anonymous:
        yield "no client is usable any more, so anyone could call; to permit that, set server.allow_anonymous: true"


def _address_faults(config: Config) -> Iterator[str]:
    """Faults of an address that is not this machine's. An address in use is no fault: a running proxy may use it."""
    try:
        listen(config.server.host, config.server.port).close()
    except ConfigurationError as exc:
        if not isinstance(exc.__cause__, OSError) or exc.__cause__.errno != errno.EADDRINUSE:
            yield from exc.faults


def is_loopback(host: str) -> bool:
    """Whether every address of `host` is this machine's own."""
    try:
        found: Sequence[tuple[object, ...]] = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    addresses = [str(entry[4][0]) for entry in found]  # type: ignore[index]
    return bool(addresses) and all(address == "::1" or address.startswith("127.") for address in addresses)


def _without_telemetry(loaded: Loaded) -> Loaded:
    """The configuration without telemetry, for a process that answers no request."""
    return replace(loaded, config=replace(loaded.config, telemetry=TelemetryConfig(metrics=False)))
