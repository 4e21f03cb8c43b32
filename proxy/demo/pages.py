"""The pages that the demo's scripted search finds, which are served on loopback so that the proxy can read them."""

from collections.abc import Mapping
from typing import Final, TypeVar

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

_WEATHER: Final = """<!doctype html><html><head><title>Nanaimo weather</title></head><body>
<nav><a href="/">Home</a> <a href="/maps">Maps</a> <a href="/ski">Ski report</a></nav>
<h1>Nanaimo</h1>
<p>Dry and bright until early afternoon, with 11 degrees. Rain from two o'clock on, 8 mm by the evening.</p>
<h2>The week</h2><table><tr><th>Day</th><th>Weather</th><th>High</th></tr>
<tr><td>Tuesday</td><td>showers</td><td>10</td></tr><tr><td>Wednesday</td><td>sun</td><td>12</td></tr></table>
<h2>About</h2><p>Harbour city on the east coast of Vancouver Island.</p>
<p>Measured at the airport, forecast twice a day. Photographs of readers are welcome.</p>
</body></html>"""
_FERRIES: Final = """<!doctype html><html><head><title>Departures</title></head><body>
<h1>Departure Bay to Horseshoe Bay</h1>
<p>All sailings are on schedule. The crossing takes an hour and forty minutes.</p>
<table><tr><th>Departure</th><th>Full</th></tr><tr><td>15:20</td><td>38 %</td></tr>
<tr><td>17:40</td><td>91 %</td></tr></table>
<h2>On board</h2><p>There is a cafeteria, a shop and a deck for dogs.</p></body></html>"""
_PAGES: Final[Mapping[str, str]] = {"/weather/nanaimo": _WEATHER, "/ferries/departures": _FERRIES}
_SITES: Final = {"https://weather.example": "/weather", "https://ferries.example": "/ferries"}

T = TypeVar("T")


class WithPages:
    """An application that serves the pages besides what another one serves.

    Attributes:
        read: the paths of the pages that were asked for, in order.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.read: list[str] = []
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        page = _PAGES.get(scope["path"]) if scope["type"] == "http" else None
        if page is None:
            await self._app(scope, receive, send)
            return
        self.read.append(scope["path"])
        headers = [(b"content-type", b"text/html; charset=utf-8")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": page.encode()})


def at(url: str, value: T) -> T:
    """A script or an answer in which the addresses of the pages are those below `url`."""
    text = msgspec.json.encode(value).decode()
    for site, path in _SITES.items():
        text = text.replace(site, url + path)
    return msgspec.json.decode(text, type=type(value))
