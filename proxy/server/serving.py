"""Serves an application on loopback for a while, in the event loop of the caller."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from starlette.types import ASGIApp

from proxy.server.graceful import Server
from proxy.server.listener import address_of, listen


@asynccontextmanager
async def serving(app: ASGIApp, *, lifespan: str, port: int = 0) -> AsyncIterator[str]:
    """Serve an app on loopback, in this event loop, and yield its URL. Port 0 is any free port.

    Raises:
        ConfigurationError: the port is taken.
    """
    listener = listen("127.0.0.1", port)
    settings = uvicorn.Config(app, log_config=None, access_log=False, lifespan=lifespan)  # type: ignore[arg-type]
    started = asyncio.Event()
    running = Server(settings, ready=started.set)
    try:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(running.serve([listener]))
            await started.wait()
            try:
                yield address_of(listener)
            finally:
                running.should_exit = True
                await asyncio.wait({task})
    except ExceptionGroup as failures:  # of the server, or of the body of the `with` statement
        raise failures.exceptions[0] from failures
