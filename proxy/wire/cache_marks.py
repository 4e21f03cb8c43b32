"""Marks of caches: `cache_control` on a text says that a prompt up to there may be kept, as the Messages API has it.

Some upstreams read the marks on the parts of Chat Completions (`upstreams.NAME.cache_marks`). A client moves its marks
from request to request. So that a conversation reads the same wherever they stand, a content of several texts is a
list of parts then, of which all but the first begin with the blank line that is between the texts elsewhere.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from proxy.wire.chat import Json, text_of

MARK: Final = "cache_control"
"""The key of a mark in a block or a part."""


def markable_content(parts: Sequence[Json], between: str) -> str | list[Json]:
    """The content of a message of these parts, with their marks: a string if it is one text without a mark."""
    if len(parts) == 1 and parts[0]["type"] == "text" and MARK not in parts[0]:
        text: str = parts[0]["text"]
        return text
    if any(part["type"] != "text" for part in parts):
        return [*parts]
    return [*parts[:1], *({**part, "text": between + part["text"]} for part in parts[1:])]


def without_marks(messages: Sequence[Json]) -> list[Json]:
    """The messages as they are without marks, where a content that is only text is a string."""
    return [*map(_without_mark, messages)]


def _without_mark(message: Json) -> Json:
    content = message.get("content")
    if not isinstance(content, list):
        return message
    if all(isinstance(part, dict) and part.get("type") == "text" for part in content):
        return {**message, "content": text_of(message)}
    return {**message, "content": [*_unmarked(content)]}


def _unmarked(parts: Sequence[Json]) -> Iterator[Json]:
    for part in parts:
        yield {key: value for key, value in part.items() if key != MARK} if isinstance(part, dict) else part
