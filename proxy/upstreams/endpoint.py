"""The HTTP of one upstream: adds its headers to requests, and raises its error responses and failures as our errors."""

from collections.abc import Awaitable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import UTC, timezone
from functools import partial
from typing import NoReturn

import httpx

from proxy.config.keys import FROM_CLIENT
from proxy.config.model import UpstreamConfig, keys_of
from proxy.http.client import BearerKey, HttpClient, PreparedRequest
from proxy.http.connect import reason
from proxy.http.decode import DecodedResponse
from proxy.http.response import Response
from proxy.keys.pool import KeyPool
from proxy.kit.beside import beside
from proxy.kit.sent import Sent
from proxy.recording.recorded import recorded
from proxy.recording.recording import CURRENT, Recording
from proxy.upstreams import failures
from proxy.upstreams.profile import PROFILES
from proxy.wire.errors import InvalidApiKey, Overloaded, ProxyError, UpstreamError, UpstreamTimeout
from proxy.wire.relayed import Headers

# Enough of an error's body to hold its message.
MAX_ERROR_BYTES = 64 * 1024
# For a whole completion: the longest legitimate one has some 131,072 tokens of text, and a few images in base64. To
# parse it is one call into C, during which nothing else runs: some 60 ms for this much.
MAX_ANSWER_BYTES = 32 * 1024 * 1024
# A redirect is an error as well: it would send the request, or the client, to an address that is not configured.
_FIRST_BAD_STATUS = 300
_COMPLETIONS = "/chat/completions"
# Of the client's request only the body is passed on. `identity`, because a compressed stream would have to be
# decompressed, and 48 KB can become 50 MB.
_COMPLETION_HEADERS = (
    (b"content-type", b"application/json"),
    (b"accept-encoding", b"identity"),
    (b"user-agent", b"toolproxy"),
)
FOREIGN = (httpx.HTTPError, httpx.StreamError, httpx.InvalidURL)
# Exceptions of httpx, the first that fits -> our error and its message.
_MEANINGS: Sequence[tuple[type[Exception], type[ProxyError], str]] = (
    (httpx.PoolTimeout, Overloaded, "All connections to the upstream {name!r} are in use."),
    (httpx.ConnectTimeout, UpstreamTimeout, "The upstream {name!r} did not accept the connection in time."),
    (httpx.WriteTimeout, UpstreamTimeout, "The upstream {name!r} did not take the request in time."),
    (httpx.TimeoutException, UpstreamTimeout, "The upstream {name!r} did not answer in time."),
    (httpx.ConnectError, UpstreamError, "The upstream {name!r} could not be reached."),
    (httpx.DecodingError, UpstreamError, "The upstream {name!r} sent an answer that cannot be decoded: {exc}."),
    (Exception, UpstreamError, "The connection to the upstream {name!r} broke off."),
)


@dataclass(frozen=True, slots=True, eq=False, repr=False)  # no repr: headers may hold secrets
class Endpoint:
    """The endpoint of one upstream. Every method raises `ProxyError` for a failure there.

    Attributes:
        name: the upstream's name in the configuration; errors reveal nothing else of where the upstream is.
        client: sends the requests; closed by its owner.
        credential: proves who sends them.
        headers: added to every request, in place of any of the same names.
        forwards: the names of the headers that are copied from our clients' requests.
        whole: a request for a completion that is not streamed.
        stream: a request for a stream.
        secrets: other keys, and values in the configured headers, that no error may quote.
        keys: the keys, one of which becomes the `credential` of each call; None: there is only one.
        forwarded: the headers of one client's request that are copied.
        zone: of the times in its errors that name none.
    """

    name: str
    client: HttpClient
    credential: BearerKey
    headers: Headers
    forwards: frozenset[bytes]
    whole: PreparedRequest
    stream: PreparedRequest
    secrets: tuple[str, ...] = ()
    keys: KeyPool | None = None
    forwarded: Headers = ()
    zone: timezone = UTC

    @classmethod
    def of(cls, name: str, client: HttpClient, config: UpstreamConfig, keys: KeyPool | None = None) -> "Endpoint":
        """The endpoint that `client` sends to. The clients' own keys are still missing (`for_client`)."""
        uses_client_key = config.api_key == FROM_CLIENT
        first, *others = [*keys_of(config.api_key).values()] or [""]
        credential = BearerKey("" if uses_client_key else first, uses_client_key=uses_client_key)
        added = tuple((name.lower().encode(), value.encode()) for name, value in config.headers.items())
        in_headers = [part for value in config.headers.values() for part in (value, *value.split())]
        forwards = frozenset(name.lower().encode() for name in config.forward_headers) - dict(added).keys()
        zone = PROFILES[config.profile].zone
        whole, stream = (
            client.prepare("POST", _COMPLETIONS, overridden((*_COMPLETION_HEADERS, (b"accept", accept)), added))
            for accept in (b"application/json", b"text/event-stream")
        )
        secrets = (*others, *in_headers)
        return cls(name, client, credential, added, forwards, whole, stream, secrets, keys, zone=zone)

    def for_client(self, key: str | None, headers: Headers) -> "Endpoint":
        """This endpoint for one client's request, with the key and headers that it sends on.

        Args:
            key: the client's key.
            headers: of the client's request, names in lower case.

        Raises:
            InvalidApiKey: the client's own key is needed, and it has none.
        """
        credential = self.credential
        if credential.uses_client_key:
            if not key:
                raise InvalidApiKey
            credential = BearerKey(key, uses_client_key=True)
        forwarded = [header for header in headers if header[0] in self.forwards]
        whole, stream = self.whole.with_headers(forwarded), self.stream.with_headers(forwarded)
        return replace(self, credential=credential, whole=whole, stream=stream, forwarded=forwarded)

    async def respond(self, request: PreparedRequest, content: bytes, *, path: str | None = None) -> Response:
        """The response to a request, which has to be closed.

        Args:
            request: `whole`, `stream`, or a request to another path.
            content: the body of the request.
            path: the other path, whose response has its body as received; None: a completion, which is decompressed.
        """
        try:
            sending = self.client.send(request, content, self.credential)
            if (recording := CURRENT.get()) is not None:
                sending = self._recorded(recording, request, content, sending)
            response = await sending
        except FOREIGN as exc:
            raise self.translated(exc) from exc
        if response.status >= _FIRST_BAD_STATUS:
            await self._raise_failure(response, content, path)
        return DecodedResponse(response) if path is None and response.header(b"content-encoding") else response

    async def send(self, method: str, path: str, headers: Headers, content: bytes) -> Response:
        """The response to any other request below the base URL, with its body as received. It has to be closed."""
        headers = overridden(overridden(headers, self.forwarded), self.headers)
        try:
            request = self.client.prepare(method, path, headers)
        except FOREIGN as exc:
            raise self.translated(exc) from exc
        return await self.respond(request, content, path=path)

    def _recorded(
        self, recording: Recording, request: PreparedRequest, content: bytes, sending: Awaitable[Response]
    ) -> Awaitable[Response]:
        """The response to a request that is being sent, in the recording of the client's request."""
        if self.keys is not None and not recording.knows(self.name):
            recording.keys[self.name] = max(1, self.keys.states().count("usable"))
        call = recording.call(self.name, request.target.decode("latin-1"), content)
        return recorded(recording, call, sending)

    async def read(self, response: Response) -> bytes:
        """The next part of a body; empty at the end."""
        try:
            return await response.read()
        except FOREIGN as exc:
            raise self.translated(exc) from exc

    async def read_whole(self, response: Response, begin: bytes = b"") -> bytes:
        """A whole body, of at most `MAX_ANSWER_BYTES`, of which `begin` was read before."""
        parts = [begin] if begin else []
        size = len(begin)
        while part := await self.read(response):
            parts.append(part)
            size += len(part)
            if size > MAX_ANSWER_BYTES:
                raise UpstreamError(f"The upstream {self.name!r} sent more than {MAX_ANSWER_BYTES} bytes.")
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def sent(self, *parts: bytes) -> Sent:
        """A request of these parts, as far as a client has chosen it."""
        return Sent(*parts, *(value for _, value in self.forwarded))

    async def _raise_failure(self, response: Response, content: bytes, path: str | None) -> NoReturn:
        """Raise a response with an error status as an error, and close the response; the rest is as in `respond`."""
        async with aclosing(DecodedResponse(response)) as plain:
            if response.status < failures.FIRST_CLIENT_ERROR:
                message = f"The upstream {self.name!r} answered with a redirect, which is not followed."
                raise UpstreamError(message, headers={"x-should-retry": "false"})
            body = bytearray()
            while len(body) <= MAX_ERROR_BYTES and (part := await self.read(plain)):
                body += part
        body = body[:MAX_ERROR_BYTES]
        headers = httpx.Headers(response.headers)
        sent = self.sent(content) if path is None else self.sent(content, path.encode())
        read = partial(failures.from_response, response.status, headers, bytes(body), sent=sent, zone=self.zone)
        failure = await beside(sent.size, read)
        if path is None and failures.knows_no_path(failure):  # every upstream has to know that of completions
            failure.message = (
                f"The upstream {self.name!r} answered 404 to POST ...{_COMPLETIONS}: is its base_url right?"
            )
            failure.why = f"POST {self.client.base_url}{_COMPLETIONS}"
        raise failure

    def translated(self, exc: Exception) -> ProxyError:
        """An exception of httpx as one of ours. Only the log gets the original message, which may hold addresses."""
        kind, message = next((kind, message) for foreign, kind, message in _MEANINGS if isinstance(exc, foreign))
        error = kind(message.format(name=self.name, exc=exc))
        error.why = reason(exc)
        if isinstance(error, UpstreamError):
            error.unreachable = isinstance(exc, (httpx.ConnectError, httpx.ConnectTimeout))
        return error


def overridden(headers: Headers, by: Headers) -> Headers:
    """The headers, with those of `by` in place of any of the same names."""
    names = {name for name, _ in by}
    return (*(header for header in headers if header[0] not in names), *by)
