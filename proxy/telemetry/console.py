"""The log as a person reads it on a terminal: a line for each request, its columns aligned, at most 80 wide.

    12:04:31  app-one  glm-4.7       200   2.31 s  3 searches   answer  1,204+310
    12:04:40  app-one  gpt-oss-120b  502   0.42 s  1 turn       upstream_error
              gmi: upstream_error (HTTP 500, code 1305)
    12:05:02  [warning] configuration.disabled  where=upstreams.gmi why=GMI_API_KEY is not set

Turns and tool calls have lines of their own at `log_level: debug` only; whatever is wrong has one always.
"""

from collections.abc import Collection, Iterator, Mapping
from datetime import datetime
from typing import Any, Final, TypeAlias

from cachetools import LRUCache

from proxy.config.redaction import Redact
from proxy.kit.terminal import Style, printable, shortened, wrapped
from proxy.wire.errors import CLIENT_CLOSED_REQUEST

Line: TypeAlias = Mapping[str, Any]

WIDTH: Final = 80
_MOST_LINES: Final = 4  # of one cause or event
_CLIENT, _MODEL, _COUNTS, _END = 7, 12, 11, 20  # columns
_INDENT: Final = " " * 10
_DETAILS: Final = frozenset({"turn.completed", "tool.completed", "turn.abandoned", "tool.abandoned"})
_CAUSES: Final = frozenset({"turn.failed", "relay.failed"})
_MOST_CAUSES: Final = 1000  # requests whose failure waits for their line
_LEVEL_COLORS: Final = {"warning": "yellow", "error": "red", "debug": "dim"}
_HIDDEN: Final = frozenset({"timestamp", "level", "event", "request_id", "trace_id", "exception"})
_OF_REQUEST: Final = frozenset({"client", "model", "stream", "method", "path"})  # stand in the line of the request
_OF_MODEL: Final = frozenset({"upstream"})  # would be taken for the service of the tool
_FIRST_CLIENT_ERROR, _FIRST_SERVER_ERROR = 400, 500


class Console:
    """Renders the lines of the log.

    Args:
        style: colours them, or not.
        details: whether turns and tool calls are shown.
        redact: masks secrets in a text; asked before a text is shortened or wrapped, when secrets are still whole.
    """

    def __init__(self, style: Style, *, details: bool, redact: Redact = str) -> None:
        self._style = style
        self._details = details
        self._redact = redact
        self._causes: LRUCache[object, str] = LRUCache(_MOST_CAUSES)  # of failed requests, until their line is written

    def hides(self, event: str) -> bool:
        """Whether events of that name are not shown."""
        return event in _DETAILS and not self._details

    def __call__(self, line: Line) -> str:
        """The text of a line; empty for a failure that will be shown below its request."""
        event = line["event"]
        line = {name: self._masked(value) for name, value in line.items()}
        if event == "request.completed":
            return self._request(line)
        if event in _CAUSES and line.get("request_id"):
            self._remember(line)
            if not self._details:
                return ""
        return self._other(line)

    def _masked(self, value: object) -> object:
        match value:
            case str():
                return self._redact(value)
            case list() | tuple():
                return [self._redact(str(one)) for one in value]
        return value

    def _request(self, line: Line) -> str:
        status = line.get("status") or 0
        color = _color_of(status, line)
        path = f"{line.get('method')} {line.get('path')}".removeprefix("POST ")
        cells = [
            self._style(_time_of(line), "dim"),
            _cell(line.get("client") or "-", _CLIENT),
            _cell(line.get("model") or line.get("unknown_model") or path, _MODEL),
            self._style(f"{status:>3}", color, "bold"),
            f"{_seconds(line.get('seconds')):>7}",
            f"{_count(line):<{_COUNTS}}",
            self._style(_end(line), color),
        ]
        text = "  ".join(cells).rstrip()
        if cause := self._causes.pop(line.get("request_id"), None) or _refused_page(line):
            text += "".join(f"\n{_INDENT}{self._style(part, color)}" for part in _lines(cause))
        return text

    def _remember(self, line: Line) -> None:
        self._causes[line["request_id"]] = f"{line.get('upstream', 'upstream')}: {printable(_cause(line))}"

    def _other(self, line: Line) -> str:
        """Any other event: its name, and its fields as `name=value`."""
        of_request = "request_id" in line
        level = line["level"]
        color = _LEVEL_COLORS.get(level)
        name = printable(line["event"]) if level == "info" else f"[{level}] {printable(line['event'])}"
        hidden = _HIDDEN | _OF_REQUEST if of_request else _HIDDEN
        if line["event"].startswith("tool."):
            hidden |= _OF_MODEL
        first, *further = _lines(f"{name}  {' '.join(_fields(line, hidden))}")
        colored = self._style(name, color) if color else name
        when = _INDENT if of_request else f"{self._style(_time_of(line), 'dim')}  "
        text = "\n".join([f"{when}{first.replace(name, colored, 1)}", *(f"{_INDENT}  {part}" for part in further)])
        if exception := line.get("exception"):
            text += "".join(f"\n{_INDENT}  {part}" for part in str(exception).splitlines())
        return text


def _cause(line: Line) -> object:
    """Why a turn failed: in words, or by the upstream's own status and code."""
    if why := line.get("why"):
        return why
    words = line.get("upstream_message") or line.get("error") or line.get("code")
    status, code = line.get("upstream_status"), line.get("upstream_code")
    said = ", ".join(filter(None, (f"HTTP {status}" if status else "", f"code {code}" if code else "")))
    return f"{words} ({said})" if said else words


def _refused_page(line: Line) -> str | None:
    """Which web page may not call, and the setting that says so; None for other requests."""
    return f"server.cors.origins does not list {printable(line['origin'])}" if "origin" in line else None


def _fields(line: Line, hidden: Collection[str]) -> Iterator[str]:
    for name, value in line.items():
        if name not in hidden:
            yield f"{name}={_value(value)}"


def _value(value: object) -> str:
    match value:
        case float():
            return str(round(value, 3))
        case list() | tuple():
            return "; ".join(map(printable, value))
    return printable(value)


def _color_of(status: int, line: Line) -> str:
    """Green for an answer, yellow for what the client or a failed tool caused, red for what failed here or beyond."""
    if _FIRST_CLIENT_ERROR <= status < _FIRST_SERVER_ERROR or (line.get("failed_calls") and not line.get("error")):
        return "yellow"
    return "red" if status >= _FIRST_SERVER_ERROR or line.get("error") else "green"


def _time_of(line: Line) -> str:
    when = line["timestamp"]
    return when.astimezone().strftime("%H:%M:%S") if isinstance(when, datetime) else str(when)


def _cell(value: object, width: int) -> str:
    return f"{shortened(printable(value), width):<{width}}"


def _lines(text: str) -> list[str]:
    return wrapped(text, WIDTH - len(_INDENT) - 2, _MOST_LINES)


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.2f} s" if seconds < 100 else f"{seconds:.0f} s"  # noqa: PLR2004


def _count(line: Line) -> str:
    """Searches, or other tool calls where there were none, or else turns."""
    return (
        _counted(line.get("searches"), "search", "searches")
        or _counted(line.get("tool_calls"), "call", "calls")
        or _counted(line.get("turns"), "turn", "turns")
    )


def _counted(number: int | None, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}" if number else ""


def _tokens(line: Line) -> str:
    sent, written = line.get("prompt_tokens"), line.get("completion_tokens")
    return "" if sent is None and written is None else f"{_compact(sent or 0)}+{_compact(written or 0)}"


def _compact(number: int) -> str:
    """A number in at most five columns, up to a hundred million."""
    for unit, size in (("M", 1_000_000), ("k", 1000)):
        if number >= 10 * size:
            return f"{number / size:.1f}{unit}" if number < 100 * size else f"{number // size}{unit}"
    return f"{number:,}"


def _end(line: Line) -> str:
    """How the request ended, and as far as there is room its tokens: those that it sent and those that were written."""
    outcome = shortened(_outcome(line), _END)
    with_tokens = f"{outcome}  {_tokens(line)}"
    return with_tokens.strip() if len(with_tokens) <= _END else outcome


def _outcome(line: Line) -> str:
    """The end of the request: an error's code, the client, or why its loop stopped."""
    if line.get("status") == CLIENT_CLOSED_REQUEST:
        return "the client left"
    failed = _counted(line.get("failed_calls"), "failed call", "failed calls")
    return ", ".join(filter(None, (printable(line.get("error") or line.get("stop") or ""), failed)))
