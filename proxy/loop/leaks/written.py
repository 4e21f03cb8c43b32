"""Calls that a model writes out where its text has to be the answer, in formats that are not read.

A text that is nothing but such calls, or that holds the marks of a raw format, is no answer.
"""

import re
from collections.abc import Callable, Mapping

from proxy.loop.chat import Json
from proxy.loop.leaks import bare_name, fitting_tool, glm, harmony, parsed
from proxy.loop.leaks.bare import BROWSER_ARGUMENTS

_CODE = re.compile(r"(```|~~~).*?(?:\1|\Z)|(`+)[^\n]*?\2", re.DOTALL)
_FENCE_BEGUN = re.compile(r"(?:```|~~~)\w*\s")
_FENCED = re.compile(r"(```|~~~)\w*\s(.*?)\s*\1", re.DOTALL)
# A string, whose brackets do not count, or a bracket. Possessive and closed by the end of the text, so that a text of
# quotation marks and backslashes is read once.
_BRACKET = re.compile(r'"(?:[^"\\]|\\.?)*+(?:"|\Z)|[()\[\]{}]', re.DOTALL)
# Harmony without its marks, and a call in the syntax of a program.
_WRITTEN_CALL = re.compile(r"(?:assistant)?(?:analysis|commentary)?\s*((?:to=)?[\w.-]+)\s*(?:json)?\s*[({]")
# Of Hermes, Llama, Mistral, Anthropic and DeepSeek.
_FORMATS = (
    "<tool_call>", "<tool_calls>", "<function_call>", "<function_calls>", "<function=", "<invoke ", "[TOOL_CALLS]",
    "<|python_tag|>", "<\uff5ctool",
)  # fmt: skip
_CHANNELS = re.compile(r"(?:assistant)?analysis.*assistantfinal", re.DOTALL)  # harmony without its marks
_CHANNEL_BEGUN = re.compile(r"(?:assistant)?analysis")


def holds_raw_format(text: str) -> bool:
    """Whether a text still holds markers of a raw format outside of code: it is no answer then."""
    plain = _CODE.sub("", text) if "<" in text else ""  # every marker begins with it; the pattern takes far longer
    return glm.OPEN in plain or glm.ARGUMENT in plain or any(marker in plain for marker in harmony.MARKS)


def is_bare_call(text: str, tools: Mapping[str, Json], *, json_expected: Callable[[], bool]) -> bool:
    """Whether a text is nothing but tool calls, in whatever syntax, or begins with a raw format of calls or thoughts.

    Args:
        text: of a turn that has to be the answer.
        tools: the names that may be called -> their JSON Schemas.
        json_expected: whether the client asked for JSON, so that an object may be the answer.
    """
    text = text.strip()
    if fenced := _FENCED.fullmatch(text):
        text = fenced[2].strip()
    value = parsed(text)
    if isinstance(value, dict):
        is_named = isinstance(name := value.get("name"), str) and bare_name(name) in tools
        is_call = is_named or fitting_tool(value, tools) is not None or BROWSER_ARGUMENTS.issuperset(value)
        return bool(value) and is_call and not json_expected()
    return text.startswith(_FORMATS) or _CHANNELS.match(text) is not None or _is_written_calls(text, tools)


def may_be_bare_call(text: str, tools: Mapping[str, Json]) -> bool:
    """Whether a text of which more may come begins like one that is nothing but tool calls."""
    begun = _FENCE_BEGUN.sub("", text.lstrip(), count=1).lstrip()
    written = _WRITTEN_CALL.match(begun)
    is_written = written is not None and bare_name(written[1]) in tools
    return begun.startswith(("{", *_FORMATS)) or _CHANNEL_BEGUN.match(begun) is not None or is_written


def _is_written_calls(text: str, tools: Mapping[str, Json]) -> bool:
    """Whether a text is calls and nothing else: `web_search ("x")` is one, `search (noun): ...` begins like one."""
    rest = text
    while written := _WRITTEN_CALL.match(rest):
        if bare_name(written[1]) not in tools:
            return False
        rest = rest[_end_of_bracket(rest, written.end() - 1) :].lstrip(" \t\r\n;,")
    return bool(text) and not rest


def _end_of_bracket(text: str, start: int) -> int:
    """The place behind what the bracket at `start` encloses; the end of the text where it is not closed."""
    depth = 0
    for match in _BRACKET.finditer(text, start):
        depth += (match[0] in "([{") - (match[0] in ")]}")
        if depth == 0:
            return match.end()
    return len(text)
