"""Tool results as a model gets them: fenced as data, bounded, and never able to close their own fence."""

import re

import orjson

from proxy.core.chat import ToolOutput, ToolResult

_OPEN = "<tool_result tool={name!r}>\n"
_CLOSE = "\n</tool_result>"
_CLOSING = re.compile(r"<\s*/\s*tool_result", re.IGNORECASE)
_CONTROL = {code: None for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}
_CUT = "\n[cut: {total} bytes in all, {kept} shown]"


def success(tool: str, output: ToolOutput, *, max_bytes: int) -> ToolResult:
    """What a tool returned, cut at `max_bytes` of UTF-8 at a character boundary, fenced with its source."""
    fenced = _OPEN.format(name=tool) + _harmless(_cut(output.text, max_bytes)) + _CLOSE
    return ToolResult(fenced, sources=output.sources)


def failure(message: str, *, max_bytes: int = 2048) -> ToolResult:
    """What the model is told when a call could not be carried out."""
    return ToolResult(orjson.dumps({"error": _cut(_encodable(message), max_bytes)}).decode(), failed=True)


def with_note(result: ToolResult, note: str) -> str:
    """A result's content with a word of ours to the model; a failure stays one JSON object."""
    if not result.failed:
        return f"{result.content}\n\n{note}"
    return orjson.dumps({**orjson.loads(result.content), "note": note}).decode()


def without_note(content: str, note: str) -> str:
    """The content as it was before `with_note`."""
    if content.endswith(f"\n\n{note}"):
        return content.removesuffix(f"\n\n{note}")
    return content.replace(f',"note":{orjson.dumps(note).decode()}', "")


def _harmless(text: str) -> str:
    """Text that cannot pretend to end its fence, without control characters that some chat templates choke on."""
    return _CLOSING.sub(r"<\\/tool_result", text.translate(_CONTROL))


def _encodable(text: str) -> str:
    """Lone surrogates cannot be written as UTF-8; a question mark stands in for each."""
    return text.encode("utf-8", "replace").decode()


def _cut(text: str, max_bytes: int) -> str:
    data = text.encode("utf-8", "replace")
    if len(data) <= max_bytes:
        return data.decode()
    kept = data[:max_bytes].decode("utf-8", "ignore")
    return kept + _CUT.format(total=len(data), kept=len(kept.encode()))
