"""Forward proxies of a company's network: finds the proxy that the environment names for a URL.

The variables mean the same as in curl: `https_proxy` or `HTTPS_PROXY` for https URLs, `http_proxy` for http URLs,
`all_proxy` or `ALL_PROXY` for both, and `no_proxy` or `NO_PROXY` for exceptions. Lower case takes precedence.
`HTTP_PROXY` is not read, because in a CGI program a client could set it with a header `Proxy`. Two rules differ from
curl: a loopback address never goes through a proxy, and an exception may name a port. Values can contain passwords, so
no value is ever quoted.
"""

import functools
import os
import re
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from types import MappingProxyType
from typing import Any, Final, TypeAlias
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from proxy.http.connect import PORTS, Origin, client_context
from proxy.wire.errors import ConfigurationError

_VARIABLES: Final = {
    "http": ("http_proxy", "all_proxy", "ALL_PROXY"),
    "https": ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"),
}
_PORTS_OF_PROXIES: Final = {"http": 1080, "https": 443}  # curl's, where the variable names none
_WITH_PORT: Final = re.compile(r"(\[[^]]*\]|[^:]*):([0-9]{1,5})")

_Address: TypeAlias = IPv4Address | IPv6Address


class ForwardProxy(Struct, frozen=True):
    """A forward proxy.

    Attributes:
        variable: the environment variable that names the proxy.
        origin: the address of the proxy, and whether the connection to it uses TLS.
        user: the user name for the proxy, empty if there is none.
        password: the password of the user.
    """

    variable: str
    origin: Origin
    user: str = ""
    password: str = ""

    @property
    def url(self) -> str:
        """The URL of the proxy, without user name and password."""
        return f"{'https' if self.origin.secure else 'http'}://{authority(self.origin)}"

    @property
    def options(self) -> dict[str, Any]:
        """The proxy as the arguments of `httpx.Proxy`."""
        auth = (self.user, self.password) if self.user or self.password else None
        return {"url": self.url, "auth": auth, "ssl_context": client_context() if self.origin.secure else None}

    @property
    def authorization(self) -> bytes:
        """The header line that authenticates the user to the proxy; empty without a user."""
        if not self.user and not self.password:
            return b""
        return b"Proxy-Authorization: Basic %b\r\n" % b64encode(f"{self.user}:{self.password}".encode())

    def __repr__(self) -> str:
        """The proxy without its password, because logs and tracebacks contain representations."""
        return f"{self.url} ({self.variable})"

    __str__ = __repr__


class Exemption(Struct, frozen=True):
    """One entry of `NO_PROXY`: a domain with all names below it, or a network, for one port or all ports."""

    domain: str
    network: IPv4Network | IPv6Network | None = None
    port: int | None = None

    def holds_for(self, host: str, address: _Address | None, port: int) -> bool:
        """Whether the entry exempts a server; `address` is `host` as an address, if it is one."""
        if self.port not in (None, port):
            return False
        if self.network is not None:
            return address is not None and address in self.network
        return host == self.domain or host.endswith(f".{self.domain}")


class Proxies(Struct, frozen=True):
    """The proxies that an environment names.

    Attributes:
        named: the variable and its value, by the scheme of the URLs that go through the proxy.
        exemptions: the entries of `NO_PROXY`.
    """

    named: Mapping[str, tuple[str, str]] = MappingProxyType({})
    exemptions: Sequence[Exemption] = ()

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> "Proxies":
        """The proxies of an environment. An empty variable counts as not set."""
        entries = re.split(r"[,\s]+", (environ.get("no_proxy") or environ.get("NO_PROXY") or "").lower())
        if "*" in entries:
            return cls()
        named = {
            scheme: (found, environ[found])
            for scheme, names in _VARIABLES.items()
            if (found := next(filter(environ.get, names), None))
        }
        return cls(named, tuple(_exemptions(entries)))

    def proxy_for(self, url: str) -> ForwardProxy | None:
        """The proxy for a URL; None if the URL is reached directly.

        Raises:
            ConfigurationError: the variable names no usable proxy.
        """
        parts = urlsplit(url)
        if (named := self.named.get(parts.scheme)) is None:
            return None
        host = (parts.hostname or "").rstrip(".")
        address = _address(host)
        is_here = address.is_loopback if address else host == "localhost" or host.endswith(".localhost")
        port = parts.port or PORTS[parts.scheme]
        if is_here or any(exemption.holds_for(host, address, port) for exemption in self.exemptions):
            return None
        return _proxy(*named)


@functools.cache
def environment_proxies() -> Proxies:
    """The proxies that the environment of this process names, read when first needed."""
    return Proxies.of(os.environ)


def authority(origin: Origin) -> str:
    """The host and the port of an origin, as they are written in a request."""
    return f"[{origin.host}]:{origin.port}" if ":" in origin.host else f"{origin.host}:{origin.port}"


def _proxy(variable: str, value: str) -> ForwardProxy:
    try:
        parts = urlsplit(value if "://" in value else f"http://{value}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = None
    if not host:
        raise ConfigurationError([f"{variable} in the environment is no URL of the form http://proxy.example:3128"])
    if parts.scheme not in _PORTS_OF_PROXIES:
        raise ConfigurationError(
            [f"{variable} in the environment has to begin with http:// or https://; SOCKS is not supported"]
        )
    origin = Origin(host, port or _PORTS_OF_PROXIES[parts.scheme], parts.scheme == "https")
    return ForwardProxy(variable, origin, unquote(parts.username or ""), unquote(parts.password or ""))


def _exemptions(entries: Sequence[str]) -> Iterator[Exemption]:
    for entry in entries:
        with_port = _WITH_PORT.fullmatch(entry)
        host, port = (with_port[1], int(with_port[2])) if with_port else (entry, None)
        host = host.strip("[]")
        try:
            yield Exemption(host, ip_network(host, strict=False), port)
        except ValueError:  # a domain; `.example.org` and `*.example.org` are `example.org`
            if domain := host.removeprefix("*").strip("."):
                yield Exemption(domain, port=port)


def _address(host: str) -> _Address | None:
    try:
        address = ip_address(host)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
