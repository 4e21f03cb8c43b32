"""`GET /metrics`: Prometheus' text format, without a key."""

import asyncio
from functools import partial

from starlette.types import Receive, Scope, Send

from proxy.api.replies import send_bytes
from proxy.ports import Scrape

_CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """The endpoint, as an ASGI callable."""

    def __init__(self, scrape: Scrape) -> None:
        self._scrape = scrape

    async def __call__(self, _: Scope, __: Receive, send: Send) -> None:
        """ASGI."""
        tasks = partial(asyncio.all_tasks, asyncio.get_running_loop())
        text = await asyncio.to_thread(self._scrape, tasks)  # with many of either it takes milliseconds: streams go on
        await send_bytes(send, 200, ((b"content-type", _CONTENT_TYPE),), text)
