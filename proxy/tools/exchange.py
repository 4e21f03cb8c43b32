"""Sends one request to an HTTP service, and reads no more of its answer than is wanted."""

from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass, field

import httpx

from proxy import __version__
from proxy.http.client import ServiceClient
from proxy.http.decode import DecodedResponse
from proxy.loop.results import Blame

_SUCCESS = range(200, 300)
_HEADERS = {"accept": "*/*", "accept-encoding": "identity", "user-agent": f"toolproxy/{__version__}"}
_HEADERS_WITH_BODY = {**_HEADERS, "content-type": "application/json"}


@dataclass(frozen=True, slots=True)
class ServiceRequest:
    """The request of one call; `body`: JSON, or None."""

    method: str
    url: str
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)  # they may hold keys


@dataclass(frozen=True, slots=True)
class ServiceAnswer:
    """The answer to a request.

    Attributes:
        status: the HTTP status.
        headers: the headers, whose names are case-insensitive.
        body: the body, decompressed, up to the limit.
        whole: whether the body was read to its end.
    """

    status: int
    headers: httpx.Headers
    body: bytes
    whole: bool


async def send(client: ServiceClient, request: ServiceRequest, *, most: int) -> ServiceAnswer:
    """The answer to a request, with at most `most` bytes of its body, counted as they are decompressed.

    Redirects are not followed. The body of an error or a redirect that cannot be decompressed counts as empty.

    Raises:
        httpx.HTTPError: the service cannot be reached, or breaks off; `httpx.DecodingError`: its answer cannot be
            decompressed.
        httpx.InvalidURL: the address is too long.
    """
    given = {name.lower() for name in request.headers}
    defaults = _HEADERS if request.body is None else _HEADERS_WITH_BODY
    headers = httpx.Headers(
        {**{name: value for name, value in defaults.items() if name not in given}, **request.headers}
    )
    sent = await client.send(request.method, request.url, headers, request.body or b"")
    # Piece by piece, however much becomes of what arrives at once.
    async with aclosing(DecodedResponse(sent) if sent.header(b"content-encoding") else sent) as response:
        body = bytearray()
        try:
            while len(body) <= most and (part := await response.read()):
                body += part
        except httpx.DecodingError:
            if response.status in _SUCCESS:
                raise
            body.clear()
        return ServiceAnswer(
            response.status, httpx.Headers(response.headers), bytes(body[:most]), whole=len(body) <= most
        )


def blame_of(failure: httpx.HTTPError) -> Blame:
    """Whose fault a failure is: the service's if it cannot be connected to, as other calls will then fail too."""
    return "service" if isinstance(failure, (httpx.ConnectError, httpx.ConnectTimeout)) else "request"
