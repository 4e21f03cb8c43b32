"""The listening socket. It is bound before anything else, duplicated for the event loop, and named in the log."""

import errno
import socket

from proxy.server.port_owner import port_owner_of
from proxy.wire.errors import ConfigurationError

# Unsent bytes that the kernel buffers for a client. Without a limit, each slow reader would need megabytes, and the
# socket would become writable, which is the sign that the client reads, only after a third of them.
_MOST_UNSENT_BYTES = 128 * 1024
# libuv accepts one connection from a listener in each iteration of its loop, and a busy loop makes few iterations: a
# health check would wait for a second behind the connections before it.
_ACCEPTED_PER_ITERATION = 32


def listen(host: str, port: int) -> socket.socket:
    """A bound socket. Raises `ConfigurationError` if the address cannot be bound."""
    listener = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):  # connections inherit it
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _MOST_UNSENT_BYTES)
        listener.bind(address)
    except (OSError, UnicodeError) as exc:
        if listener is not None:
            listener.close()
        why = getattr(exc, "strerror", None) or exc
        if getattr(exc, "errno", None) == errno.EADDRINUSE and (owner := port_owner_of(port)):
            why = f"{why}: {owner}; for another port: --port, or TOOLPROXY_PORT"
        raise ConfigurationError([f"cannot listen on {host}:{port}: {why}"]) from exc
    listener.set_inheritable(True)
    return listener


def accept_in_bulk(listener: socket.socket) -> list[socket.socket]:
    """Duplicates of the listener, one for each connection that libuv may accept in one iteration of the event loop.

    The listener is made non-blocking first. A duplicate gets the timeout that Python has stored for the original, and a
    socket from another process counts as "blocking". The duplicates are one socket for the kernel: it would also block
    for workers that already serve, and each would hang in `accept` until the next client connects.
    """
    listener.setblocking(False)
    return [listener, *(listener.dup() for _ in range(_ACCEPTED_PER_ITERATION - 1))]


def address_of(listener: socket.socket) -> str:
    """The URL of a listener."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
