"""Whom TLS trusts, wherever the proxy connects to: real servers with certificates of the test's own authorities."""

import ssl
from contextlib import aclosing

import httpx
import httpx2
import pytest
import trustme

from proxy import app
from proxy.config.model import UpstreamConfig
from proxy.http.client import BearerKey
from proxy.http.connect import client_context
from proxy.loop.results import ToolError
from proxy.tools.exchange import ServiceRequest, send
from proxy.tools.kinds.mcp.transport import SessionTransport
from proxy.tools.kinds.web_fetch import WebFetchConfig, web_fetch_tool
from proxy.tools.tool_type import Resources
from tests.fakes import FakeClock
from tests.http.rawserver import forever
from tests.http.test_transport_tls import tls_server

NOT_TRUSTED = "certificate verify failed|no valid certificate"


@pytest.fixture
def trusted(tmp_path, monkeypatch):
    """Trust one authority, as an operator does."""

    def trust_in(authority):
        file = tmp_path / "authority.pem"
        authority.cert_pem.write_to_path(file)
        monkeypatch.setenv("SSL_CERT_FILE", str(file))
        client_context.cache_clear()

    yield trust_in
    monkeypatch.undo()
    client_context.cache_clear()


async def through_an_upstream(transport, url):
    client = app.http_client_for(UpstreamConfig(base_url=url, api_key="k", transport=transport))
    try:
        await (await client.send(client.prepare("GET", "/", ()), b"", BearerKey("k"))).aclose()
    finally:
        await client.aclose()


async def through_a_tool(url):
    async with aclosing(app.tool_client()) as client:
        await send(client, ServiceRequest("GET", url), most=10)


async def through_mcp(url):
    async with httpx2.AsyncClient(transport=SessionTransport(), trust_env=False) as client:
        await client.get(url)


async def through_a_reader(url):
    config = WebFetchConfig(allow_hosts=("localhost",), respect_robots=False)
    await web_fetch_tool("fetch", config, Resources(client=None, clock=FakeClock())).run({"url": url})


WAYS = {
    "an upstream": lambda url: through_an_upstream("auto", url),
    "an upstream by httpx": lambda url: through_an_upstream("httpx", url),
    "a tool": through_a_tool,
    "an MCP server": through_mcp,
    "a page": through_a_reader,
}


@pytest.mark.parametrize("way", WAYS)
async def test_an_authority_of_ones_own_is_trusted_everywhere_and_no_other(way, trusted):
    ours, strangers = trustme.CA(), trustme.CA()
    async with tls_server(forever, authority=ours) as server:
        trusted(ours)
        await WAYS[way](server.url)
        assert server.heads
        asked = len(server.heads)
        trusted(strangers)
        with pytest.raises((httpx.ConnectError, httpx2.ConnectError, ToolError), match=NOT_TRUSTED):
            await WAYS[way](server.url)
        assert len(server.heads) == asked


def test_certificates_and_names_are_verified():
    context = client_context()
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname


def test_where_the_system_trusts_nobody_mozillas_list_is_used(monkeypatch):
    nothing = ssl.get_default_verify_paths()._replace(cafile=None, capath=None)
    monkeypatch.setattr(ssl, "get_default_verify_paths", lambda: nothing)
    context = client_context.__wrapped__()
    assert context.cert_store_stats()["x509_ca"] > 50
