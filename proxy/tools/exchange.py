"""Sends one request to an HTTP service, and reads no more of its answer than is wanted."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import httpx

from proxy.http.decode import inflated
from proxy.loop.results import Blame


@dataclass(frozen=True, slots=True)
class Request:
    """The request of one call; `body`: JSON, or None."""

    method: str
    url: str
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)  # they may hold keys


@dataclass(frozen=True, slots=True)
class Answer:
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


async def send(client: httpx.AsyncClient, request: Request, *, most: int) -> Answer:
    """The answer to a request, with at most `most` bytes of its body, counted as they are decompressed.

    Redirects are not followed. The body of an error or a redirect that cannot be decompressed counts as empty.

    Raises:
        httpx.HTTPError: the service cannot be reached, or breaks off; `httpx.DecodingError`: its answer cannot be
            decompressed.
        httpx.InvalidURL: the address is too long.
    """
    headers = httpx.Headers({"accept-encoding": "identity"})
    headers.update(request.headers)
    if request.body is not None:
        headers.setdefault("content-type", "application/json")
    async with client.stream(request.method, request.url, content=request.body, headers=headers) as response:
        coding, stream = response.headers.get("content-encoding", ""), response.stream
        assert isinstance(stream, httpx.AsyncByteStream)  # noqa: S101 - for the type checker: we are asynchronous
        try:  # not by `aiter_bytes`, which decompresses whatever arrives at once, however much that becomes
            body = await inflated(stream, coding, most=most)
        except ValueError as exc:
            if response.is_success:
                raise httpx.DecodingError(str(exc)) from exc
            body = b""
        return Answer(response.status_code, response.headers, body[:most], whole=len(body) <= most)


def blame_of(failure: httpx.HTTPError) -> Blame:
    """Whose fault a failure is: the service's if it cannot be connected to, as other calls will then fail too."""
    return "service" if isinstance(failure, (httpx.ConnectError, httpx.ConnectTimeout)) else "request"
