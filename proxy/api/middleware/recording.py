"""Records what each request meets, for the case of `/debug`, while `telemetry.log_content` is on.

The layer sees the response as the client gets it, and the request as the endpoint reads it. For that, the shortcuts of
the server past `receive` and `send` are closed (`api.exchange.CONNECTION`), so recorded requests cost more.
"""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from proxy.api.access import CALLER, TOOL_CALLS_LEFT
from proxy.api.exchange import CONNECTION
from proxy.api.ports import Cases
from proxy.paths import OPEN_PATHS
from proxy.ports import Clock
from proxy.recording.recording import CURRENT, Recording, note_timed

_PAGES = "/debug"
_LEFT = "the client left before its answer was complete"


class RecordRequests:
    """Records requests."""

    def __init__(self, app: ASGIApp, *, cases: Cases, clock: Clock) -> None:
        self._app = app
        self._cases = cases
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        if scope["path"] in OPEN_PATHS or scope["path"].startswith(_PAGES):
            await self._app(scope, receive, send)
            return
        recording = Recording(began_at=self._clock.time(), reserve=self._cases.reserve)
        recording.method, recording.headers = scope["method"], scope["headers"]
        query = scope["query_string"].decode("latin-1")
        recording.target = scope["path"] + (f"?{query}" if query else "")
        scope["extensions"] = {name: held for name, held in scope.get("extensions", {}).items() if name != CONNECTION}
        exchange = _Exchange(recording, receive, send)
        before = CURRENT.set(recording)
        try:
            await self._app(scope, exchange.receive, exchange.send)
        finally:
            CURRENT.reset(before)
            recording.scope = {"caller": scope.get(CALLER), "tool_calls_left": scope.get(TOOL_CALLS_LEFT)}
            self._cases.keep(recording)


class _Exchange:
    """`receive` and `send` of a request, which record what passes."""

    def __init__(self, recording: Recording, receive: Receive, send: Send) -> None:
        self._recording = recording
        self._receive = receive
        self._send = send
        self._is_complete = False

    async def receive(self) -> Message:
        message = await self._receive()
        recording = self._recording
        if message["type"] == "http.disconnect":
            if not self._is_complete:
                note_timed(_LEFT)
        elif body := message.get("body"):
            recording.add(recording.body, body)
        return message

    async def send(self, message: Message) -> None:
        recording = self._recording
        if message["type"] == "http.response.start":
            recording.status, recording.answer_headers = message["status"], message["headers"]
            ids = [value for name, value in message["headers"] if name == b"x-request-id"]
            recording.request_id = ids[0].decode("latin-1") if ids else ""
        else:
            if body := message.get("body"):
                recording.add(recording.answer, body)
            self._is_complete = not message.get("more_body", False)
        await self._send(message)
