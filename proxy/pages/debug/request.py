"""One request as a waterfall: every turn and tool call at its time, with its details folded below it."""

from collections.abc import Iterator
from typing import Final
from urllib.parse import quote

from proxy.pages.debug.frame import page
from proxy.pages.debug.words import day_of, field, messages_of, name_of, note_words, outcome_of, seconds, tokens
from proxy.pages.html import Child, Html, join, tag
from proxy.wire.chat import Json

# The bars are drawn in these units and stretched to the width of the page.
_WIDTH, _HEIGHT = 1000, 14
_TICKS: Final = 4
_SHOWN_ABOVE: Final = frozenset({
    "request_id", "steps", "notes", "left_out", "began_at", "seconds", "status", "model", "client", "turns",
    "tool_calls", "prompt_tokens", "completion_tokens", "stop", "error",
})  # fmt: skip
_SHOWN_IN_ROW: Final = frozenset({
    "kind", "at", "seconds", "outcome", "notes", "tool", "turn", "upstream_model", "path",
})  # fmt: skip
_BAD_LEVELS: Final = frozenset({"warning", "error"})
# What a step is drawn as that has ended in another way than by its result: it was left, not at fault; others failed.
_ENDED: Final = {None: "", "completed": "", "abandoned": "left"}
_LONG: Final = 120  # characters; a longer text is shown in a block of its own


def request_page(record: Json, *, has_chat: bool) -> Html:
    """The page of one request, which is kept up to date while the request is open."""
    request_id = record["request_id"]
    copy = tag("button", "copy", type="button", class_="copy", data_copy=request_id, title="copy the id")
    case = _case_link(request_id) if _has_content(record) else None
    left_out = (
        tag("p", f"{record['left_out']} more steps are not shown.", class_="quiet") if record["left_out"] else None
    )
    return page(
        f"Request {request_id}",
        tag("p", tag("a", "← all requests", href="/debug", id="back"), class_="back"),
        tag("h1", "Request ", tag("code", request_id), " ", copy, " ", case),
        tag("div", _facts(record), _waterfall(record), left_out, _more(record), id="live"),
        _content_note(record),
        current="/debug",
        has_chat=has_chat,
        is_live=outcome_of(record) == "open",
    )


def _case_link(request_id: str) -> Html:
    title = "everything that the request met, as a file that `toolproxy replay` plays again"
    href = f"/debug/requests/{quote(request_id, safe='')}/case"
    return tag("a", "case", href=href, class_="copy", download=True, title=title)


def _facts(record: Json) -> Html:
    """The most important facts of a request, as a row of small cards."""
    outcome = outcome_of(record)
    facts: list[tuple[str, Child]] = [
        ("status", tag("span", record.get("status") or "open", class_=f"pill {outcome}")),
        ("duration", seconds(record["seconds"])),
        ("client", record.get("client")),
        ("model", record.get("model")),
        ("turns", _turns(record)),
        ("tool calls", record.get("tool_calls")),
        ("tokens in + out", tokens(record)),
        ("error" if record.get("error") else "ended by", record.get("error") or record.get("stop")),
    ]
    cards = [tag("div", tag("dt", name), tag("dd", value)) for name, value in facts if value not in (None, "")]
    return tag("dl", *cards, class_="facts")


def _turns(record: Json) -> int | None:
    """The turns of a request; of one that was left in the middle of a turn, those that had begun."""
    counted: int | None = record.get("turns")
    return counted or sum(step["kind"] == "turn" for step in record["steps"]) if counted is not None else None


def _waterfall(record: Json) -> Html:
    steps = record["steps"]
    whole = max([record["seconds"] or 0, *(step["at"] + (step["seconds"] or 0) for step in steps), 0.001])
    ticks = [seconds(whole * tick / _TICKS) for tick in range(_TICKS + 1)]
    scale = tag("div", *(tag("span", tick) for tick in ticks), class_="scale")
    rows = [_step(step, whole) for step in steps]
    return tag("section", scale, *rows, class_="waterfall", aria_label="waterfall of the request")


def _step(step: Json, whole: float) -> Html:
    ended = _ENDED.get(step["outcome"], "failed")
    state = tag("span", f" {step['outcome']}", class_="bad" if ended == "failed" else ended) if ended else None
    took = seconds(step["seconds"]) if step["outcome"] else "running"
    name = tag("span", name_of(step), state, class_="name")
    row = tag("summary", name, _bar(step, whole), tag("span", took, class_="took"))
    details = tag("dl", *_details(step))
    notes = tag("ul", *(_note(note) for note in step["notes"])) if step["notes"] else None
    return tag("details", row, details, notes, class_=step["kind"])


def _bar(step: Json, whole: float) -> Html:
    length = whole - step["at"] if step["seconds"] is None else step["seconds"]
    left, width = _x(step["at"], whole), max(3, _x(length, whole))
    kind = _ENDED.get(step["outcome"], "failed") or step["kind"]
    marks = [mark for note in step["notes"] for mark in _marks(note, whole)]
    bar = tag("rect", x=left, y=0, width=width, height=_HEIGHT, class_=kind)
    size = f"0 0 {_WIDTH} {_HEIGHT}"
    return tag("svg", bar, *marks, viewBox=size, preserveAspectRatio="none", aria_hidden="true")


def _marks(note: Json, whole: float) -> Iterator[Html]:
    """A note of a step as a line at its time, with the wait that followed it, if any, in a paler colour."""
    x = _x(note["at"], whole)
    if wait := note.get("wait"):
        yield tag("rect", x=x, y=0, width=round(_x(note["at"] + wait, whole) - x, 1), height=_HEIGHT, class_="wait")
    kind = "note bad" if note["level"] in _BAD_LEVELS else "note"
    yield tag("line", tag("title", note["event"]), x1=x, x2=x, y1=0, y2=_HEIGHT, class_=kind)


def _x(at: float, whole: float) -> float:
    return round(_WIDTH * at / whole, 1)


def _details(step: Json) -> Iterator[Html]:
    yield _pair("began after", seconds(step["at"]))
    for name, value in step.items():
        if name not in _SHOWN_IN_ROW:
            if messages := messages_of(value):
                yield join(tag("dt", name), tag("dd", *(_message(role, text) for role, text in messages)))
            else:
                yield _pair(name.replace("_", " "), field(name, value))


def _message(role: str, text: str) -> Html:
    return tag("div", tag("span", role, class_="role"), tag("pre", text, tabindex=0), class_="message")


def _pair(name: str, value: str) -> Html:
    """A field with its value; a long text, such as a tool's result, is in a block that scrolls."""
    shown = tag("pre", value, tabindex=0) if len(value) > _LONG or "\n" in value else tag("code", value)
    return join(tag("dt", name), tag("dd", shown))


def _note(note: Json) -> Html:
    event = tag("strong", note["event"], class_="bad" if note["level"] in _BAD_LEVELS else None)
    return tag("li", tag("span", seconds(note["at"]), class_="took"), " ", event, " ", note_words(note))


def _more(record: Json) -> Html:
    """All other fields of the request's record."""
    others = {name: value for name, value in record.items() if name not in _SHOWN_ABOVE}
    fields = [_pair(name.replace("_", " "), field(name, value)) for name, value in others.items()]
    notes = tag("ul", *(_note(note) for note in record["notes"])) if record["notes"] else None
    raw = tag("p", tag("a", "as JSON", href="?format=json"))
    began = _pair("began", day_of(record["began_at"]))
    return tag("section", tag("h2", "The request"), tag("dl", began, *fields), notes, raw)


def _has_content(record: Json) -> bool:
    """Whether messages, arguments and results are recorded."""
    return any({"messages", "arguments", "question"} & step.keys() for step in record["steps"])


def _content_note(record: Json) -> Html | None:
    """How to have messages and results recorded; None if they are."""
    if _has_content(record):
        return None
    option = tag("code", "telemetry: {log_content: true}")
    text = "Messages, arguments and results are not kept. With "
    rest = (
        " in config.yaml they stand here and in the log, and each request can be had as a case to play again; "
        "configured keys are masked everywhere."
    )
    return tag("p", text, option, rest, class_="quiet hint")
