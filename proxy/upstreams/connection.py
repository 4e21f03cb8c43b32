"""One upstream's HTTP: requests out, responses in, foreign exceptions translated once.

Speaks to the httpx transport itself, not to an `AsyncClient`: a client would add a cookie jar that two tenants share,
environment proxies, redirects, and as much CPU again as the call.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress

import httpx

from proxy.config import UpstreamConfig
from proxy.core.errors import Overloaded, ProxyError, UpstreamError, UpstreamTimeout
from proxy.core.inflate import Inflate
from proxy.upstreams import failures

Headers = Iterable[tuple[bytes, bytes]]

# Error bodies are read to tell the client what is wrong, and no further.
MAX_ERROR_BYTES = 64 * 1024
# A whole completion: the longest honest one is some 131,072 tokens of text, and a few images in base64.
MAX_ANSWER_BYTES = 64 * 1024 * 1024
# A redirect is no answer either: it would send the request, or its client, to a place that nobody configured.
_FIRST_BAD_STATUS, _FIRST_CLIENT_ERROR = 300, 400


class Connection:
    """The door to one upstream.

    Args:
        name: as in the configuration; the only thing that errors say about where the upstream is.
        config: its entry.
        transport: carries the requests; shared by all of them, closed by `aclose`.
    """

    def __init__(self, name: str, config: UpstreamConfig, transport: httpx.AsyncBaseTransport) -> None:
        self.name = name
        self._base = config.base_url.rstrip("/")
        self._transport = transport
        timeouts = config.timeouts
        self._extensions = {
            "timeout": {
                "connect": timeouts.connect,
                "read": timeouts.read,
                "write": timeouts.write,
                "pool": timeouts.pool,
            }
        }

    async def aclose(self) -> None:
        """Close every connection."""
        await self._transport.aclose()

    @asynccontextmanager
    async def open(self, method: str, path: str, headers: Headers, content: bytes) -> AsyncIterator[httpx.Response]:
        """One request, one response, whatever its status; the body is read inside the `with`.

        Raises:
            UpstreamError: no response, or one that broke off while it was read.
        """
        with self._translated():
            url = httpx.URL(self._base + path)
            request = httpx.Request(method, url, headers=list(headers), content=content, extensions=self._extensions)
            response = await self._transport.handle_async_request(request)
        try:
            yield response
        finally:
            with suppress(httpx.HTTPError):
                await response.aclose()

    @asynccontextmanager
    async def open_good(
        self, method: str, path: str, headers: Headers, content: bytes
    ) -> AsyncIterator[httpx.Response]:
        """The same, for a response that is no error.

        Raises:
            ProxyError: what the upstream says is wrong.
        """
        async with self.open(method, path, headers, content) as response:
            failure = await self.failure(response)
            if failure is not None:
                raise failure
            yield response

    async def failure(self, response: httpx.Response) -> ProxyError | None:
        """The error that a response stands for, going by its status; None for a success."""
        if response.status_code < _FIRST_BAD_STATUS:
            return None
        if response.status_code < _FIRST_CLIENT_ERROR:
            message = f"The upstream {self.name!r} answered with a redirect, which is not followed."
            return UpstreamError(message, headers={"x-should-retry": "false"})
        body = bytearray()
        try:
            async for data in self.read(response):
                body += data
                if len(body) > MAX_ERROR_BYTES:
                    break
        except UpstreamError as exc:
            return exc
        return failures.from_response(response.status_code, response.headers, bytes(body[:MAX_ERROR_BYTES]))

    async def read(self, response: httpx.Response) -> AsyncGenerator[bytes, None]:
        """The body as it comes, decoded, in pieces. Raises `UpstreamError` when it breaks off."""
        with self._translated():
            inflate = Inflate(response.headers.get("content-encoding", ""))
            async for data in response.aiter_raw():
                for piece in inflate.feed(data):
                    yield piece
            inflate.close()

    async def read_raw(self, response: httpx.Response) -> AsyncGenerator[bytes, None]:
        """The body as it comes, still encoded as its headers say. Raises `UpstreamError` when it breaks off."""
        with self._translated():
            async for data in response.aiter_raw():
                yield data

    async def read_whole(self, response: httpx.Response) -> bytes:
        """The body at once. Raises `UpstreamError` when it breaks off or is too large."""
        parts: list[bytes] = []
        size = 0
        async for data in self.read(response):
            parts.append(data)
            size += len(data)
            if size > MAX_ANSWER_BYTES:
                raise UpstreamError(f"The upstream {self.name!r} sent more than {MAX_ANSWER_BYTES} bytes.")
        return b"".join(parts)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Exceptions of httpx as ours. What they say stays in the log: it may hold addresses."""
        try:
            yield
        except httpx.PoolTimeout as exc:
            raise Overloaded(f"All connections to the upstream {self.name!r} are in use.") from exc
        except httpx.TimeoutException as exc:
            raise UpstreamTimeout(f"The upstream {self.name!r} did not {_doing(exc)} in time.") from exc
        except httpx.ConnectError as exc:
            raise UpstreamError(f"The upstream {self.name!r} could not be reached.") from exc
        except (httpx.HTTPError, httpx.StreamError, httpx.InvalidURL) as exc:
            raise UpstreamError(f"The connection to the upstream {self.name!r} broke off.") from exc
        except ValueError as exc:
            raise UpstreamError(f"The upstream {self.name!r} sent what cannot be decoded: {exc}.") from exc


def _doing(timeout: httpx.TimeoutException) -> str:
    if isinstance(timeout, httpx.ConnectTimeout):
        return "accept the connection"
    return "take the request" if isinstance(timeout, httpx.WriteTimeout) else "answer"


def request_headers(api_key: str, *, stream: bool) -> list[tuple[bytes, bytes]]:
    """The headers of a Chat Completions call: nothing of the client's goes on but its body.

    `identity`: a compressed stream would have to be unpacked, and 48 KB of it can become 50 MB.
    """
    return [
        (b"authorization", b"Bearer " + api_key.encode()),
        (b"content-type", b"application/json"),
        (b"accept", b"text/event-stream" if stream else b"application/json"),
        (b"accept-encoding", b"identity"),
        (b"user-agent", b"toolproxy"),
    ]


def is_event_stream(headers: Mapping[str, str]) -> bool:
    """By prefix: Z.AI writes `text/event-stream;charset=UTF-8`."""
    return headers.get("content-type", "").lower().startswith("text/event-stream")
