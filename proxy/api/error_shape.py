"""The shape in which an API writes its errors."""

from collections.abc import Callable, Mapping
from operator import attrgetter

from msgspec import Struct

from proxy.wire import sse
from proxy.wire.chat import Json
from proxy.wire.errors import ProxyError


class ErrorShape(Struct, frozen=True):
    """The shape in which an API writes its errors; OpenAI's unless something else is given.

    Attributes:
        envelope: the body of an error, from the error and the id of the request.
        status_of: the HTTP status of an error.
        id_header: the header of a response with the id of the request, beside `x-request-id`; empty: there is none.
        event: the line in front of an error in a stream.
    """

    envelope: Callable[[ProxyError, str], Json] = lambda error, _: error.envelope()
    status_of: Callable[[ProxyError], int] = attrgetter("status")
    id_header: str = ""
    event: bytes = b""

    def headers(self, error: ProxyError, request_id: str) -> Mapping[str, str]:
        """The headers of an error."""
        return {**error.headers, self.id_header: request_id} if self.id_header else error.headers

    def last_event(self, error: ProxyError, request_id: str) -> bytes:
        """The end of a stream that fails."""
        return self.event + sse.encode(self.envelope(error, request_id))
