"""Requests of this machine's own user: what they may do where no clients are configured."""

from ipaddress import ip_address

from starlette.types import Scope

from proxy.api.body import header, is_forwarded
from proxy.api.middleware.cors import LOCAL_HOST


def is_local(scope: Scope) -> bool:
    """Whether a request was sent from this machine, by a program that named it so, and not handed on by another proxy.

    Both ends of the connection are loopback addresses, and the Host header names one: a web page that has rebound its
    own name to 127.0.0.1 sends that name.
    """
    between = _is_loopback(scope.get("client")) and _is_loopback(scope.get("server"))
    return between and bool(LOCAL_HOST.fullmatch(header(scope, b"host") or "")) and not is_forwarded(scope)


def _is_loopback(address: object) -> bool:
    """Whether the host of an ASGI address, a host and a port, is a loopback address."""
    try:
        return isinstance(address, (list, tuple)) and ip_address(address[0]).is_loopback
    except ValueError:
        return False
