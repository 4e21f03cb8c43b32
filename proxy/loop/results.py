"""The outcome of a tool call: the tool's output or its failure, and the result that the model reads.

Output and failure are fenced as data (`fence`) and cut to a limit. A failure is an object, `{"error": ...}`, with the
fence in its text.
"""

from collections.abc import Iterable, Mapping
from math import inf
from os.path import commonprefix
from types import MappingProxyType
from typing import Any, ClassVar, Literal, TypeAlias

import orjson
from msgspec import Struct
from msgspec.structs import replace

from proxy.loop import fence
from proxy.loop.prompts import NEEDS_HEADER, RESULT_CUT, RESULT_HALVED, RESULT_LEFT_OUT
from proxy.wire.code import CodeResult
from proxy.wire.search import SearchHit

_FAILURE = '{"error":'
_LONGEST_FAILURE = 2048  # bytes of UTF-8
_LONGEST_QUOTED = 500  # characters of arguments that a history cannot hold
_SHORTEST_PART = 20  # characters of a hit's text that are looked for in a cut text
_SHORTEST_HALVED = 512  # characters; cutting a shorter text makes no room, and loses its meaning

BEYOND_LIMIT = "budget"
"""The outcome of a call that was not run because of a limit."""


class ToolOutput(Struct, frozen=True):
    """The output of a tool.

    Attributes:
        text: the text for the model.
        sources: URL -> title of the pages that the text comes from.
        hits: the pages that a search found; empty for tools that do not search.
        cost: the cost of the call, 0 if the output came from a cache; None: the tool has no price.
        answered_by: the fallback that answered instead of the called tool.
        note: a note for the operator alone, such as a doubt about the description of a service that found nothing.
        code: the outcome of code that the tool has run; the model reads its text instead. None: the tool runs no code.
        provider: the service that has searched.
        searches: the number of successful searches, each of which has the price of a call.
        failed_queries: the queries, of several, that failed. An output with failed queries is not cached.
        pages: how many pages a search has fetched, by outcome.
    """

    text: str
    sources: Mapping[str, str] = MappingProxyType({})
    hits: tuple[SearchHit, ...] = ()
    cost: float | None = None
    answered_by: str | None = None
    note: str | None = None
    code: CodeResult | None = None
    provider: str | None = None
    searches: int = 1
    failed_queries: tuple[str, ...] = ()
    pages: Mapping[str, int] = MappingProxyType({})

    @property
    def log_fields(self) -> dict[str, Any]:
        """Fields for the event of a call: the pages found and fetched, the fallback that answered, and the note."""
        pages = dict(self.pages)
        fields = {"results": len(self.hits), "answered_by": self.answered_by, "note": self.note, "pages": pages}
        return {name: value for name, value in fields.items() if value}


class ToolResult(Struct, frozen=True):
    """The result of one call, as the model reads it.

    Attributes:
        content: the whole text for the model.
        failed: whether the call could not be carried out.
        sources: URL -> title of the pages that the text comes from; they may be cited.
        text: the part of the tool's own text that the model reads, without the fence; empty if there is none.
        hits: the pages that a search found.
        outcome: the kind of failure, in one word. `budget`: the call exceeded a limit and was not run.
        cost: the cost of the call; None if the tool has no price or the call failed.
        code: the outcome of code that ran, cut to what the model reads; None if no code ran.
    """

    content: str
    failed: bool = False
    sources: Mapping[str, str] = MappingProxyType({})
    text: str = ""
    hits: tuple[SearchHit, ...] = ()
    outcome: str = ""
    cost: float | None = None
    code: CodeResult | None = None

    @property
    def for_app(self) -> str:
        """The result for an app: without the fence, which is for the model."""
        return self.text or self.content


class ToolError(Exception):
    """A tool call failed. The message is for the model, and `why` only for the log."""

    outcome: ClassVar[str] = "error"

    def __init__(self, message: str, *, why: str | None = None) -> None:
        super().__init__(message)
        self.why = why


class ToolTimeout(ToolError):
    """The tool took longer than its timeout."""

    outcome = "timeout"


Cause: TypeAlias = Literal["key", "quota", "busy", "down"]
"""Why a service is unavailable: it refuses the key, has no credit left, gets too many requests, or is down."""

Blame: TypeAlias = Literal["service", "request", "nobody"]
"""The cause of a failure, as it matters to other calls of the tool. `service`: every call fails. `request`: other calls
may fail, unless this request is the cause. `nobody`: the failure says nothing about other calls."""


class ToolUnavailable(ToolError):
    """The service that a tool depends on is unavailable.

    Args:
        message: the message for the model.
        why: the reason, for the log.
        cause: a retry may help after `down` and `busy`, waiting after `quota`, and only a person after `key`.
        wait: seconds until the service may be called again, if the service says so. An infinite time counts as None.
        blame: what the failure means for other calls.
    """

    outcome = "unavailable"

    def __init__(
        self,
        message: str,
        *,
        why: str | None = None,
        cause: Cause = "down",
        wait: float | None = None,
        blame: Blame = "request",
    ) -> None:
        super().__init__(message, why=why)
        self.cause = cause
        self.wait = wait if wait is not None and 0 <= wait < inf else None
        self.blame = blame


class NotUnderstood(ToolError):
    """A service refuses a request because of its content. Any other service would refuse it too."""

    outcome = "invalid_request"


class NotConfigured(ToolError):
    """The tool has no key, and is offered only because its fallback can answer."""

    outcome = "not_configured"


class CredentialMissing(ToolError):
    """The request lacks a header with a user's credential that the tool needs.

    Args:
        tool: the name of the tool.
        headers: the names of the headers that the request lacks.
    """

    outcome = "credential_missing"

    def __init__(self, tool: str, headers: Iterable[str]) -> None:
        super().__init__(NEEDS_HEADER.format(name=tool, headers=" and ".join(map(repr, sorted(headers)))))


class UrlNotAllowed(ToolError):
    """The request's filters, the operator or the page's own site do not permit the page."""

    outcome = "url_not_allowed"


class UnsupportedContent(ToolError):
    """The page is not text."""

    outcome = "unsupported_content_type"


class ResultRefused(ToolError):
    """The operator's check refused the result, or failed."""

    outcome = "refused"


class InvalidArguments(ToolError):
    """The model's arguments are not a JSON object, or do not fit the tool's schema."""

    outcome = "invalid_arguments"


def success(tool: str, output: ToolOutput, *, max_bytes: int) -> ToolResult:
    """A tool's output as a result: at most `max_bytes` of UTF-8, cut between characters, and fenced as data."""
    code = output.code and _harmless_code(output.code, max_bytes)
    text, hits = output.text, output.hits
    if len(text) > max_bytes or not text.isascii():
        text = _cut(text, max_bytes)
        hits = hits if len(text) == len(output.text) else tuple([_part_of(hit, text) for hit in hits])
    text = fence.harmless(text) if code is None else code.text
    content = fence.fenced(tool, text, output.sources)
    return ToolResult(content, sources=output.sources, text=text, hits=hits, cost=output.cost, code=code)


def _part_of(hit: SearchHit, text: str) -> SearchHit:
    """A hit with the part of its text that is left in the cut text of a search."""
    if hit.text in text:
        return hit
    begin = text.find(hit.text[:_SHORTEST_PART], max(0, text.find(hit.url)))
    part = commonprefix((hit.text, text[begin:])) if begin >= 0 else ""  # noqa: RUF071 - texts, not paths
    return replace(hit, text=part)


def _harmless_code(code: CodeResult, max_bytes: int) -> CodeResult:
    """The outcome of code, with each part safe for the model. Errors take at most half of the room."""
    stderr = fence.harmless(_cut(code.stderr, max_bytes // 2))
    stdout = fence.harmless(_cut(code.stdout, max(0, max_bytes - len(stderr.encode()))))
    return CodeResult(stdout, stderr, code.return_code)


def fenced(tool: str, text: str, sources: Mapping[str, str] = MappingProxyType({})) -> str:
    """A tool's text that a client has sent back, in a fence; `sources` as in `ToolOutput`."""
    return success(tool, ToolOutput(text, sources), max_bytes=len(text.encode("utf-8", "replace"))).content


def failure(message: str, *, outcome: str = "error") -> ToolResult:
    """The answer to a call that could not be carried out, in the proxy's own words, which may quote other texts."""
    return ToolResult(_error(fence.harmless(_cut(message, _LONGEST_FAILURE))), failed=True, outcome=outcome)


def failure_of(tool: str, message: str, *, outcome: str = "error", max_bytes: int) -> ToolResult:
    """The answer to a call that a tool could not carry out, in the tool's own words, fenced as data."""
    text = fence.harmless(_cut(message, max_bytes))
    return ToolResult(_error(fence.fenced(tool, text)), failed=True, text=_error(text), outcome=outcome)


def quoting(result: ToolResult, arguments: str) -> ToolResult:
    """The answer to a failed call, with the call's arguments quoted in it, because the history cannot contain them."""
    shown = arguments if len(arguments) <= _LONGEST_QUOTED else f"{arguments[:_LONGEST_QUOTED]} [...]"
    quoted = fence.harmless(shown.encode("utf-8", "replace").decode())
    return replace(result, content=orjson.dumps({**orjson.loads(result.content), "arguments": quoted}).decode())


def _error(text: str) -> str:
    return orjson.dumps({"error": text}).decode()


def with_note(result: ToolResult, note: str) -> str:
    """A result's content with a note to the model; a failure stays one JSON object."""
    if not result.failed:
        return f"{result.content}\n\n{note}"
    return orjson.dumps({**orjson.loads(result.content), "note": note}).decode()


def without_note(content: str, note: str) -> str:
    """The content as it was before `with_note`."""
    if content.endswith(f"\n\n{note}"):
        return content.removesuffix(f"\n\n{note}")
    return content.replace(f',"note":{orjson.dumps(note).decode()}', "")


def halved(content: str) -> str:
    """A result cut to its first half, with a note that says so; a short result is left as it is.

    The fence, and the text after it, stay.
    """
    if content.startswith(_FAILURE):
        failed = orjson.loads(content)
        return orjson.dumps({**failed, "error": halved(failed["error"])}).decode()
    text, rest = _text_and_rest(content)
    if len(text) < _SHORTEST_HALVED:
        return content
    return text[: len(text) // 2] + RESULT_HALVED + rest


def left_out(content: str) -> str:
    """A result with a note instead of its text; a result that is no longer than the note stays as it is."""
    if content.startswith(_FAILURE):
        failed = orjson.loads(content)
        return orjson.dumps({**failed, "error": left_out(failed["error"])}).decode()
    text, rest = _text_and_rest(content)
    head, mark, _ = text.partition(">\n")
    without = (head + mark if text.startswith(fence.OPENING) else "") + RESULT_LEFT_OUT
    return without + rest if len(without) < len(text) else content


def _text_and_rest(content: str) -> tuple[str, str]:
    """A result up to the end of the tool's text, without the note of an earlier cut; and the rest."""
    text, mark, rest = content.partition(fence.CLOSING)
    return text.removesuffix(RESULT_HALVED), mark + rest


def _cut(text: str, max_bytes: int) -> str:
    data = text[: max_bytes + 1].encode("utf-8", "replace")  # a character has at least one byte
    if len(data) <= max_bytes:
        return data.decode()
    shown = data[:max_bytes].decode("utf-8", "ignore")
    return shown + RESULT_CUT.format(total=len(text), shown=len(shown))
