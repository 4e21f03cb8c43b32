"""Real servers on loopback, in the test's own event loop."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn

from proxy.app import create_app
from proxy.app.configuration import parse
from proxy.config.loaded import Loaded
from proxy.server.listener import address_of, listen
from proxy.server.process import uvicorn_config
from tests.fakes import FakeUpstream

CONFIG = """
upstreams:
  up: {{base_url: {upstream}/v1, api_key: upstream-secret, profile: openai, retries: 0}}
models:
  m: {{upstream: up}}
  alias: {{upstream: up, model: the/real-name}}
tools:
  web_search: {{type: serper, api_key: serper-secret, base_url: {upstream}, aliases: [webSearch, browser.search]}}
{more}
"""


@asynccontextmanager
async def serving(app, *, lifespan="on", port=0) -> AsyncIterator[str]:
    """Serve an ASGI application as uvicorn does by itself, on a free port unless one is given.

    Idle connections are kept for a minute, not five seconds: where a test runs slowly, one could end while a request is
    on its way to it.
    """
    config = uvicorn.Config(app, log_config=None, access_log=False, lifespan=lifespan, timeout_keep_alive=60)
    async with serving_of(config, port=port) as url:
        yield url


@asynccontextmanager
async def serving_as_shipped(loaded: Loaded, **app) -> AsyncIterator[str]:
    """Serve the proxy on a free port, over the wire protocol that `toolproxy serve` speaks."""
    async with serving_of(uvicorn_config(loaded.config, create_app(loaded, **app))) as url:
        yield url


@asynccontextmanager
async def serving_of(config: uvicorn.Config, *, port=0) -> AsyncIterator[str]:
    listener = listen("127.0.0.1", port)
    config.load()
    running = uvicorn.Server(config)
    running.lifespan = config.lifespan_class(config)
    await running.startup([listener])
    try:
        yield address_of(listener)
    finally:  # what uvicorn does to stop, without its waits of a tenth of a second
        for listening in running.servers:
            listening.close()
        for connection in list(running.server_state.connections):
            connection.shutdown()
        for task in running.server_state.tasks:
            task.cancel()
        await asyncio.gather(*running.server_state.tasks, return_exceptions=True)
        await running.lifespan.shutdown()


@asynccontextmanager
async def proxy_of(upstream: FakeUpstream, *, more: str = "", config: str = CONFIG, **app) -> AsyncIterator[str]:
    """The proxy in front of a fake upstream, which is the search service too; yields the proxy's URL."""
    async with serving(upstream, lifespan="off") as upstream_url:
        text = config.format(upstream=upstream_url, more=more)
        async with serving_as_shipped(parse(text, {}), **app) as url:
            yield url
