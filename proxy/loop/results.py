"""Tool results as a model gets them: fenced as data, bounded, and never able to close their own fence."""

import re

import orjson

from proxy.loop.chat import ToolOutput, ToolResult
from proxy.loop.prompts import RESULT_CUT, RESULT_IS_DATA

_CLOSE = "\n</tool_result>"
_CLOSING = re.compile(r"<\s*/\s*tool_result", re.IGNORECASE)
# Control characters, some of which break chat templates; what turns the direction of text around; and the tag
# characters, with which text is written that people do not see and models read.
_INVISIBLE = (*range(32), *range(127, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A), *range(0xE0000, 0xE0080))
_CONTROL = re.compile("[" + "".join(re.escape(chr(code)) for code in _INVISIBLE if chr(code) not in "\n\t") + "]")
_CANNOT_STAND_IN_A_TAG = re.compile(r"[^!#-;=?-~]+")
_LONGEST_SOURCE = 500

BEYOND_LIMIT = "budget"
"""The outcome of a call that was not run because of a limit."""


def success(tool: str, output: ToolOutput, *, max_bytes: int) -> ToolResult:
    """A tool's output, cut at `max_bytes` of UTF-8 at a character boundary, fenced as data with its source.

    It cannot end its own fence, and has no control characters, which some chat templates choke on.
    """
    text, source = output.text, ""
    if len(text) > max_bytes or not text.isascii():
        text = _cut(text, max_bytes)
    # This test costs little, and a search character by character costs 8 % of a request with one tool call.
    if not (text.isprintable() or text.replace("\n", "").replace("\t", "").isprintable()):
        text = _CONTROL.sub("", text)
    if "<" in text:
        text = _CLOSING.sub(r"<\\/tool_result", text)
    if len(output.sources) == 1:  # the result is a page
        (url,) = output.sources
        source = f' source="{_CANNOT_STAND_IN_A_TAG.sub("", url)[:_LONGEST_SOURCE]}"'
    fenced = f'<tool_result tool="{tool}"{source} note="{RESULT_IS_DATA}">\n{text}{_CLOSE}'
    return ToolResult(fenced, sources=output.sources, text=text, hits=output.hits, stand_in=output.stand_in)


def failure(message: str, *, outcome: str = "error", max_bytes: int = 2048) -> ToolResult:
    """The answer to a call that could not be carried out."""
    encodable = message.encode("utf-8", "replace").decode()  # without lone surrogates, which UTF-8 cannot hold
    content = orjson.dumps({"error": _cut(encodable, max_bytes)}).decode()
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
