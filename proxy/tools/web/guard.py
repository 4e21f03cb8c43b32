"""Decides which URLs and addresses may be opened for a model. Pure: no network.

    text --parse_url--> Target --check_target--> name resolved elsewhere --check_address--> connect to that address

A URL is parsed once, strictly, and the connection is made to the parsed parts, so that no second parser can find
another host in the same text. A harmless name is not enough: the address of the host decides.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TypeAlias
from urllib.parse import quote

from proxy.loop.results import ToolError, UrlNotAllowed
from proxy.wire.urls import ascii_host, without_dots

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network

STANDARD_PORTS = {"http": 80, "https": 443}
# About the limit of browsers and servers; a longer URL would rather leak data than name a page.
MOST_URL_CHARACTERS = 4096
_LONGEST_HOST, _HIGHEST_PORT = 253, 65535  # RFC 1035, RFC 6335

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?![0-9])")  # `localhost:8080` is a host and a port
# RFC 3986, appendix B, with the scheme and the host made mandatory.
_URL = re.compile(
    r"(?P<scheme>https?)://(?P<authority>[^/?#]*)(?P<path>[^?#]*)(?P<query>\?[^#]*)?(?:#.*)?", re.IGNORECASE
)
_AUTHORITY = re.compile(r"(?P<host>\[[^\[\]]*\]|[^\[\]:]*)(?::(?P<port>[0-9]{0,5}))?")
_NAME = re.compile(r"(?:[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")  # for WHATWG, a host that ends in such a label is an IPv4 address
_UNSEEN = re.compile(r"[\x00-\x20\x7f-\xa0\u2028\u2029\ufeff]")
_KEPT_IN_PATH = "/%:@!$&'()*+,;=~-._"
_KEPT_IN_QUERY = _KEPT_IN_PATH + "?"


@dataclass(frozen=True, slots=True)
class Target:
    """A parsed URL: all ASCII, with the host in lower case and without brackets, and always with a port."""

    scheme: str
    host: str
    port: int
    path: str  # with the query, as in the request line

    @property
    def authority(self) -> str:
        """The host, with the port unless it is the scheme's default: the value of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if STANDARD_PORTS[self.scheme] == self.port else f"{host}:{self.port}"

    @property
    def origin(self) -> str:
        """Scheme, host and port."""
        return f"{self.scheme}://{self.authority}"

    @property
    def url(self) -> str:
        """The whole URL, without a fragment."""
        return self.origin + self.path


def parse_url(text: str) -> Target:
    """Parse a URL from a model or a redirect; without a scheme, it is https.

    Raises:
        ToolError: the URL may not be opened; the message has the reason.
    """
    text = text.strip().replace(" ", "%20")
    if len(text) > MOST_URL_CHARACTERS:
        raise _refused(f"it is longer than {MOST_URL_CHARACTERS} characters")
    if _UNSEEN.search(text) or "\\" in text:
        raise _refused("it holds control characters or a backslash")
    if (scheme := _SCHEME.match(text)) is None:
        text = f"https://{text.removeprefix('//')}"
    elif scheme[1].lower() not in STANDARD_PORTS:
        raise _refused("only http and https are opened")
    if (parts := _URL.fullmatch(text)) is None:
        raise _refused("it is no URL of the form https://host/path")
    kind = parts["scheme"].lower()
    host, port = _split(parts["authority"])
    path = without_dots(quote(parts["path"] or "/", safe=_KEPT_IN_PATH))
    query = quote(parts["query"] or "", safe=_KEPT_IN_QUERY)
    return Target(kind, host, STANDARD_PORTS[kind] if port is None else port, path + query)


def _split(authority: str) -> tuple[str, int | None]:
    if "@" in authority:
        raise _refused("it holds a user name or password")
    if (parts := _AUTHORITY.fullmatch(authority)) is None:
        raise _refused("its host or port cannot be read")
    port = int(parts["port"]) if parts["port"] else None
    if port is not None and not 0 < port <= _HIGHEST_PORT:
        raise _refused("there is no such port")
    return canonical_host(parts["host"]), port


def canonical_host(text: str) -> str:
    """A host in the only form that is looked up and compared.

    Raises:
        ToolError: it is not a host, or its notation obscures the host.
    """
    if text.startswith("["):
        try:
            return str(IPv6Address(text[1:-1] if "%" not in text else ""))
        except ValueError:
            raise _refused("its IPv6 address cannot be read") from None
    # Full-width letters and other dots are mapped as in browsers; the result is checked below.
    if (host := ascii_host(text)) is None:
        raise _refused("its host name cannot be read")
    if _NUMBER.fullmatch(host.removesuffix(".").rpartition(".")[2]):
        # Only four decimal numbers: not 127.1, 0x7f000001, 0177.0.0.1 or circled digits.
        if host != text or literal(host) is None:
            raise _refused("its address is written in an unusual way")
        return host
    if host.endswith("."):
        raise _refused("its host name ends with a dot")
    if len(host) > _LONGEST_HOST or not _NAME.fullmatch(host):
        raise _refused("its host name cannot be read")
    return host


def _refused(why: str) -> ToolError:
    return UrlNotAllowed(f"This URL is not opened: {why}.")


# Addresses that no public server has: IANA's special-purpose registries (RFC 6890 and later), and addresses of clouds.
# `ipaddress.is_global` alone permits a dozen of these.
_LINK_LOCAL, _METADATA = "a link-local address", "the address of a cloud's metadata service"
_NOT_PUBLIC: Sequence[tuple[Network, str]] = [
    (ip_network(network), why)
    for why, networks in {
        _METADATA: "169.254.169.254/32 169.254.170.2/32 100.100.100.200/32 192.0.0.192/32 168.63.129.16/32"
        " fd00:ec2::/32 fd20:ce::/32",
        "an address of this machine": "0.0.0.0/8 127.0.0.0/8 ::/127",
        "a private address": "10.0.0.0/8 172.16.0.0/12 192.168.0.0/16 fc00::/7 fec0::/10",
        _LINK_LOCAL: "169.254.0.0/16 fe80::/10",
        "an address shared behind a provider's NAT": "100.64.0.0/10",
        "a multicast address": "224.0.0.0/4 ff00::/8",
        "an address that hides another one": "::ffff:0:0/96 ::/96 ::ffff:0:0:0/96 64:ff9b::/96 64:ff9b:1::/48 2002::/16"
        " 2001::/32 192.88.99.0/24",
        "an address for documentation only": "192.0.2.0/24 198.51.100.0/24 203.0.113.0/24 2001:db8::/32 3fff::/20",
        "an address for measurements only": "198.18.0.0/15 2001:2::/48",
        "a reserved address": "192.0.0.0/24 192.31.196.0/24 192.52.193.0/24 192.175.48.0/24 240.0.0.0/4 100::/64"
        " 2001::/23 5f00::/16",
    }.items()
    for network in networks.split()
]
_GLOBAL_UNICAST = IPv6Network("2000::/3")  # all addresses that IANA has assigned so far


def why_not_public(address: Address) -> str | None:
    """The kind of an address that no public server has; None: it is public.

    Addresses that embed an IPv4 address are never public, whatever the embedded address: no name needs them.
    """
    for network, why in _NOT_PUBLIC:
        if address in network:
            return why
    is_given_out = isinstance(address, IPv4Address) or address in _GLOBAL_UNICAST
    return None if is_given_out and address.is_global else "a reserved address"


# NAT64 (twice), IPv4-compatible and IPv4-translated addresses.
_IN_LAST_BITS = [IPv6Network(text) for text in ("64:ff9b::/96", "64:ff9b:1::/48", "::/96", "::ffff:0:0:0/96")]
_ISATAP = 0x5EFE  # RFC 5214: interface identifiers ::0:5efe:a.b.c.d and ::200:5efe:a.b.c.d


def carried_by(address: Address) -> tuple[IPv4Address, ...]:
    """The IPv4 addresses in an IPv6 address to which a translator or tunnel would send packets."""
    if isinstance(address, IPv4Address) or address.is_loopback or address.is_unspecified:
        return ()
    if carried := address.ipv4_mapped or address.sixtofour:
        return (carried,)
    if address.teredo is not None:
        return address.teredo
    number = int(address)
    isatap = (number >> 32) & 0xFDFFFFFF == _ISATAP
    if isatap or any(address in network for network in _IN_LAST_BITS):
        return (IPv4Address(number & 0xFFFFFFFF),)
    return ()


@dataclass(frozen=True, slots=True)
class HostRule:
    """An entry of `allow_hosts` or `deny_hosts`.

    It has a `name` (with a leading dot: every subdomain), or a `network`, or neither (every host). `port` None: every
    port.
    """

    name: str | None = None
    network: Network | None = None
    port: int | None = None

    def names(self, host: str, port: int) -> bool:
        """Whether the rule covers this host by its name."""
        if self.name is None or self.port not in (None, port):
            return False
        return host.endswith(self.name) if self.name.startswith(".") else host == self.name

    def holds(self, address: Address, port: int) -> bool:
        """Whether the rule covers this address."""
        return self.network is not None and self.port in (None, port) and address in self.network


_EVERY_HOST = HostRule()  # `*`


def parse_rule(text: str) -> HostRule:
    """Parse an entry: `example.com`, `*.example.com`, `10.1.0.0/16` or `::1`, each host also as `host:port`.

    Raises:
        ValueError: the entry is not valid; the message has the reason.
    """
    if text == "*":
        return _EVERY_HOST
    try:
        return HostRule(network=ip_network(text))
    except ValueError:
        if "/" in text:
            raise ValueError(f"{text!r} is neither a host nor a network such as 10.1.0.0/16") from None
    try:
        host, port = _split(text.removeprefix("*."))
    except ToolError:
        raise ValueError(f"{text!r} is neither a host, *.host, host:port nor a network such as 10.1.0.0/16") from None
    if literal(host):
        return HostRule(network=ip_network(host), port=port)
    return HostRule(name=f".{host}" if text.startswith("*.") else host, port=port)


class UrlGuard:
    """The rules of one tool.

    Without rules, every public address may be opened at the ports 80 and 443. `allow` additionally permits the hosts,
    private addresses and ports that it names. `deny` forbids hosts and has precedence, except that `*` in it means
    every host that `allow` does not name.

    Args:
        allow: the entries of `allow_hosts`.
        deny: the entries of `deny_hosts`.

    Raises:
        ValueError: an entry is not valid, or `allow` is `*`, which would disable the guard.
    """

    def __init__(self, allow: Iterable[str] = (), deny: Iterable[str] = ()) -> None:
        self._allow = [parse_rule(text) for text in allow]
        self._deny = [parse_rule(text) for text in deny]
        if _EVERY_HOST in self._allow:
            raise ValueError("'*' would open every private address: name hosts or networks")
        self._closed = _EVERY_HOST in self._deny

    def check_target(self, target: Target) -> None:
        """Check a target as far as possible before its name is resolved. Raises `ToolError`."""
        host, port = target.host, target.port
        if address := literal(host):
            self.check_address(host, port, address)
            return
        if any(rule.names(host, port) for rule in self._deny):
            raise _refused("its host is not allowed here")
        # The host may be in an allowed network: its address is checked before a connection is made.
        may_be_allowed = any(rule.names(host, port) or rule.network is not None for rule in self._allow)
        if not may_be_allowed:
            self._expect_open(port)

    def check_address(self, host: str, port: int, address: Address) -> None:
        """Check that a connection for `host` and `port` may be made to `address`. Raises `ToolError`."""
        forms = (address, *carried_by(address))
        if any(rule.names(host, port) or any(rule.holds(form, port) for form in forms) for rule in self._deny):
            raise _refused("its host is not allowed here")
        named = any(rule.names(host, port) for rule in self._allow)
        held = [any(rule.holds(form, port) for rule in self._allow) for form in forms]
        for form, allowed in zip(forms, held, strict=True):
            why = why_not_public(form)
            # A name never opens the metadata service: its owner could otherwise get the machine's keys.
            if why and not allowed and (not named or why in {_METADATA, _LINK_LOCAL}):
                raise _refused(f"its host has {why}")
        if not named and not any(held):
            self._expect_open(port)

    def _expect_open(self, port: int) -> None:
        """Raise `ToolError` if a host that no entry of `allow` covers may not be opened at a port."""
        if self._closed:
            raise _refused("its host is not allowed here")
        if port not in STANDARD_PORTS.values():
            raise _refused(f"port {port} is not allowed, only 80 and 443 are")


def literal(host: str) -> Address | None:
    """The address, if a host is written as one; None: it is a name."""
    try:
        return ip_address(host)
    except ValueError:
        return None
