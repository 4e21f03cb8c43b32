"""One upstream's HTTP: requests out, responses in, exceptions of httpx translated once."""

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from copy import copy
from typing import NoReturn

import httpx

from proxy.http.client import Headers, HttpClient
from proxy.http.connect import reason
from proxy.http.decode import decoded
from proxy.http.response import Handle, Response
from proxy.loop.errors import Overloaded, ProxyError, UpstreamError, UpstreamTimeout
from proxy.upstreams import failures

# Error bodies are read to tell the client what is wrong, and no further.
MAX_ERROR_BYTES = 64 * 1024
# A whole completion: the longest honest one is some 131,072 tokens of text, and a few images in base64.
MAX_ANSWER_BYTES = 64 * 1024 * 1024
# A redirect is no answer either: it would send the request, or its client, to a place that nobody configured.
_FIRST_BAD_STATUS, _FIRST_CLIENT_ERROR = 300, 400
_COMPLETIONS = "/chat/completions"
FOREIGN = (httpx.HTTPError, httpx.StreamError, httpx.InvalidURL)


class Connection:
    """The door to one upstream.

    Args:
        name: as in the configuration; the only thing that errors say about where the upstream is.
        client: sends its requests; closed by `aclose`.
        headers: that every request has.
        forward_headers: the names of those that requests have from the client's requests.
    """

    def __init__(
        self,
        name: str,
        client: HttpClient,
        *,
        headers: Mapping[str, str] | None = None,
        forward_headers: Sequence[str] = (),
    ) -> None:
        self.name = name
        self._client = client
        self._own = tuple((name.lower().encode(), value.encode()) for name, value in (headers or {}).items())
        self._forwards = frozenset(name.lower().encode() for name in forward_headers) - dict(self._own).keys()
        self._forwarded: Sequence[tuple[bytes, bytes]] = ()
        whole, stream = _completion_headers(b"application/json"), _completion_headers(b"text/event-stream")
        self._whole = client.prepare("POST", _COMPLETIONS, with_own(whole, self._own))
        self._stream = client.prepare("POST", _COMPLETIONS, with_own(stream, self._own))

    async def aclose(self) -> None:
        """Close every connection."""
        await self._client.aclose()

    def forwarding(self, client_headers: Sequence[tuple[bytes, bytes]]) -> "Connection":
        """The connection for one request, with those of its client's headers that go on; itself where there are none.

        Args:
            client_headers: of the request, names in lower case.
        """
        if not self._forwards:
            return self
        forwarded = [header for header in client_headers if header[0] in self._forwards]
        if not forwarded:
            return self
        connection = copy(self)
        connection._forward(forwarded)  # noqa: SLF001 - ours
        return connection

    def _forward(self, headers: Sequence[tuple[bytes, bytes]]) -> None:
        self._forwarded = headers
        self._whole = self._whole.with_headers(headers)
        self._stream = self._stream.with_headers(headers)

    async def whole(self, content: bytes, *, key: str) -> bytes:
        """The body of a whole completion.

        Raises:
            ProxyError: there is none, or the upstream says what is wrong.
        """
        response = await self.complete(content, key=key, stream=False)
        if (body := response.take_whole()) is not None:
            return body
        try:
            return await self.read_whole(response)
        finally:
            await response.aclose()

    async def complete(self, content: bytes, *, key: str, stream: bool) -> Response:
        """Ask for a completion; its body is decoded. The response has to be closed.

        Raises:
            ProxyError: there is no response, or the upstream says what is wrong.
        """
        try:
            response = await self._client.send(self._stream if stream else self._whole, content, key=key)
        except FOREIGN as exc:
            raise self.ours(exc) from exc
        if response.status >= _FIRST_BAD_STATUS:
            await self._refuse(response)
        return decoded(response)

    async def send(self, method: str, path: str, headers: Headers, content: bytes, *, key: str) -> Response:
        """Ask for anything else below the base URL; its body stays as it is. The response has to be closed.

        Raises:
            ProxyError: there is no response, or the upstream says what is wrong.
        """
        headers = with_own(with_own(headers, self._forwarded), self._own)
        try:
            response = await self._client.send(self._client.prepare(method, path, headers), content, key=key)
        except FOREIGN as exc:
            raise self.ours(exc) from exc
        if response.status >= _FIRST_BAD_STATUS:
            await self._refuse(response)
        return response

    async def read(self, response: Response) -> bytes:
        """What has come of the body; nothing at its end. Raises `UpstreamError` when it breaks off."""
        try:
            return await response.read()
        except FOREIGN as exc:
            raise self.ours(exc) from exc

    async def pump(self, response: Response, handle: Handle) -> None:
        """Give the body to `handle` as it comes, until it has enough or the body ends.

        Raises:
            UpstreamError: it breaks off.
            Exception: whatever `handle` raises.
        """
        try:
            await response.pump(handle)
        except (httpx.HTTPError, httpx.StreamError) as exc:
            raise self.ours(exc) from exc

    async def read_whole(self, response: Response) -> bytes:
        """The body at once. Raises `UpstreamError` when it breaks off or is too large."""
        parts: list[bytes] = []
        size = 0
        while part := await self.read(response):
            parts.append(part)
            size += len(part)
            if size > MAX_ANSWER_BYTES:
                raise UpstreamError(f"The upstream {self.name!r} sent more than {MAX_ANSWER_BYTES} bytes.")
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def _refuse(self, response: Response) -> NoReturn:
        """Raise what a response that is an error says, and close it."""
        async with aclosing(response):
            raise await self._failure(response)

    async def _failure(self, response: Response) -> ProxyError:
        """The error that a response stands for, going by its status."""
        if response.status < _FIRST_CLIENT_ERROR:
            message = f"The upstream {self.name!r} answered with a redirect, which is not followed."
            return UpstreamError(message, headers={"x-should-retry": "false"})
        body = bytearray()
        plain = decoded(response)
        try:
            while len(body) <= MAX_ERROR_BYTES and (part := await self.read(plain)):
                body += part
        except UpstreamError as exc:
            return exc
        return failures.from_response(response.status, httpx.Headers(response.headers), bytes(body[:MAX_ERROR_BYTES]))

    def ours(self, exc: Exception) -> ProxyError:
        """An exception of httpx as one of ours. What it says is for the log alone: it may hold addresses."""
        error = self._meaning(exc)
        error.why = reason(exc)
        if isinstance(error, UpstreamError):
            error.unreachable = isinstance(exc, httpx.ConnectError | httpx.ConnectTimeout)
        return error

    def _meaning(self, exc: Exception) -> ProxyError:
        match exc:
            case httpx.PoolTimeout():
                return Overloaded(f"All connections to the upstream {self.name!r} are in use.")
            case httpx.TimeoutException():
                return UpstreamTimeout(f"The upstream {self.name!r} did not {_doing(exc)} in time.")
            case httpx.ConnectError():
                return UpstreamError(f"The upstream {self.name!r} could not be reached.")
            case httpx.DecodingError():
                return UpstreamError(f"The upstream {self.name!r} sent what cannot be decoded: {exc}.")
            case _:
                return UpstreamError(f"The connection to the upstream {self.name!r} broke off.")


def _doing(timeout: httpx.TimeoutException) -> str:
    if isinstance(timeout, httpx.ConnectTimeout):
        return "accept the connection"
    return "take the request" if isinstance(timeout, httpx.WriteTimeout) else "answer"


def _completion_headers(accept: bytes) -> Headers:
    """The headers of a Chat Completions call: nothing of the client's goes on but its body.

    `identity`: a compressed stream would have to be unpacked, and 48 KB of it can become 50 MB.
    """
    return (
        (b"content-type", b"application/json"),
        (b"accept", accept),
        (b"accept-encoding", b"identity"),
        (b"user-agent", b"toolproxy"),
    )


def with_own(headers: Headers, own: Sequence[tuple[bytes, bytes]]) -> Headers:
    """Headers with `own` in the places of those that have the same names."""
    names = {name for name, _ in own}
    return (*(header for header in headers if header[0] not in names), *own)


def is_event_stream(response: Response) -> bool:
    """By prefix: Z.AI writes `text/event-stream;charset=UTF-8`."""
    return response.header(b"content-type").lower().startswith(b"text/event-stream")
