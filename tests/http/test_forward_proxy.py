"""Forward proxies: which one the environment names for a URL, as a table, and requests through a real one."""

import asyncio
import base64
import ssl
from contextlib import aclosing, asynccontextmanager
from itertools import pairwise

import httpx
import httpx2
import pytest
import trustme

from proxy import app
from proxy.app.configuration import parse
from proxy.commands.overview import describe
from proxy.commands.probe import ProbeClients, probe
from proxy.config.model import UpstreamConfig
from proxy.http.client import BearerKey
from proxy.http.connect import client_context
from proxy.http.forward_proxy import Proxies, environment_proxies
from proxy.http.tunnel import ProxiedTransport
from proxy.tools.exchange import ServiceRequest, send
from proxy.tools.kinds.mcp.transport import SessionTransport
from proxy.wire.errors import ConfigurationError
from tests.free_port import free_port
from tests.http.rawserver import OK, forever, raw_server
from tests.http.test_transport import LOOPS, OursForHttpx, fetch
from tests.http.test_transport_tls import tls_server

PASSWORD = "s3cret word"
VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture(params=LOOPS)
def anyio_backend(request):
    return request.param


@pytest.fixture(autouse=True)
def environ(monkeypatch):
    """Sets variables of this process, which by itself has none that name a proxy."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)

    def set_to(**variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        environment_proxies.cache_clear()

    set_to()
    yield set_to
    monkeypatch.undo()
    environment_proxies.cache_clear()
    client_context.cache_clear()


# Which proxy.

P, Q = "http://p.corp:3128", "http://q.corp:8080"
NAMED = [
    ({}, "https://a.example/", None),
    ({"HTTPS_PROXY": P}, "https://a.example/", "http://p.corp:3128 (HTTPS_PROXY)"),
    ({"HTTPS_PROXY": P}, "http://a.example/", None),
    ({"https_proxy": Q, "HTTPS_PROXY": P}, "https://a.example/", "http://q.corp:8080 (https_proxy)"),
    ({"https_proxy": "", "HTTPS_PROXY": P}, "https://a.example/", "http://p.corp:3128 (HTTPS_PROXY)"),
    ({"http_proxy": P}, "http://a.example/", "http://p.corp:3128 (http_proxy)"),
    ({"HTTP_PROXY": P}, "http://a.example/", None),
    ({"ALL_PROXY": P}, "http://a.example/", "http://p.corp:3128 (ALL_PROXY)"),
    ({"ALL_PROXY": P, "HTTPS_PROXY": Q}, "https://a.example/", "http://q.corp:8080 (HTTPS_PROXY)"),
    ({"all_proxy": "socks5://s.corp", "https_proxy": P}, "https://a.example/", "http://p.corp:3128 (https_proxy)"),
    ({"https_proxy": "p.corp:3128"}, "https://a.example/", "http://p.corp:3128 (https_proxy)"),
    ({"https_proxy": "http://p.corp"}, "https://a.example/", "http://p.corp:1080 (https_proxy)"),
    ({"https_proxy": "https://p.corp/"}, "https://a.example/", "https://p.corp:443 (https_proxy)"),
    ({"https_proxy": "http://[fd00::1]:3128"}, "https://a.example/", "http://[fd00::1]:3128 (https_proxy)"),
    ({"https_proxy": f"http://user:{PASSWORD}@p.corp:1"}, "https://a.example/", "http://p.corp:1 (https_proxy)"),
]


@pytest.mark.parametrize(("variables", "url", "proxy"), NAMED)
def test_the_variables_name_the_proxy_that_they_name_to_curl(variables, url, proxy):
    found = Proxies.of(variables).proxy_for(url)
    assert (found and str(found)) == proxy
    assert PASSWORD not in repr(found)


NO_PROXY = [
    ("example.com", "example.com", True),
    ("example.com", "EXAMPLE.com.", True),
    ("Example.com", "api.example.com", True),
    ("example.com", "notexample.com", False),
    (".example.com", "example.com", True),
    (".example.com", "api.example.com", True),
    ("*.example.com", "a.b.example.com", True),
    ("a.org, example.com", "example.com", True),
    ("a.org example.com", "example.com", True),
    (",,a.org,", "example.com", False),
    (".", "example.com", False),
    ("*", "example.com", True),
    ("a.org,*", "example.com", True),
    ("example.com:8443", "example.com:8443", True),
    ("example.com:8443", "example.com", False),
    ("example.com:443", "example.com", True),
    ("192.0.2.7", "192.0.2.7", True),
    ("192.0.2.7", "192.0.2.70", False),
    ("192.0.2.0/24", "192.0.2.70", True),
    ("192.0.2.9/24", "192.0.2.70", True),
    ("192.0.2.0/24:8443", "192.0.2.70", False),
    ("192.0.2.0/24", "[::ffff:192.0.2.70]", True),
    ("192.0.2.0/24", "192.0.2.70.example.com", False),
    ("2001:db8::/32", "[2001:db8::5]", True),
    ("[2001:db8::5]", "[2001:db8::5]", True),
    ("[2001:db8::5]:8443", "[2001:db8::5]", False),
    ("2001:db8::5", "[2001:db8::6]", False),
]


@pytest.mark.parametrize(("exempt", "host", "directly"), NO_PROXY)
def test_no_proxy_exempts_domains_networks_and_ports(exempt, host, directly):
    for name in ("NO_PROXY", "no_proxy"):
        found = Proxies.of({"HTTPS_PROXY": P, name: exempt}).proxy_for(f"https://{host}/v1")
        assert (found is None) == directly


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:8000", "api.localhost", "127.0.0.1", "127.9.9.9:1", "[::1]:1", "[::ffff:127.0.0.1]"],
)
def test_loopback_never_goes_through_a_proxy(host):
    proxies = Proxies.of({"ALL_PROXY": P})
    assert proxies.proxy_for(f"http://{host}/v1") is None
    assert proxies.proxy_for("http://localhost.example/v1") is not None


@pytest.mark.parametrize("value", ["socks5h://u:s3cret@s.corp", "http://u:s3cret@p.corp:port", "http://", "s3cret://p"])
def test_a_proxy_that_cannot_be_used_is_a_fault_without_its_value(value, environ):
    text = 'upstreams: {up: {base_url: "%s", api_key: k}}\nmodels: {m: {upstream: up}}\ntools: {search: %s}'
    tool = "{type: serper, api_key: the-key-of-serper}"
    environ(ALL_PROXY=value)
    for url, search in (("https://a.example", "{type: clock}"), ("http://127.0.0.1", tool)):
        with pytest.raises(ConfigurationError) as fault:
            app.create_app(parse(text % (url, search), {}))
        assert "ALL_PROXY" in str(fault.value)
        assert "s3cret" not in str(fault.value)
    app.create_app(parse(text % ("http://127.0.0.1", "{type: clock}"), {}))  # nothing would go through it


# Through one.


@asynccontextmanager
async def forward_proxy(to, *, refuse=None, **serving):
    """A proxy of HTTP/1.1 that knows one server, by whatever name."""
    copying = set()
    try:

        async def script(peer):
            while True:
                head = await peer.reader.readuntil(b"\r\n\r\n")
                peer.server.heads.append(head)
                if refuse is not None:
                    return await peer.send(refuse)
                host, _, port = to.url.rpartition("//")[2].rpartition(":")
                reader, writer = await asyncio.open_connection(host, int(port))
                if head.startswith(b"CONNECT "):
                    await peer.send(b"HTTP/1.1 200 Connection established\r\nvia: p\r\n\r\n")
                    copying.add(asyncio.ensure_future(copied(peer.reader, writer)))
                    return await copied(reader, peer.writer)
                writer.write(head)
                length = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
                writer.write(await peer.reader.readexactly(int(length[0].split(b":")[1]) if length else 0))
                await peer.send(await reader.readexactly(len(OK)))
                writer.close()

        async with raw_server(script, **serving) as server:
            yield server
    finally:
        for copies in copying:
            copies.cancel()


async def copied(reader, writer):
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


async def through_an_upstream(url, transport="auto"):
    client = app.http_client_for(UpstreamConfig(base_url=url, api_key="k", transport=transport))
    try:
        for _ in range(2):
            response = await client.send(client.prepare("POST", "/v1", ()), b"{}", BearerKey("k"))
            assert (await response.read(), await response.read()) == (b"ok", b"")
            await response.aclose()
    finally:
        await client.aclose()


async def through_a_tool(url):
    async with aclosing(app.tool_client()) as client:
        for _ in range(2):
            assert (await send(client, ServiceRequest("POST", url + "/v1", b"{}"), most=10)).body == b"ok"


async def through_mcp(url):
    async with httpx2.AsyncClient(transport=SessionTransport(), trust_env=False) as client:
        for _ in range(2):
            assert (await client.post(url + "/v1", content=b"{}")).content == b"ok"


WAYS = {
    "an upstream": through_an_upstream,
    "an upstream by httpx": lambda url: through_an_upstream(url, "httpx"),
    "a tool": through_a_tool,
    "an MCP server": through_mcp,
}
CREDENTIALS = b"Basic " + base64.b64encode(f"user:{PASSWORD}".encode())


@pytest.mark.parametrize("way", WAYS)
async def test_a_plain_request_is_sent_to_the_proxy_in_absolute_form(way, environ):
    async with raw_server(forever) as server, forward_proxy(server) as proxy:
        environ(http_proxy=proxy.url.replace("//", "//user:s3cret%20word@"))
        await WAYS[way]("http://api.example:8000")
        assert [head.split(b"\r\n")[0] for head in proxy.heads] == [b"POST http://api.example:8000/v1 HTTP/1.1"] * 2
        assert all(CREDENTIALS in head and b"\r\nhost: api.example:8000\r\n" in head.lower() for head in proxy.heads)
        assert proxy.connections == 1
        assert server.bodies == [b"{}"] * 2


@pytest.mark.parametrize("way", WAYS)
async def test_tls_goes_through_a_tunnel_to_the_server_itself(way, environ, tmp_path):
    authority, seen = trustme.CA(), []
    authority.cert_pem.write_to_path(tmp_path / "authority.pem")
    server = tls_server(forever, "api.example", authority=authority, name="127.0.0.1", seen=seen)
    async with server as server, forward_proxy(server) as proxy:
        environ(HTTPS_PROXY=proxy.url.replace("//", "//user:s3cret%20word@"), SSL_CERT_FILE=f"{tmp_path}/authority.pem")
        client_context.cache_clear()
        await WAYS[way]("https://api.example")
        assert [head.split(b"\r\n")[0] for head in proxy.heads] == [b"CONNECT api.example:443 HTTP/1.1"]
        assert CREDENTIALS in proxy.heads[0]
        assert seen == ["api.example"]
        assert len(server.heads) == 2
        assert b"roxy-" not in server.heads[0]  # its credentials are the proxy's affair


async def test_a_proxy_can_be_spoken_to_by_tls(environ, tmp_path):
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "authority.pem")
    server = tls_server(forever, "api.example", authority=authority, name="127.0.0.1")
    outer = trustme_context(authority)
    async with server as server, forward_proxy(server, ssl=outer) as proxy:
        environ(https_proxy=proxy.url, SSL_CERT_FILE=f"{tmp_path}/authority.pem")
        client_context.cache_clear()
        await through_an_upstream("https://api.example")
        await through_a_tool("https://api.example")
        assert len(proxy.heads) == 2


def trustme_context(authority):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    return context


REFUSALS = {
    "407": b"HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\n\r\n",
    "403": b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n",
    "HTTP/1.1": b"SSH-2.0-OpenSSH_9.9\r\n\r\n",
    "HTTP/1.1 ": b"HTTP/1.1 200 OK\r\nx: " + b"x" * 70_000,
    "closed": b"HTTP/1.1 200",
}


@pytest.mark.parametrize("said", REFUSALS)
async def test_a_proxy_that_refuses_is_named_without_its_password(said, environ):
    async with forward_proxy(None, refuse=REFUSALS[said]) as proxy:
        environ(https_proxy=proxy.url.replace("//", f"//user:{PASSWORD}@"))
        with pytest.raises(httpx.ConnectError, match=said.strip()) as refusal:
            await through_an_upstream("https://api.example")
        assert f"{proxy.url} (https_proxy)" in str(refusal.value)
        assert PASSWORD not in str(refusal.value)


async def test_a_proxy_that_is_not_there_is_named_and_not_the_server(environ):
    environ(https_proxy=f"http://127.0.0.1:{free_port()}")
    text = 'upstreams: {up: {base_url: "https://api.example", api_key: k}}\nmodels: {m: {upstream: up}}'
    (finding,) = await probe(
        parse(text, {}).config, ProbeClients(app.http_client_for, app.tool_client, app.SystemClock())
    )
    assert finding.message.startswith("the proxy http://127.0.0.1:")
    assert "cannot be reached" in finding.message


async def test_the_credentials_that_a_proxy_wants_are_no_affair_of_the_client(environ):
    async with forward_proxy(None, refuse=REFUSALS["407"]) as proxy:
        environ(http_proxy=proxy.url)
        with pytest.raises(httpx.ConnectError, match="407"):
            await through_an_upstream("http://api.example")


async def test_a_handshake_that_fails_in_a_tunnel_costs_no_connection_for_good():
    stranger = tls_server(forever, "api.example", authority=trustme.CA(), name="127.0.0.1")
    async with stranger as server, forward_proxy(server) as proxy:
        found = Proxies.of({"https_proxy": proxy.url}).proxy_for("https://api.example")
        transport = ProxiedTransport(found, max_connections=1)
        try:
            for _ in range(3):
                with pytest.raises(httpx.ConnectError, match="certificate"):
                    await fetch(OursForHttpx(transport), "https://api.example/", timeouts={"pool": 2})
        finally:
            await transport.aclose()
        await proxy.until(lambda seen: seen.open == 0)


def test_check_says_which_way_requests_go(environ):
    text = """
upstreams:
  far: {base_url: "https://api.example/v1", api_key: k}
  near: {base_url: "http://localhost:8000/v1", api_key: k}
models: {m: {upstream: far}}
tools:
  search: {type: search, provider: brave, api_key: the-key-of-brave}
  page: {type: web_fetch}
telemetry: {otlp_endpoint: "https://traces.corp"}
"""
    loaded = parse(text, {})
    assert "proxy" not in "\n".join(describe(loaded, {}))
    environ(HTTPS_PROXY=f"http://user:{PASSWORD}@p.corp:3128", NO_PROXY="traces.corp")
    lines = describe(loaded, {})
    through, directly = "    through the proxy http://p.corp:3128 (HTTPS_PROXY)", "    directly, not through a proxy"
    following = {line.strip().split(":")[0]: after for line, after in pairwise(lines)}
    names = ("far", "near", "search", "page", "traces")
    assert [following[name] for name in names] == [through, directly, through, directly, directly]
    assert PASSWORD not in "\n".join(lines)
