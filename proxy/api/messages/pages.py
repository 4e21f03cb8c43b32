"""The results of visible server tools: written as blocks, and read back from the blocks that a client returns.

    pages_of    search_block, fetch_block, code_block, other_block, error_block    -->    the client
    search_in, model_text_of, other_text_of    <--    the client

A client carries the result of a search: the text that the model has read is cut into one piece per page, and each piece
is sealed beside its page as `encrypted_content`. The pieces together are exactly the same text again. A text without
pages is sealed in the block itself. The text of a fetched page is in its block unsealed. The note on the budget that
followed it is not, because it would be out of date. What code has printed is in its block likewise.
"""

import re
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

from msgspec import Struct

from proxy.api.messages.tools import CODE, FETCH
from proxy.loop import results
from proxy.loop.actions import AnsweredCall
from proxy.loop.fence import unfenced
from proxy.loop.prompts import EMPTY_RESULT
from proxy.loop.results import BEYOND_LIMIT
from proxy.turn.citations import is_longer_url
from proxy.wire.chat import Json, text_of
from proxy.wire.code import CodeResult
from proxy.wire.search import SearchHit

SERVER_NAME = "toolproxy"
"""The `server_name` in the blocks of tools for which this API has no type."""

_DAY = re.compile(r"(?:.{1,100} - )?(?:updated )?\d{4}-\d\d-\d\d")  # the line of a hit with its source and date
_MOST_CITED = 150  # characters; Anthropic's bound
# The outcome of a failed call -> its `error_code`.
_CODES = {BEYOND_LIMIT: "max_uses_exceeded", "invalid_arguments": "invalid_tool_input", "busy": "too_many_requests"}
_OUTCOMES_OF_PAGES = ("url_not_allowed", "unsupported_content_type")


class FoundPage(Struct, frozen=True):
    """A page that a search has found.

    Attributes:
        url, title: those of the page.
        piece: the part about the page in the text that the model has read.
        text: the tool's own text about the page.
        published: the day on which the page appeared, `YYYY-MM-DD`; None: unknown.
    """

    url: str
    title: str
    piece: str
    text: str
    published: str | None = None

    def citation(self, seal: Callable[[str], str]) -> Json:
        """A citation of the page, with the beginning of the tool's text about it, without title, URL and date."""
        lines = [line.strip() for line in self.text.split("\n")]
        own = [line for line in lines if line and line not in (self.title, self.url) and not _DAY.fullmatch(line)]
        cited = (" ".join(own) or self.title)[:_MOST_CITED]
        citation = {"type": "web_search_result_location", "url": self.url, "title": self.title, "cited_text": cited}
        return {**citation, "encrypted_index": seal(self.url)}


def pages_of(answered: AnsweredCall) -> list[FoundPage]:
    """The pages that a search has found, in the order of the text that the model has read."""
    sources, text = answered.result.sources, answered.content
    found = sorted((at, url) for url in sources if (at := _place_of(url, text)) >= 0)
    begins = [0, *(_paragraph(text, at)[0] for at, _ in found[1:])]  # the head of the result belongs to its first page
    pieces = {
        url: text[begin:end] for (_, url), (begin, end) in zip(found, pairwise([*begins, len(text)]), strict=False)
    }
    hits = {hit.url: hit for hit in answered.result.hits}
    pages: list[FoundPage] = []
    for url in (*pieces, *(url for url in sources if url not in pieces)):
        hit = hits.get(url) or SearchHit(url, sources[url] or url, "")
        about = hit.text or _text_about(url, answered.result.text)
        pages.append(FoundPage(url, hit.title, pieces.get(url, ""), about, hit.published))
    return pages


def _text_about(url: str, text: str) -> str:
    """The paragraph about a page in the text of a search."""
    at = _place_of(url, text)
    begin, end = _paragraph(text, at) if at >= 0 else (0, 0)
    return text[begin:end]


def _place_of(url: str, text: str) -> int:
    """The index at which a text names a URL, not counting longer URLs that begin with it; -1: nowhere.

    A search names each page on a line of its own; the text of another page may name it as well.
    """
    if (line := text.find(f"\n{url}\n")) >= 0:
        return line + 1
    at = text.find(url)
    while at >= 0 and is_longer_url(text, at + len(url)):
        at = text.find(url, at + 1)
    return at


def _paragraph(text: str, at: int) -> tuple[int, int]:
    """The beginning and the end of the paragraph around an index."""
    before, after = text.rfind("\n\n", 0, at), text.find("\n\n", at)
    return before + 2 if before >= 0 else 0, after if after >= 0 else len(text)


def error_block(kind: str, call_id: str, outcome: str) -> Json:
    """The result block of a failed call of the tool with the client's name `kind`; no outcome: it has no result."""
    code = "unavailable" if kind == CODE else _CODES.get(outcome, "unavailable")
    if kind == FETCH and outcome and outcome not in _CODES:
        code = outcome if outcome in _OUTCOMES_OF_PAGES else "url_not_accessible"
    name = f"{kind}_tool_result"
    return {"type": name, "tool_use_id": call_id, "content": {"type": f"{name}_error", "error_code": code}}


def search_block(call_id: str, pages: list[FoundPage], text: str, seal: Callable[[str], str]) -> Json:
    """The result block of a search.

    Without pages, such as where a search knows the answer itself, the block carries the text that the model has read.
    """
    listed = [
        {
            "type": "web_search_result",
            "url": page.url,
            "title": page.title,
            "encrypted_content": seal(page.piece),
            "page_age": page.published,
        }
        for page in pages
    ]
    block: Json = {"type": "web_search_tool_result", "tool_use_id": call_id, "content": listed}
    return block if pages else {**block, "encrypted_content": seal(text)}


def fetch_block(call_id: str, answered: AnsweredCall, retrieved_at: str) -> Json:
    """The result block of a fetched page."""
    url, title = next(iter(answered.result.sources.items()), ("", ""))
    document = {
        "type": "document",
        "source": {"type": "text", "media_type": "text/plain", "data": answered.result.text},
        "title": title or None,
        "citations": {"enabled": False},
    }
    page = {"type": "web_fetch_result", "url": url, "retrieved_at": retrieved_at, "content": document}
    return {"type": "web_fetch_tool_result", "tool_use_id": call_id, "content": page}


def code_block(call_id: str, code: CodeResult) -> Json:
    """The result block of code that was run."""
    said = {"stdout": code.stdout, "stderr": code.stderr, "return_code": code.return_code}
    outcome = {"type": "code_execution_result", **said, "content": []}
    return {"type": "code_execution_tool_result", "tool_use_id": call_id, "content": outcome}


def other_block(call_id: str, text: str, *, is_error: bool) -> Json:
    """The result block of any other tool."""
    content = [{"type": "text", "text": text}] if text else []
    return {"type": "mcp_tool_result", "tool_use_id": call_id, "is_error": is_error, "content": content}


def other_text_of(content: Any, tool: str, *, is_error: bool) -> str:
    """The result of any other tool as the model has read it, from the content of the result block.

    The text of a failed call has no fence.
    """
    text = text_of({"content": content})
    if is_error:
        return text or EMPTY_RESULT
    return results.fenced(tool, text) if text else EMPTY_RESULT


def model_text_of(content: Any, tool: str) -> str:
    """A page, the outcome of code or a failed call as the model has read it, from the content of the result block."""
    match content:
        case {"type": str(kind), "error_code": code} if kind.endswith("_error"):
            return results.failure(str(code)).content
        case {"type": "web_fetch_result", "content": {"source": {"data": str(data)}}} if data:
            url = content.get("url")
            sources: Mapping[str, str] = {url: ""} if isinstance(url, str) and url else {}
            return results.fenced(tool, data, sources)
        case {"type": "code_execution_result", "stdout": str(stdout), "stderr": str(stderr), "return_code": int(code)}:
            return results.fenced(tool, CodeResult(stdout, stderr, code).text)
        case _:
            return EMPTY_RESULT


def search_in(content: list[Any], tool: str, unseal: Callable[[Any], str | None]) -> tuple[list[FoundPage], str]:
    """The pages in the content of a search's result block, and the result as the model has read it.

    A piece that `unseal` cannot open is replaced by the title and the URL.
    """
    pages: list[FoundPage] = []
    is_ours = False
    for page in content:
        if not isinstance(page, dict):
            continue
        url, title = (value if isinstance(value := page.get(key), str) else "" for key in ("url", "title"))
        piece = unseal(page.get("encrypted_content"))
        is_ours = is_ours or piece is not None
        about = _text_about(url, unfenced(piece)) if piece is not None and url else ""
        pages.append(FoundPage(url, title or url, f"{title}\n{url}\n\n" if piece is None else piece, about))
    text = "".join([page.piece for page in pages])
    return pages, text if is_ours or not pages else results.fenced(tool, text.strip())
