"""Finds pictures in a conversation, and replaces or moves them for models that cannot see them."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from proxy.loop.prompts import PICTURE_BEFORE, PICTURE_BELOW, PICTURES
from proxy.wire.chat import Json


def has_picture(messages: Sequence[Json], *, anywhere: bool = False) -> bool:
    """Whether the last user message or a result after it has a picture. With `anywhere`, any message counts."""
    for message in reversed(messages):
        role = message.get("role")
        if (anywhere or role in ("user", "tool")) and _holds_picture(message):
            return True
        if role == "user" and not anywhere:
            return False
    return False


def without_pictures(messages: Sequence[Json], *, note: str = PICTURE_BEFORE) -> Sequence[Json]:
    """The messages with a note instead of each picture; `messages` itself if there is no picture."""
    if not any(map(_holds_picture, messages)):
        return messages
    instead = {"type": "text", "text": note}
    return [
        {**message, "content": [instead if _is_picture(part) else part for part in message["content"]]}
        if _holds_picture(message)
        else message
        for message in messages
    ]


def with_pictures_after_results(messages: Sequence[Json]) -> Sequence[Json]:
    """The messages with pictures of tool results moved into a user message after them; `messages` if there are none.

    Some upstreams accept only text as the result of a tool.
    """
    if not any(_holds_picture(message) and _is_result(message) for message in messages):
        return messages
    moved: list[Json] = []
    for is_result, group in groupby(messages, key=_is_result):
        pictures: list[Json] = []
        for message in group:
            if not (is_result and _holds_picture(message)):
                moved.append(message)
                continue
            pictures += filter(_is_picture, message["content"])
            rest = [part for part in message["content"] if not _is_picture(part)]
            moved.append({**message, "content": rest or PICTURE_BELOW})
        if pictures:
            moved.append({"role": "user", "content": [{"type": "text", "text": PICTURES}, *pictures]})
    return moved


def _is_result(message: Json) -> bool:
    return bool(message.get("role") == "tool")


def _holds_picture(message: Json) -> bool:
    content = message.get("content")
    return isinstance(content, list) and any(map(_is_picture, content))


def _is_picture(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "image_url"
