"""One upstream's HTTP: requests out, replies in, foreign exceptions translated once."""

from contextlib import aclosing
from typing import NoReturn

import httpx

from proxy.core.errors import Overloaded, ProxyError, UpstreamError, UpstreamTimeout, reason
from proxy.upstreams import failures
from proxy.upstreams.http1 import Handle
from proxy.upstreams.http_client import Headers, HttpClient, Reply, decoded, header

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
    """

    def __init__(self, name: str, client: HttpClient) -> None:
        self.name = name
        self._client = client
        self._whole = client.prepare("POST", _COMPLETIONS, _completion_headers(b"application/json"))
        self._stream = client.prepare("POST", _COMPLETIONS, _completion_headers(b"text/event-stream"))

    async def aclose(self) -> None:
        """Close every connection."""
        await self._client.aclose()

    async def whole(self, content: bytes, *, key: str) -> bytes:
        """The body of a whole completion.

        Raises:
            ProxyError: there is none, or the upstream says what is wrong.
        """
        reply = await self.complete(content, key=key, stream=False)
        if (body := reply.take_whole()) is not None:
            return body
        try:
            return await self.read_whole(reply)
        finally:
            await reply.aclose()

    async def complete(self, content: bytes, *, key: str, stream: bool) -> Reply:
        """Ask for a completion; its body is decoded. The reply has to be closed.

        Raises:
            ProxyError: there is no reply, or the upstream says what is wrong.
        """
        try:
            reply = await (self._stream if stream else self._whole).send(content, key=key)
        except FOREIGN as exc:
            raise self.ours(exc) from exc
        if reply.status >= _FIRST_BAD_STATUS:
            await self._refuse(reply)
        return decoded(reply)

    async def send(self, method: str, path: str, headers: Headers, content: bytes, *, key: str) -> Reply:
        """Ask for anything else below the base URL; its body stays as it is. The reply has to be closed.

        Raises:
            ProxyError: there is no reply, or the upstream says what is wrong.
        """
        try:
            reply = await self._client.prepare(method, path, headers).send(content, key=key)
        except FOREIGN as exc:
            raise self.ours(exc) from exc
        if reply.status >= _FIRST_BAD_STATUS:
            await self._refuse(reply)
        return reply

    async def read(self, reply: Reply) -> bytes:
        """What has come of the body; nothing at its end. Raises `UpstreamError` when it breaks off."""
        try:
            return await reply.read()
        except FOREIGN as exc:
            raise self.ours(exc) from exc

    async def pump(self, reply: Reply, handle: Handle) -> None:
        """Give the body to `handle` as it comes, until it has enough or the body ends.

        Raises:
            UpstreamError: it breaks off.
            Exception: whatever `handle` raises.
        """
        try:
            await reply.pump(handle)
        except (httpx.HTTPError, httpx.StreamError) as exc:
            raise self.ours(exc) from exc

    async def read_whole(self, reply: Reply) -> bytes:
        """The body at once. Raises `UpstreamError` when it breaks off or is too large."""
        parts: list[bytes] = []
        size = 0
        while part := await self.read(reply):
            parts.append(part)
            size += len(part)
            if size > MAX_ANSWER_BYTES:
                raise UpstreamError(f"The upstream {self.name!r} sent more than {MAX_ANSWER_BYTES} bytes.")
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def _refuse(self, reply: Reply) -> NoReturn:
        """Raise what a reply that is an error says, and close it."""
        async with aclosing(reply):
            raise await self._failure(reply)

    async def _failure(self, reply: Reply) -> ProxyError:
        """The error that a reply stands for, going by its status."""
        if reply.status < _FIRST_CLIENT_ERROR:
            message = f"The upstream {self.name!r} answered with a redirect, which is not followed."
            return UpstreamError(message, headers={"x-should-retry": "false"})
        body = bytearray()
        plain = decoded(reply)
        try:
            while len(body) <= MAX_ERROR_BYTES and (part := await self.read(plain)):
                body += part
        except UpstreamError as exc:
            return exc
        return failures.from_response(reply.status, httpx.Headers(reply.headers), bytes(body[:MAX_ERROR_BYTES]))

    def ours(self, exc: Exception) -> ProxyError:
        """An exception of httpx as one of ours. What it says is for the log alone: it may hold addresses."""
        error = self._meaning(exc)
        error.why = reason(exc)
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


def is_event_stream(reply: Reply) -> bool:
    """By prefix: Z.AI writes `text/event-stream;charset=UTF-8`."""
    return header(reply, b"content-type").lower().startswith(b"text/event-stream")
