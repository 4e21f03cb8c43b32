"""What a tool call comes to: the tool's output or its failure, and the result that the model reads.

A result is fenced as data, bounded, and never able to close its own fence.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar, Literal, TypeAlias

import orjson
from msgspec import Struct

from proxy.loop.prompts import RESULT_CUT, RESULT_IS_DATA
from proxy.loop.search import SearchHit

_CLOSE = "\n</tool_result>"
_CLOSING = re.compile(r"<\s*/\s*tool_result", re.IGNORECASE)
INVISIBLE = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\U000e0000-\U000e007f]")
"""Control characters but tab and newline, some of which break chat templates; what turns the direction of text around;
and the tag characters, with which text is written that people do not see and models read."""
_CANNOT_STAND_IN_A_TAG = re.compile(r"[^!#-;=?-~]+")
_LONGEST_SOURCE = 500
_LONGEST_FAILURE = 2048  # bytes of UTF-8

BEYOND_LIMIT = "budget"
"""The outcome of a call that was not run because of a limit."""


class ToolOutput(Struct, frozen=True):
    """The output of a tool.

    Attributes:
        text: for the model.
        sources: the pages that it comes from, URL -> title.
        hits: what a search found, page by page; empty for tools that do not search.
        cost: of the call; 0 where it came from a cache; None: the tool has no price.
        answered_by: the fallback that answered in place of the tool that was called.
        note: for the operator alone, such as why nothing was found where a service may be described wrongly.
    """

    text: str
    sources: Mapping[str, str] = MappingProxyType({})
    hits: tuple[SearchHit, ...] = ()
    cost: float | None = None
    answered_by: str | None = None
    note: str | None = None

    @property
    def log_fields(self) -> dict[str, str | int]:
        """Fields of the event of a call: how many pages were found, which fallback answered, the note."""
        fields: dict[str, str | int] = {"results": len(self.hits)} if self.hits else {}
        if self.answered_by is not None:
            fields["answered_by"] = self.answered_by
        if self.note is not None:
            fields["note"] = self.note
        return fields


class ToolResult(Struct, frozen=True):
    """The result of one call, as the model reads it.

    Attributes:
        content: for the model.
        failed: whether the call could not be carried out.
        sources: the pages that it comes from, URL -> title, which may be cited.
        text: of the tool's output alone, as far as the model reads it.
        hits: what a search found, page by page.
        outcome: of a call that failed, in one word; `budget`: it was beyond a limit and was not run.
        cost: of the call; None: the tool has no price, or the call failed.
    """

    content: str
    failed: bool = False
    sources: Mapping[str, str] = MappingProxyType({})
    text: str = ""
    hits: tuple[SearchHit, ...] = ()
    outcome: str = ""
    cost: float | None = None


class ToolError(Exception):
    """A tool call that failed. The message is for the model; `why` is for the log alone."""

    outcome: ClassVar[str] = "error"

    def __init__(self, message: str, *, why: str | None = None) -> None:
        super().__init__(message)
        self.why = why


class ToolTimeout(ToolError):
    """The tool took longer than its timeout."""

    outcome = "timeout"


Cause: TypeAlias = Literal["key", "quota", "busy", "down"]
"""Why a service does not serve: the key is refused, the credit is used up, too many requests, or it does not work."""


class ToolUnavailable(ToolError):
    """The service that a tool depends on does not serve.

    Args:
        message: for the model.
        why: for the log.
        cause: `down` and `busy` may be mended by another try, `quota` by time, `key` only by another configuration.
        wait: seconds until the service may be asked again, if it says so.
    """

    outcome = "unavailable"

    def __init__(
        self, message: str, *, why: str | None = None, cause: Cause = "down", wait: float | None = None
    ) -> None:
        super().__init__(message, why=why)
        self.cause = cause
        self.wait = wait


class NotUnderstood(ToolError):
    """A service refuses a request for what it asks; another service would as well."""

    outcome = "invalid_request"


class NotConfigured(ToolError):
    """A tool that is offered for the sake of its fallback, because it has no key of its own."""

    outcome = "not_configured"


class UrlNotAllowed(ToolError):
    """A page that the filters of a request, the operator or the page's own site rule out."""

    outcome = "url_not_allowed"


class UnsupportedContent(ToolError):
    """A page that is not text."""

    outcome = "unsupported_content_type"


class InvalidArguments(ToolError):
    """The model's arguments are not a JSON object, or do not fit the tool's schema."""

    outcome = "invalid_arguments"


def success(tool: str, output: ToolOutput, *, max_bytes: int) -> ToolResult:
    """A tool's output, cut at `max_bytes` of UTF-8 at a character boundary, fenced as data with its source.

    It cannot end its own fence, and has no control characters, which some chat templates choke on.
    """
    text, source = output.text, ""
    if len(text) > max_bytes or not text.isascii():
        text = _cut(text, max_bytes)
    # This test costs little, and a search character by character costs 8 % of a request with one tool call.
    if not (text.isprintable() or text.replace("\n", "").replace("\t", "").isprintable()):
        text = INVISIBLE.sub("", text)
    if "<" in text:
        text = _CLOSING.sub(r"<\\/tool_result", text)
    if len(output.sources) == 1:  # the result is a page
        (url,) = output.sources
        source = f' source="{_CANNOT_STAND_IN_A_TAG.sub("", url)[:_LONGEST_SOURCE]}"'
    fenced = f'<tool_result tool="{tool}"{source} note="{RESULT_IS_DATA}">\n{text}{_CLOSE}'
    return ToolResult(fenced, sources=output.sources, text=text, hits=output.hits, cost=output.cost)


def fenced(tool: str, text: str, sources: Mapping[str, str] = MappingProxyType({})) -> str:
    """A tool's text that a client has brought back, in its fence; `sources` as `ToolOutput` has them."""
    return success(tool, ToolOutput(text, sources), max_bytes=len(text.encode("utf-8", "replace"))).content


def unfenced(content: str) -> str:
    """The tool's own text in a success, or in a part of one: without the fence, and what stands outside it."""
    text = content.partition(_CLOSE)[0]
    return text.partition(">\n")[2] if text.startswith("<tool_result ") else text


def failure(message: str, *, outcome: str = "error") -> ToolResult:
    """The answer to a call that could not be carried out."""
    encodable = message.encode("utf-8", "replace").decode()  # without lone surrogates, which UTF-8 cannot hold
    content = orjson.dumps({"error": _cut(encodable, _LONGEST_FAILURE)}).decode()
    return ToolResult(content, failed=True, outcome=outcome)


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


def _cut(text: str, max_bytes: int) -> str:
    data = text[: max_bytes + 1].encode("utf-8", "replace")  # a character has at least one byte
    if len(data) <= max_bytes:
        return data.decode()
    shown = data[:max_bytes].decode("utf-8", "ignore")
    return shown + RESULT_CUT.format(total=len(text), shown=len(shown))
