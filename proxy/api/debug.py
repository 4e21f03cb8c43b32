"""`GET /debug` and `GET /debug/requests/{id}`: the last requests, for clients that are administrators.

Where no clients are configured, requests from this machine may read them: both ends of the connection are loopback
addresses, the Host header names one (a web page that has rebound its own name to 127.0.0.1 does not), and no other
proxy has forwarded the request. With `allow_anonymous` no request may.

The pages are plain HTML and SVG without scripts, so that they work in any browser. They are made of `Html` values:
whatever is not made by `tag` is escaped, so nothing that a request contains can become a tag.
"""

import re
from base64 import b64encode
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from html import escape
from ipaddress import ip_address
from typing import Any, Final, TypeAlias
from urllib.parse import quote

from starlette.types import Receive, Scope, Send

from proxy.api.body import header, is_forwarded
from proxy.api.exchange import Headers, send_bytes, send_json
from proxy.api.request import CALLER, Caller
from proxy.loop.chat import Json
from proxy.loop.errors import AdminOnly, NotFound
from proxy.ports import History, Ports

STYLE: Final = """
:root { color-scheme: light dark; --line: #8884; --turn: #3b76c4; --tool: #d08a1d; --relay: #6a9a4a; --bad: #c0392b; }
body { font: 14px/1.45 system-ui, sans-serif; margin: 1.5rem auto; max-width: 76rem; padding: 0 1rem; }
h1 { font-size: 1.2rem; } h2 { font-size: 1rem; margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; } td, th { border-bottom: 1px solid var(--line); padding: .25rem .5rem;
text-align: left; vertical-align: top; } td.n, th.n { text-align: right; font-variant-numeric: tabular-nums;
white-space: nowrap; }
code, td.id { font-family: ui-monospace, monospace; font-size: .9em; overflow-wrap: anywhere; }
.bad { color: var(--bad); } .quiet { opacity: .7; }
svg { width: 100%; height: auto; margin-top: 1rem; }
svg text { font: 12px ui-monospace, monospace; fill: currentColor; }
.turn { fill: var(--turn); } .tool { fill: var(--tool); } .relay { fill: var(--relay); } .failed { fill: var(--bad); }
.wait { fill: #fff; opacity: .6; } .note { stroke: currentColor; stroke-width: 2; opacity: .6; }
.note.bad { stroke: var(--bad); opacity: 1; } .grid { stroke: var(--line); }
"""
POLICY: Final = (
    f"default-src 'none'; style-src 'sha256-{b64encode(sha256(STYLE.encode()).digest()).decode()}'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

# The waterfall, in units of the drawing.
_WIDTH, _LABEL, _ROW, _BAR = 1000, 260, 22, 14
_TICKS = 5
_SHOWN_ABOVE = frozenset({"request_id", "steps", "notes", "left_out", "began_at"})
_SHOWN_IN_COLUMNS = frozenset({"kind", "at", "seconds", "outcome", "notes", "tool", "turn", "upstream_model", "path"})
_FIRST_BAD_STATUS = 400
_BAD_LEVELS = frozenset({"warning", "error"})
_LOCAL_HOST = re.compile(r"(localhost|127(\.\d{1,3}){3}|\[::1\])(:\d{1,5})?")
_HEADERS: Headers = (
    (b"content-type", b"text/html; charset=utf-8"),
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
)


class Debug:
    """Both pages; JSON where the client asks for it."""

    def __init__(self, ports: Ports, history: History) -> None:
        self._history = history
        self._allow_anonymous = ports.config.server.allow_anonymous

    async def __call__(self, scope: Scope, _: Receive, send: Send) -> None:
        """ASGI."""
        if not self._may_read(scope):
            raise AdminOnly
        request_id = scope["path_params"].get("id")
        found = self._history.latest() if request_id is None else self._history.find(request_id)
        if found is None:
            raise NotFound(f"The request {request_id!r} is not remembered here.")
        if "application/json" in (header(scope, b"accept") or ""):
            await send_json(send, {"requests": found} if isinstance(found, list) else found)
            return
        page: Html = story_page(found) if isinstance(found, dict) else list_page(found)
        await send_bytes(send, 200, _HEADERS, page.encode())

    def _may_read(self, scope: Scope) -> bool:
        caller: Caller = scope[CALLER]
        if caller.name is not None or self._allow_anonymous:
            return caller.admin
        is_local = _is_loopback(scope.get("client")) and _is_loopback(scope.get("server"))
        return is_local and bool(_LOCAL_HOST.fullmatch(header(scope, b"host") or "")) and not is_forwarded(scope)


def _is_loopback(address: object) -> bool:
    """Whether the host of an ASGI address, a host and a port, is a loopback address."""
    try:
        return isinstance(address, list | tuple) and ip_address(address[0]).is_loopback
    except ValueError:
        return False


# -- HTML as values --


class Html(str):
    """Text that is HTML, and so needs no escaping."""

    __slots__ = ()


Child: TypeAlias = "Html | str | int | float | None"

_EMPTY = frozenset({"meta"})


def tag(name: str, *children: Child, **attributes: object) -> Html:
    """One element. `class_` is the attribute `class`, `stroke_width` is `stroke-width`; None leaves one out."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Html(f"<{name}{written}>" if name in _EMPTY else f"<{name}{written}>{join(*children)}</{name}>")


def join(*children: Child) -> Html:
    """Elements and texts, one after the other."""
    parts = (child if isinstance(child, Html) else escape(str(child)) for child in children if child is not None)
    return Html("".join(parts))


# -- the pages --


def list_page(stories: Sequence[Json]) -> Html:
    """The last requests."""
    columns = ("began", "request", "status", "seconds", "client", "model", "turns", "tool calls", "tokens", "stop")
    head = tag("tr", *(tag("th", name) for name in columns))
    rows = [_row(story) for story in stories]
    table = tag("table", tag("thead", head), tag("tbody", *rows)) if rows else tag("p", "No request yet.")
    return _page("Last requests", tag("h1", "Last requests"), table)


def story_page(story: Json) -> Html:
    """One request, as a waterfall and in words."""
    title = f"Request {story['request_id']}"
    left_out = f"{story['left_out']} more steps are not shown." if story["left_out"] else None
    return _page(
        title,
        tag("p", tag("a", "All requests", href="/debug")),
        tag("h1", title),
        _waterfall(story),
        tag("p", left_out, class_="quiet") if left_out else None,
        tag("h2", "Steps"),
        _steps(story),
        tag("h2", "The request"),
        tag("table", tag("tbody", *_fields_of(story))),
    )


def _page(title: str, *body: Child) -> Html:
    head = tag("head", tag("meta", charset="utf-8"), tag("title", f"{title} - toolproxy"), tag("style", Html(STYLE)))
    return join(Html("<!doctype html>"), tag("html", head, tag("body", *body), lang="en"))


def _row(story: Json) -> Html:
    status = story.get("status")
    bad = "bad" if status is None or status >= _FIRST_BAD_STATUS else None
    where = f"/debug/requests/{quote(story['request_id'], safe='')}"
    return tag(
        "tr",
        tag("td", datetime.fromtimestamp(story["began_at"], UTC).strftime("%H:%M:%S")),
        tag("td", tag("a", story["request_id"], href=where), class_="id"),
        tag("td", "open" if status is None else status, class_=bad if status is not None else "quiet"),
        tag("td", _seconds(story["seconds"]), class_="n"),
        tag("td", story.get("client")),
        tag("td", story.get("model") or story.get("path")),
        tag("td", story.get("turns"), class_="n"),
        tag("td", story.get("tool_calls"), class_="n"),
        tag("td", _tokens(story), class_="n"),
        tag("td", story.get("error") or story.get("stop"), class_="bad" if story.get("error") else None),
    )


def _waterfall(story: Json) -> Html:
    """Every step as a bar at its time, with its notes as marks."""
    steps = story["steps"]
    ends = [step["at"] + (step["seconds"] or 0) for step in steps]
    whole = max([story["seconds"] or 0, *ends, 0.001])
    height = _ROW * (len(steps) + 1) + 6
    bars = [_bar(number, step, whole) for number, step in enumerate(steps, 1)]
    size = f"0 0 {_WIDTH} {height}"
    return tag("svg", *_grid(whole, height), *bars, viewBox=size, role="img", aria_label="waterfall of the request")


def _grid(whole: float, height: int) -> Iterator[Html]:
    for tick in range(_TICKS + 1):
        x = _x(whole * tick / _TICKS, whole)
        anchor = "end" if tick == _TICKS else "middle"
        yield tag("line", x1=x, x2=x, y1=_ROW - 4, y2=height, class_="grid")
        yield tag("text", _seconds(whole * tick / _TICKS), x=x, y=_ROW - 8, text_anchor=anchor)


def _bar(number: int, step: Json, whole: float) -> Html:
    y = _ROW * number
    seconds = whole - step["at"] if step["seconds"] is None else step["seconds"]
    left, width = _x(step["at"], whole), max(2, _x(seconds, whole) - _LABEL)
    kind = step["kind"] if step["outcome"] in (None, "completed") else "failed"
    label = f"{_name(step)} {_seconds(step['seconds'])}"
    return tag(
        "g",
        tag("text", label, x=0, y=y + _BAR - 2),
        tag("rect", x=left, y=y, width=round(width, 1), height=_BAR, rx=2, class_=kind),
        *(mark for note in step["notes"] if note["event"] != "upstream.answered" for mark in _marks(note, y, whole)),
    )


def _marks(note: Json, y: int, whole: float) -> Iterator[Html]:
    """A note of a step as a line at its time; a wait that followed it is paler."""
    x = _x(note["at"], whole)
    if wait := note.get("wait"):
        yield tag("rect", x=x, y=y, width=round(_x(note["at"] + wait, whole) - x, 1), height=_BAR, class_="wait")
    kind = "note bad" if note["level"] in _BAD_LEVELS else "note"
    yield tag("line", tag("title", note["event"]), x1=x, x2=x, y1=y, y2=y + _BAR, class_=kind)


def _x(seconds: float, whole: float) -> float:
    return round(_LABEL + (_WIDTH - _LABEL - 4) * seconds / whole, 1)


def _steps(story: Json) -> Html:
    columns = ("step", "began", "seconds", "outcome", "what is known of it", "what befell it")
    head = tag("tr", *(tag("th", name) for name in columns))
    rows = [
        tag(
            "tr",
            tag("td", _name(step)),
            tag("td", _seconds(step["at"]), class_="n"),
            tag("td", _seconds(step["seconds"]), class_="n"),
            tag("td", step["outcome"] or "open", class_=None if step["outcome"] in (None, "completed") else "bad"),
            tag("td", *_details(step, _SHOWN_IN_COLUMNS)),
            tag("td", *(tag("div", _note_text(note)) for note in step["notes"])),
        )
        for step in story["steps"]
    ]
    return tag("table", tag("thead", head), tag("tbody", *rows))


def _fields_of(story: Json) -> Iterator[Html]:
    yield tag("tr", tag("th", "began"), tag("td", datetime.fromtimestamp(story["began_at"], UTC).isoformat()))
    for name, value in story.items():
        if name not in _SHOWN_ABOVE:
            yield tag("tr", tag("th", name.replace("_", " ")), tag("td", _plain(value)))
    for note in story["notes"]:
        yield tag("tr", tag("th", _seconds(note["at"])), tag("td", _note_text(note)))


def _name(step: Json) -> str:
    match step["kind"]:
        case "tool":
            return f"{step.get('tool')}"
        case "turn":
            return f"turn {step.get('turn')}: {step.get('upstream_model')}"
        case _:
            return f"{step.get('path') or step.get('upstream_model')}"


def _details(fields: Json, without: frozenset[str]) -> Iterator[Html]:
    for name, value in fields.items():
        if name not in without:
            yield tag("div", tag("span", f"{name.replace('_', ' ')}: ", class_="quiet"), tag("code", _plain(value)))


def _note_text(note: Json) -> Html:
    fields = {name: value for name, value in note.items() if name not in ("at", "event", "level")}
    text = ", ".join(f"{name} {_plain(value)}" for name, value in fields.items())
    bad = "bad" if note["level"] in _BAD_LEVELS else None
    return join(tag("strong", note["event"], class_=bad), f" after {_seconds(note['at'])}: {text}")


def _tokens(story: Json) -> str | None:
    counts = [story.get(f"{kind}_tokens") for kind in ("prompt", "completion")]
    return None if counts == [None, None] else " + ".join(str(count or 0) for count in counts)


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.3f} s"


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_plain(inner)}" for name, inner in value.items())
    return str(value)
