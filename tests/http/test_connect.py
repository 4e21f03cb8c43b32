"""Names with several addresses: whichever answers first, without waiting for the others to fail."""

import asyncio
import errno
import socket
import ssl

import pytest

from proxy.http import connect as dial
from proxy.http.connect import reason


def address(host, port, family=socket.AF_INET):
    return (family, socket.SOCK_STREAM, 0, "", (host, port))


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


@pytest.fixture
def full():
    """A server that accepts nobody: the kernel does not answer."""
    with socket.socket() as listening, socket.socket() as first, socket.socket() as second:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        for filler in (first, second):
            filler.setblocking(False)
            filler.connect_ex(listening.getsockname())
        yield listening


@pytest.fixture
def closed():
    """A port where nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken


@pytest.fixture
def resolve(monkeypatch):
    """Make a name stand for these servers."""

    def as_servers(*servers):
        async def getaddrinfo(*_, **__):
            return [address(*server.getsockname()) for server in servers]

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)

    return as_servers


async def test_a_refusal_is_no_reason_to_wait(resolve, closed, listener):
    resolve(closed, closed, listener)
    async with asyncio.timeout(0.2):
        with await dial.connect("name", 1) as sock:
            assert sock.getpeername() == listener.getsockname()


async def test_an_address_that_does_not_answer_is_overtaken(resolve, full, listener):
    resolve(full, listener)
    async with asyncio.timeout(2):
        with await dial.connect("name", 1) as sock:
            assert sock.getpeername() == listener.getsockname()


async def test_where_all_refuse_the_first_refusal_is_told(resolve, closed):
    resolve(closed, closed)
    with pytest.raises(ConnectionRefusedError):
        await dial.connect("name", 1)


async def test_a_family_without_a_route_costs_one_attempt(monkeypatch, listener):
    """Addresses are tried with alternating families, the resolver's favourite first."""
    tried = []
    unreachable = [address(f"2001:db8::{at}", 1, socket.AF_INET6) for at in range(4)]

    async def getaddrinfo(*_, **__):
        return [*unreachable, address(*listener.getsockname())]

    async def sock_connect(sock, where):
        tried.append(sock.family)
        if sock.family == socket.AF_INET6:
            raise OSError(errno.ENETUNREACH, "no route")
        await connect(sock, where)

    loop = asyncio.get_running_loop()
    connect = loop.sock_connect
    monkeypatch.setattr(loop, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(loop, "sock_connect", sock_connect)
    with await dial.connect("name", 1) as sock:
        assert sock.getpeername() == listener.getsockname()
    assert tried == [socket.AF_INET6, socket.AF_INET]


async def test_requests_are_sent_at_once_and_a_peer_that_has_vanished_is_noticed(resolve, closed, listener):
    for servers in ((listener,), (closed, listener)):
        resolve(*servers)
        with await dial.connect("name", 1) as sock:
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


async def test_an_attempt_that_is_given_up_leaves_no_socket_open(resolve, full):
    resolve(full, full)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.4):
            await dial.connect("name", 1)


# -- the cause of a failure --


class LibraryError(Exception):
    pass


def caused(by, said="what was sent"):
    exc = LibraryError(said)
    exc.__cause__ = by
    return exc


@pytest.mark.parametrize(
    ("exc", "told"),
    [
        (LibraryError("what was sent"), "LibraryError"),
        (caused(ValueError("what was sent")), "LibraryError"),
        (caused(ConnectionRefusedError(111, "refused")), "ConnectionRefusedError: [Errno 111] refused"),
        (caused(caused(ssl.SSLError("not trusted"))), "SSLError: ('not trusted',)"),
        (caused(OSError()), "LibraryError"),
        (caused(OSError("x" * 1000)), "OSError: " + "x" * 300),
    ],
)
def test_the_operating_system_is_quoted_and_nobody_else(exc, told):
    assert reason(exc) == told


def test_the_innermost_word_of_the_system_counts():
    outer = OSError("All attempts failed")
    outer.__cause__ = ConnectionRefusedError(111, "refused")
    assert reason(caused(outer)) == "ConnectionRefusedError: [Errno 111] refused"


def test_causes_that_go_round_in_a_circle_come_to_an_end():
    one = caused(None)
    one.__cause__ = caused(one)
    assert reason(one) == "LibraryError"
