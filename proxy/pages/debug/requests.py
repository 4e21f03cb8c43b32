"""The list of the last requests, with its filter."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import Final
from urllib.parse import quote

from proxy.kit.counted import counted
from proxy.pages.debug.frame import page
from proxy.pages.debug.words import clock_of, outcome_of, seconds, short_id, tokens, tools_of
from proxy.pages.html import Child, Html, tag
from proxy.wire.chat import Json

FILTERS: Final = ("client", "model", "outcome", "tool")
_OUTCOMES: Final = ("ok", "error", "left", "open")
_UNFINISHED: Final = {"error": "failed", "left": "left", "open": "open"}
_SHOWN: Final = 200
_COLUMNS: Final = ("time", "request", "client", "model", "status", "duration", "turns", "tools", "tokens", "ended by")


def list_page(records: Sequence[Json], chosen: Mapping[str, str], *, has_chat: bool) -> Html:
    """The requests that match the `chosen` values of `FILTERS`; `records` has all that are kept, the newest first."""
    found = [record for record in records if matches(record, chosen) and not _is_look_up(record)]
    rows = [_row(record) for record in found[:_SHOWN]]
    head = tag("tr", *(tag("th", name, scope="col") for name in _COLUMNS))
    table = tag("table", tag("thead", head), tag("tbody", *rows), class_="requests")
    nothing = "No request matches." if records else "No request yet. Send one, and it appears here."
    return page(
        "Last requests",
        tag("h1", "Last requests"),
        _filter(records, chosen),
        tag("div", _summary(found), table if rows else tag("p", nothing, class_="empty"), id="live"),
        _help(),
        current="/debug",
        has_chat=has_chat,
        is_live=True,
    )


def _is_look_up(record: Json) -> bool:
    """Whether a request only asked which models there are, as apps and the chat page do whenever they start."""
    return str(record.get("path")).startswith("/v1/models") and outcome_of(record) == "ok"


def matches(record: Json, chosen: Mapping[str, str]) -> bool:
    """Whether a request has every wanted value."""
    return all(value in _values_of(record, name) for name, value in chosen.items() if value)


def _values_of(record: Json, name: str) -> Iterable[object]:
    match name:
        case "outcome":
            return (outcome_of(record),)
        case "tool":
            return tools_of(record)
        case _:
            return (record.get(name),)


def _filter(records: Sequence[Json], chosen: Mapping[str, str]) -> Html:
    """A form that works without the script: its fields become the query of the page's URL."""
    fields = []
    for name in FILTERS:
        known = _OUTCOMES if name == "outcome" else sorted({str(v) for r in records for v in _values_of(r, name) if v})
        wanted = chosen.get(name, "")
        values = [*known, *([wanted] if wanted and wanted not in known else [])]
        options = [tag("option", value, value=value, selected=value == wanted) for value in values]
        select = tag("select", tag("option", f"any {name}", value=""), *options, name=name, id=f"filter-{name}")
        fields.append(tag("label", tag("span", name), select))
    clear = tag("a", "clear", href="/debug") if any(chosen.values()) else None
    return tag("form", *fields, tag("button", "Filter", type="submit"), clear, action="/debug", class_="filter")


def _summary(found: Sequence[Json]) -> Html:
    kinds = [outcome_of(record) for record in found]
    durations = [record["seconds"] for record in found if record["seconds"] is not None]
    parts = [counted(len(found), "request")]
    parts += [f"{kinds.count(kind)} {word}" for kind, word in _UNFINISHED.items() if kind in kinds]
    if durations:
        parts.append(f"median {seconds(median(durations))}")
    return tag("p", " · ".join(parts), class_="summary", aria_live="off")


def _row(record: Json) -> Html:
    request_id = record["request_id"]
    outcome = outcome_of(record)
    link = tag("a", short_id(request_id), href=f"/debug/requests/{quote(request_id, safe='')}", title=request_id)
    copy = tag("button", "copy", type="button", class_="copy", data_copy=request_id, title="copy the id")
    ended = record.get("error") or record.get("stop")
    return tag(
        "tr",
        _cell("time", clock_of(record["began_at"])),
        _cell("id", link, copy),
        _cell("client", record.get("client")),
        _cell("model", record.get("model") or record.get("path")),
        _cell("status", tag("span", record.get("status") or "open", class_=f"pill {outcome}")),
        _cell("n duration", seconds(record["seconds"])),
        _cell("n turns", *_counted("turn", record.get("turns"))),
        _cell("n calls", *_counted("tool", record.get("tool_calls"))),
        _cell("n tokens", tokens(record)),
        _cell("ended", tag("span", ended, class_="bad") if record.get("error") else ended),
        class_=outcome,
    )


def _cell(class_: str, *children: Child) -> Html:
    return tag("td", *children, class_=class_)


def _counted(what: str, count: int | None) -> Iterator[Child]:
    """A number with its unit, which is shown on narrow screens only, because columns have no heads there."""
    if count:
        yield count
        yield tag("span", f" {what}{'' if count == 1 else 's'}", class_="unit")


def _help() -> Html:
    keys = (("j k", "next, previous"), ("Enter", "open"), ("/", "filter"), ("p", "pause"), ("?", "these keys"))
    rows = [tag("div", tag("kbd", key), f" {meaning}") for key, meaning in keys]
    live = tag("button", "live", type="button", id="pause", aria_pressed="false", title="pause (p)", hidden=True)
    return tag("footer", live, tag("div", *rows, id="keys", class_="keys"))
