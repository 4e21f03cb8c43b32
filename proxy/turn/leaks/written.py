"""Calls in a text that has to be the answer, in formats that are recognised and not parsed.

A text that consists of such calls or of thoughts, or that holds the marks of a raw format, is not an answer. Neither is
a sentence before an object that is sure to be a call, because it names a tool:
`I will look: {"name": ..., "arguments": ...}`.
"""

import re
from collections.abc import Callable, Mapping

from proxy.turn.json_mode import JsonMode
from proxy.turn.leaks import bare_name, fitting_tool, glm, harmony, one_of
from proxy.turn.leaks.bare import (
    BROWSER_ARGUMENTS,
    CALL_KEYS,
    FIRST_KEY,
    is_browsers_call,
    may_be_named_call,
    named_call,
)
from proxy.wire.chat import Json
from proxy.wire.json_text import json_value

PROOF_CHARACTERS = 160
"""A forced turn counts as an answer, and is shown, once it has this much text before any call. "I'll search ..." before
one more tool call is shorter, and at a model's usual speed the wait is a second or two."""

# A longer text is an answer: no model writes calls of 60,000 tokens in a turn that has to be the answer.
_LONGEST_CALLS = 256 * 1024
_CODE = re.compile(r"(```|~~~).*?(?:\1|\Z)|(`+)[^\n]*?\2", re.DOTALL)
_LONGEST_KEY = 512  # characters in which the first key of a call, and the name behind it, have their place
_FENCE_BEGUN = re.compile(r"(?:```|~~~)\w*\s")
_FENCED = re.compile(r"(```|~~~)\w*\s(.*?)\s*\1", re.DOTALL)
# A string, whose brackets do not count, or a bracket. The string is possessive and may end with the text, so that a
# text of quotation marks and backslashes is read only once.
_BRACKET = re.compile(r'"(?:[^"\\]|\\.?)*+(?:"|\Z)|[()\[\]{}]', re.DOTALL)
# A call in harmony without its marks, Kimi's without its own (`functions.web_search:0{`), or in the syntax of a
# programming language.
_WRITTEN_CALL = re.compile(
    r"(?:assistant)?(?:analysis|commentary)?\s*+((?:to=)?[\w.-]++)(?::\d{1,4})?(?:\s*+json)?+\s*+[({]"
)
# The beginnings of calls of Hermes, Llama, Mistral, Anthropic, MiniMax, Gemma and DeepSeek, and GLM's mark before a
# tool's result.
_FORMATS = (
    "<tool_call>", "<tool_calls>", "<function_call>", "<function_calls>", "<function=", "<invoke ", "[TOOL_CALLS]",
    "<minimax:tool_call>", "<|tool_call>", "<|python_tag|>", "<\uff5ctool", "<\uff5cDSML", "<|observation|>",
)  # fmt: skip
# A call as ReAct's prompts have it.
_REACT = re.compile(r"(?:Thought:[^\n]*\n\s*+)?Action:[ \t]*+([\w.-]{1,128})[ \t]*+\nAction Input:", re.ASCII)
# The keys under which models write the name of the tool that an object calls.
_NAME_KEYS = ("name", "tool", "tool_name", "function", "action")
_CHANNELS = re.compile(r"(?:assistant)?analysis.*assistantfinal", re.DOTALL)  # harmony without its marks
_CHANNEL_BEGUN = re.compile(r"(?:assistant)?analysis")
_KIMIS_MARKS = ("<|tool_calls_section_begin|>", "<|tool_call_begin|>")
_RAW_MARK = re.compile(one_of((glm.OPEN, glm.ARGUMENT, *harmony.MARKS, *_KIMIS_MARKS)))
_THOUGHTS = re.compile(r"\A\s*<think>.*?(?:</think>|\Z)", re.DOTALL)
THOUGHTS_END = "</think>"
# The special tokens between the messages of a conversation, in the templates of GLM, Qwen, Kimi and Llama.
_ONLY_TOKENS = re.compile(
    r"<\|(?:(?:<\|)?(?:user|assistant|system|im_start|im_middle|im_end|endoftext|begin_of_text|end_of_text|eot_id|eom_id"
    r"|start_header_id|end_header_id)\|>|user|assistant|system|\s)+"
)
_OBJECT = re.compile(r'(?:\[\s{0,8})?\{\s{0,8}"')
# The first keys of such an object: a call, a call in OpenAI's format, or a message with calls.
_FIRST_KEYS = CALL_KEYS | {"function", "tool_calls", "role", "content"}
_BETWEEN_CALLS = " \t\r\n,;"


def holds_raw_format(text: str) -> bool:
    """Whether a text still holds markers of a raw format outside of code, so that it is not an answer."""
    if _RAW_MARK.search(text) is None:  # the other pattern takes far longer
        return False
    return _RAW_MARK.search(_CODE.sub("", text)) is not None


def is_bare_call(text: str, tools: Mapping[str, Json], *, json_mode: Callable[[], JsonMode]) -> bool:
    """Whether a text consists of calls or thoughts, in any syntax, or begins with a raw format for them.

    Args:
        text: the text of a turn that has to be the answer.
        tools: the names that may be called -> their JSON Schemas.
        json_mode: how the client asked for JSON, so that an object may be the answer.
    """
    if len(text) > _LONGEST_CALLS:
        return False
    words = _THOUGHTS.sub("", text)
    if _ends_with_calls(words, tools):
        asked = json_mode()
        # After a sentence, the object may be an example that the client has asked for.
        return asked is JsonMode.NO or (asked is JsonMode.BY_PROMPT and words.lstrip()[:1] in ("{", "["))
    if not words.strip():
        return bool(text.strip())
    text = words.strip()
    if fenced := _FENCED.fullmatch(text):
        text = fenced[2].strip()
    value = json_value(text)
    if is_browsers_call(value):
        return json_mode() is not JsonMode.BY_FORMAT
    if isinstance(value, dict):
        names = [value[key] for key in _NAME_KEYS if isinstance(value.get(key), str)]
        is_named = any(bare_name(name) in tools for name in names)
        is_call = is_named or fitting_tool(value, tools) is not None or BROWSER_ARGUMENTS.issuperset(value)
        return bool(value) and is_call and json_mode() is JsonMode.NO
    is_raw = _opens_call(text, tools) or _ONLY_TOKENS.fullmatch(text) is not None
    return is_raw or _CHANNELS.match(text) is not None or _is_written_calls(text, tools)


def opens_thoughts(text: str) -> bool:
    """Whether a text begins with thoughts that are not closed."""
    return text.lstrip().startswith("<think>") and THOUGHTS_END not in text


def is_proven(text: str, tools: Mapping[str, Json]) -> bool | None:
    """Whether a text is sure to be an answer, even if more of it follows; None: it is too short to tell.

    Only the text after a model's thoughts counts, and it must not begin like a text that consists of calls.
    """
    text = _THOUGHTS.sub("", text)
    return None if len(text) < PROOF_CHARACTERS else not (_may_be_bare_call(text, tools) or holds_raw_format(text))


def _may_be_bare_call(text: str, tools: Mapping[str, Json]) -> bool:
    if any(
        char == "{" and _may_be_call(text[at : at + _LONGEST_KEY], tools)
        for at, char in enumerate(text[:PROOF_CHARACTERS])
    ):
        return True
    begun = _FENCE_BEGUN.sub("", text.lstrip(), count=1).lstrip()
    written = _WRITTEN_CALL.match(begun.removeprefix("["))
    is_written = written is not None and bare_name(written[1]) in tools
    return begun.startswith("{") or _opens_call(begun, tools) or _CHANNEL_BEGUN.match(begun) is not None or is_written


def _opens_call(text: str, tools: Mapping[str, Json]) -> bool:
    """Whether a text begins with a raw format for calls, or as ReAct calls one of the tools."""
    return text.startswith(_FORMATS) or ((react := _REACT.match(text)) is not None and bare_name(react[1]) in tools)


def _may_be_call(begun: str, tools: Mapping[str, Json]) -> bool:
    """Whether a text that begins with a brace may become an object that names a tool to be called."""
    key = FIRST_KEY.match(begun)
    if key is None:
        return begun[1:].lstrip()[:1] in ("", '"')
    return key[1] in _FIRST_KEYS and (key[1] != "name" or may_be_named_call(begun, tools))


def _ends_with_calls(text: str, tools: Mapping[str, Json]) -> bool:
    """Whether a text consists of objects that name tools to be called, after a sentence at most."""
    at = 0
    while (match := _OBJECT.search(text, at)) and text.index("{", match.start()) < PROOF_CHARACTERS:
        start, at = match.start(), _end_of_bracket(text, match.start())
        while text.startswith(("{", "["), start):
            end = _end_of_bracket(text, start)
            if not _names_calls(json_value(text[start:end]), tools):
                break
            start = _next_call(text, end)
        if text[start:].strip() in ("", "```", "~~~"):
            return True
    return False


def _names_calls(value: object, tools: Mapping[str, Json]) -> bool:
    """Whether a value is a call that names one of the tools, a list of them, or a message with such `tool_calls`."""
    if isinstance(value, dict) and "tool_calls" in value:
        value = value["tool_calls"]
    calls = [
        call["function"] if isinstance(call, dict) and "function" in call else call
        for call in (value if isinstance(value, list) else [value])
    ]
    return bool(calls) and all(named_call(call, tools) for call in calls)


def _is_written_calls(text: str, tools: Mapping[str, Json]) -> bool:
    """Whether a text consists of calls: `web_search ("x")` is a call, `search (noun): ...` only begins like one."""
    if text.startswith("[") and text.endswith("]"):  # a list of calls, as Llama 4 writes it
        text = text[1:-1]
    at = 0
    while written := _WRITTEN_CALL.match(text, at):
        if bare_name(written[1]) not in tools:
            return False
        at = _next_call(text, _end_of_bracket(text, written.end() - 1))
    return bool(text) and at == len(text)


def _next_call(text: str, at: int) -> int:
    """The index of the first character from `at` on that is not a separator between calls."""
    while at < len(text) and text[at] in _BETWEEN_CALLS:
        at += 1
    return at


def _end_of_bracket(text: str, start: int) -> int:
    """The index after the bracket that closes the one at `start`; the end of the text if it is not closed."""
    depth = 0
    for match in _BRACKET.finditer(text, start):
        depth += (match[0] in "([{") - (match[0] in ")]}")
        if depth == 0:
            return match.end()
    return len(text)
