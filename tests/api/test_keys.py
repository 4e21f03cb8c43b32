"""Who may call: keys that are almost right, and headers that are almost one."""

import asyncio
import hmac
import re
from hashlib import sha256

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from proxy.api.access import CALLER
from proxy.api.middleware.clients import Auth
from proxy.config.keys import FROM_CLIENT
from proxy.config.model import ClientConfig, Config, UpstreamConfig
from proxy.wire.errors import InvalidApiKey
from tests.fakes import whole
from tests.serving import proxy_of

SHARED = "sk-0123456789abcdef0"  # twenty characters
CLIENTS = (
    ClientConfig(name="first", key=f"{SHARED}-first", tools=()),
    ClientConfig(name="second", key_sha256=sha256(f"{SHARED}-second".encode()).hexdigest().upper()),
)

NO_LIMITS = {"rates": None, "leases": None}  # what counts the requests of clients with a limit


async def caller(*headers, clients=CLIENTS, forwards_keys=False):
    """Who a request with these headers comes from; whether it is the first, or good keys have come before."""
    key = FROM_CLIENT if forwards_keys else "none"
    config = Config(clients=clients, upstreams={"up": UpstreamConfig(base_url="http://up", api_key=key)})
    found = []

    async def app(scope, receive, send):
        found.append(scope[CALLER])

    async def ask(auth, headers):
        await auth({"type": "http", "method": "GET", "path": "/v1/models", "headers": headers}, None, None)
        return found.pop()

    first, later = (Auth(app, config=config, needs_key=bool(clients), **NO_LIMITS) for _ in range(2))
    for name in ("first", "second"):
        await ask(later, [bearer(f"{SHARED}-{name}")])
    try:
        one = await ask(first, [*headers])
    except InvalidApiKey:
        with pytest.raises(InvalidApiKey):
            await ask(later, [*headers])
        raise
    assert await ask(later, [*headers]) == one
    return one


def bearer(key):
    return (b"authorization", b"Bearer " + (key if isinstance(key, bytes) else key.encode()))


async def test_each_key_of_a_list_is_the_clients():
    clients = (*CLIENTS, ClientConfig(name="changing", key=(f"{SHARED}-old", f"{SHARED}-new")))
    for key in ("old", "new"):
        assert (await caller(bearer(f"{SHARED}-{key}"), clients=clients)).name == "changing"


async def test_two_keys_that_begin_alike_are_two_clients():
    assert (await caller(bearer(f"{SHARED}-first"))).name == "first"
    assert (await caller(bearer(f"{SHARED}-second"))).name == "second"
    assert (await caller((b"api-key", f"{SHARED}-second".encode()))).name == "second"


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [bearer(SHARED)],
        [bearer(f"{SHARED}-")],
        [bearer(f"{SHARED}-firs")],
        [bearer(f"{SHARED}-first\x00")],
        [bearer(f"{SHARED}-first".encode() + b"\xa0")],
        [bearer(f"{SHARED}-first".encode() + b"\x0c")],
        [(b"authorization", b"Bearer  ")],
        [(b"authorization", f"Bearer {SHARED}-first {SHARED}-second".encode())],
        [bearer(b"x" * 1024 * 1024)],
        [bearer("ключ")],
        [bearer(b"\xff\xfe")],
        [bearer(sha256(f"{SHARED}-first".encode()).hexdigest())],
        [(b"authorization", b"Basic " + f"{SHARED}-first".encode())],
        [(b"api-key", b"")],
        [(b"api-key", "ключ".encode())],
    ],
    ids=str,
)
async def test_what_is_no_key_of_ours_is_refused(headers):
    with pytest.raises(InvalidApiKey):
        await caller(*headers)


@pytest.mark.parametrize("name", [b"authorization", b"api-key"])
async def test_of_two_keys_none_is_taken_even_when_both_are_good(name):
    first, second = (
        f"{'Bearer ' if name == b'authorization' else ''}{SHARED}-{which}".encode() for which in ("first", "second")
    )
    for pair in ([first, second], [first, first]):
        with pytest.raises(InvalidApiKey):
            await caller(*((name, value) for value in pair))


@pytest.mark.parametrize(
    ("headers", "short"),
    [
        ([bearer(f"{SHARED}-first")], True),
        ([bearer(f"{SHARED}-first"), (b"accept", b"*/*")], True),
        ([(b"authorization", f"bearer  {SHARED}-first".encode())], False),
        ([bearer(f"{SHARED}-first"), (b"accept", b"a"), (b"accept", b"b")], False),
        ([(b"api-key", f"{SHARED}-first".encode())], False),
    ],
)
async def test_a_header_that_was_right_before_is_looked_up(monkeypatch, headers, short):
    async def app(scope, receive, send):
        assert scope[CALLER].name == "first"

    auth, compared = Auth(app, config=Config(clients=CLIENTS), needs_key=True, **NO_LIMITS), []
    for _ in range(2):
        monkeypatch.setattr(
            "proxy.api.middleware.clients.compare_digest",
            lambda *both: compared.append(both) or hmac.compare_digest(*both),
        )
        await auth({"type": "http", "method": "GET", "path": "/v1/models", "headers": headers}, None, None)
    assert len(compared) == len(CLIENTS) * (1 if short else 2)


async def test_where_there_are_no_clients_two_keys_are_as_good_as_none():
    assert (await caller(bearer("a"), bearer("b"), clients=(), forwards_keys=True)).upstream_key is None


async def test_without_clients_a_key_tells_callers_apart_only_where_an_upstream_is_given_it():
    first, second = [(await caller(bearer(key), clients=())).scope for key in ("a", "b")]
    assert first == second == (await caller(clients=())).scope
    first, second = [(await caller(bearer(key), clients=(), forwards_keys=True)).scope for key in ("a", "b")]
    assert first != second


async def over_a_socket(url, *lines):
    """The status of a request that no HTTP library would send."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = [b"GET /v1/models HTTP/1.1", b"Host: x", b"Connection: close", *lines, b"", b""]
    writer.write(b"\r\n".join(head))
    await writer.drain()
    status = await reader.readline()
    writer.close()
    return int(status.split()[1])


@pytest.mark.parametrize(
    ("lines", "statuses"),
    [
        ([b"Authorization: Bearer key-one"], {200}),
        ([b"Authorization: Bearer key-one", b"Authorization: Bearer key-one"], {401}),
        ([b"Authorization: Bearer wrong", b"AUTHORIZATION: Bearer key-one"], {401}),
        ([b"Authorization: Bearer " + b"x" * 1_000_000], {401, 431}),
        ([b"Authorization: Bearer \xc3\xa9"], {401}),
    ],
)
async def test_over_the_wire_it_is_the_same(upstream, lines, statuses):
    upstream.replies = [whole("Hi")]
    async with proxy_of(upstream, more="clients: [{name: one, key: key-one}]") as url:
        assert await over_a_socket(url, *lines) in statuses
        assert await over_a_socket(url, b"api-key: key-one") == 200


FIRST = f"{SHARED}-first".encode()
HEADERS = st.lists(
    st.tuples(
        st.sampled_from([b"authorization", b"api-key", b"x-api-key", b"cookie"]),
        st.binary(max_size=8) | st.sampled_from([b"Bearer ", b"bearer  ", b"", b"Basic ", b"\xff"]).flatmap(
            lambda scheme: st.sampled_from([SHARED, f"{SHARED}-first", f"{SHARED}-firs", f"{SHARED}-first ", "", ","]).map(lambda key: scheme + key.encode())
        ),
    ),
    max_size=3,
)  # fmt: skip


@given(HEADERS)
@example([(b"authorization", b"Bearer " + FIRST)])
@example([(b"api-key", FIRST), (b"cookie", b"x")])
@example([(b"authorization", b"x"), (b"x-api-key", FIRST)])
@example([(b"authorization", b"x"), (b"api-key", FIRST)])
async def test_nobody_is_let_in_but_by_one_whole_key_said_once(headers):
    try:
        found = await caller(*headers)
    except InvalidApiKey:
        return
    assert found.name == "first"
    names = [name for name, _ in headers if name != b"cookie"]
    assert len(names) == len(set(names))
    said = dict(headers)
    used = said.get(b"authorization", said.get(b"api-key", b"")).strip()
    assert FIRST in (said.get(b"x-api-key", b"").strip(), re.sub(rb"(?i)\Abearer +", b"", used))
