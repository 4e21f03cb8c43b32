"""An estimate of a request's tokens, without asking an upstream.

The estimate is fitted to the counts that GLM itself reports (`usage.prompt_tokens`) for recorded conversations. It is
at most 9 % off for more than a hundred tokens. A text is cut into words, digits, signs and line breaks, as tokenizers
do; messages, calls and tools cost as much as GLM's own templates for them.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, TypeGuard

import orjson

from proxy.wire import rawjson
from proxy.wire.chat import Json
from proxy.wire.json_text import read_json
from proxy.wire.usage import token_count

_PIECES = re.compile(r"[A-Za-z]+|[0-9]|\s*\n\s*|[^\S\n]{2,}|[^\sA-Za-z0-9]+")
_WHOLE_WORD, _LETTERS_PER_TOKEN = 7, 4.5  # a word of up to 7 letters is a token, each further 4.5 letters another
_SIGN, _FURTHER_SIGN = 0.85, 0.18  # signs in a row are mostly one token
_IDEOGRAPH, _OTHER_LETTER = 0.65, 0.6  # Chinese, Japanese, Korean; accents, Greek, Cyrillic ...
_IDEOGRAPHS = re.compile(r"[\u2e80-\U0010ffff]+")
_LINE_BREAK, _INDENT = 0.9, 0.5

_CONVERSATION, _MESSAGE, _RESULT = 5, 2.5, 3
_CALL, _ARGUMENT = 5, 6
_TOOLS = 86  # the preamble on how to call tools
_EFFORT = 9  # the sentence on reasoning effort
# Claude Code sends 64 kB of tools with each request, which take 8 ms to count, and its whole conversation, which at 100
# rounds would take 1 ms to count again.
_LONG = 40  # characters
_PART = 65_536  # characters that are cut into pieces at a time, which takes 4 ms
_MOST_PARTS = 16  # of one text
_PICTURE = 1000  # for a picture of about a megapixel


def count_tokens(chat: Json) -> int:
    """The estimated tokens of a chat request: messages, tools and pictures; at least 1.

    Raises:
        InvalidJson: a tool is nested too deep to be sent to an upstream.
    """
    total: float = _CONVERSATION + sum(tokens_of(message) for message in chat.get("messages") or ())
    if chat.get("reasoning_effort"):
        total += _EFFORT
    if tools := chat.get("tools"):
        total += _TOOLS + sum(tokens_in_text(rawjson.dumps(tool).decode()) for tool in tools)
    return max(1, round(total))


def has_all_counts(usage: Json | None) -> TypeGuard[Json]:
    """Whether a credible usage (`usage.credible`) lacks no count of tokens."""
    return usage is not None and "prompt_tokens" in usage and "completion_tokens" in usage and "total_tokens" in usage


def with_estimates(usage: Json | None, read: Callable[[], float], written: Callable[[], float]) -> Json:
    """The usage of an upstream call with both counts of tokens; a count that is missing is estimated.

    Args:
        usage: the upstream's own counts, as far as they are credible (`usage.credible`).
        read: estimates the tokens of the request.
        written: estimates the tokens of what the model has written.
    """
    usage = usage or {}
    asked, wrote = token_count(usage, "prompt_tokens"), token_count(usage, "completion_tokens")
    asked = round(read()) if asked is None else asked
    wrote = round(written()) if wrote is None else wrote
    return {**usage, "prompt_tokens": asked, "completion_tokens": wrote, "total_tokens": asked + wrote}


def tokens_in_text(text: str) -> float:
    """The estimated tokens of a text."""
    return sum(map(_of_piece, _PIECES.findall(text))) if len(text) < _LONG else _counted_once(_in_long_text, text)


def _counted_once(count: Callable[[str], float], text: str) -> float:
    """What `count` makes of a text; it is kept by the text's hash, because clients send the text again."""
    kept = _kept(count, len(text), hash(text))
    if not kept:
        kept.append(count(text))
    return kept[0]


@lru_cache(maxsize=32_768)  # of 350 bytes each
def _kept(count: Callable[[str], float], length: int, text_hash: int) -> list[float]:  # noqa: ARG001 - they are the key
    """The place of an estimate, empty at first. `lru_cache`, unlike caches in Python, costs less than the estimates."""
    return []


def _in_long_text(text: str) -> float:
    """The estimated tokens of a long text; of a very long one, only evenly spaced parts are counted."""
    parts = range(0, len(text), _PART)
    counted = [text[at : at + _PART] for at in parts[:: len(parts) // _MOST_PARTS + 1]]
    return sum(map(_of_part, counted)) * len(text) / sum(map(len, counted))


def _of_part(text: str) -> float:
    """The estimated tokens of a part of a long text, in which most pieces come several times."""
    return sum(_of_piece(piece) * times for piece, times in Counter(_PIECES.findall(text)).items())


def _of_piece(piece: str) -> float:
    first = piece[0]
    if not first.isascii():
        ideographs = sum(map(len, _IDEOGRAPHS.findall(piece)))
        return ideographs * _IDEOGRAPH + (len(piece) - ideographs) * _OTHER_LETTER
    if first.isalpha():
        return 1 + max(0, len(piece) - _WHOLE_WORD) / _LETTERS_PER_TOKEN
    if first.isdigit():
        return 1
    if first.isspace():
        return _LINE_BREAK if "\n" in piece else _INDENT
    return _SIGN + (len(piece) - 1) * _FURTHER_SIGN


class CountedMessage(dict[str, Any]):
    """A message that clients send again, and that never changes. It keeps the estimate of its tokens."""

    __slots__ = ("tokens",)

    def __init__(self, message: Json) -> None:
        super().__init__(message)
        self.tokens: float | None = None


def tokens_of(message: Mapping[str, Any]) -> float:
    """The estimated tokens of one message, whose fields may have any type; a value that is no text counts nothing."""
    if not isinstance(message, CountedMessage):
        return _of_message(message)
    if message.tokens is None:
        message.tokens = _of_message(message)
    return message.tokens


def _of_message(message: Mapping[str, Any]) -> float:
    total = _MESSAGE + (_RESULT if message.get("role") == "tool" else 0)
    content = message.get("content")
    if isinstance(content, list):
        total += sum(_of_content(part) for part in content if isinstance(part, dict))
    total += _of_any(content) + _of_any(message.get("reasoning_content"))
    return total + sum(_of_call(call.get("function") or {}) for call in message.get("tool_calls") or ())


def _of_content(part: Json) -> float:
    return _of_any(part.get("text")) if part.get("type") == "text" else _PICTURE


def _of_any(value: object) -> float:
    return tokens_in_text(value) if isinstance(value, str) else 0


def _of_call(function: Mapping[str, Any]) -> float:
    total, written = _CALL + _of_any(function.get("name")), function.get("arguments")
    return total + _counted_once(_of_arguments, written) if isinstance(written, str) else total


def _of_arguments(written: str) -> float:
    try:
        return _of_members(read_json(written or "{}"))
    except orjson.JSONDecodeError:
        return tokens_in_text(written)


def _of_members(arguments: Any) -> float:
    total: float = 0
    for name, value in arguments.items() if isinstance(arguments, dict) else ():
        total += (
            _ARGUMENT
            + tokens_in_text(name)
            + tokens_in_text(value if isinstance(value, str) else orjson.dumps(value).decode())
        )
    return total
