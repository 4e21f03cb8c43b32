"""Records calls of upstreams, piece by piece, and what a request finds in the state store."""

from collections.abc import Awaitable

import httpx

from proxy.http.response import Handle, Response
from proxy.ports import ClientStore
from proxy.recording.recording import CURRENT, Recording, UpstreamCall


class RecordedResponse(Response):
    """A response whose body is recorded as it is read."""

    __slots__ = ("_call", "_recording", "_response")

    def __init__(self, response: Response, recording: Recording, call: UpstreamCall) -> None:
        self.status, self.headers = response.status, response.headers
        self._response = response
        self._recording = recording
        self._call = call

    def take_whole(self) -> bytes | None:
        """The rest of the body, if all of it has arrived."""
        data = self._response.take_whole()
        if data is not None:
            self._take(data)
            self._call.has_ended = True
        return data

    async def read(self) -> bytes:
        """The next part of the body; empty at its end."""
        try:
            data = await self._response.read()
        except httpx.HTTPError as exc:
            self._call.fail(type(exc).__name__)
            raise
        if data:
            self._take(data)
        else:
            self._call.has_ended = True
        return data

    async def pump(self, handle: Handle) -> None:
        """Give the body to `handle` as it comes."""
        enough = False

        async def take(data: bytes) -> bool:
            nonlocal enough
            self._take(data)
            return (enough := await handle(data))

        try:
            await self._response.pump(take)
        except httpx.HTTPError as exc:
            self._call.fail(type(exc).__name__)
            raise
        if not enough:
            self._call.has_ended = True

    def end_within(self, seconds: float) -> None:
        """Read for at most `seconds` more."""
        self._response.end_within(seconds)

    async def aclose(self) -> None:
        """Discard the rest of the body."""
        await self._response.aclose()

    def _take(self, data: bytes) -> None:
        self._recording.add(self._call.pieces, data)


async def recorded(recording: Recording, call: UpstreamCall, sending: Awaitable[Response]) -> Response:
    """The response to a call that is being sent. It is recorded from now on."""
    try:
        response = await sending
    except httpx.HTTPError as exc:
        call.fail(type(exc).__name__)
        raise
    call.status, call.headers = response.status, response.headers
    return RecordedResponse(response, recording, call)


class RecordedStore:
    """A store whose entries are recorded as a request finds them. Implements `ports.ClientStore`."""

    def __init__(self, store: ClientStore) -> None:
        self._store = store
        self.put = store.put
        self.renew = store.renew
        self.delete = store.delete

    async def get(self, owner: str, key: str) -> bytes | None:
        """The value of `key`; None if there is none."""
        value = await self._store.get(owner, key)
        if (recording := CURRENT.get()) is not None:
            recording.found(key, value)
        return value
