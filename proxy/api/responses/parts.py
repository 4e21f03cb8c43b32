"""The content parts of items -> parts of Chat Completions."""

from base64 import b64decode
from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote

from proxy.wire.chat import Json
from proxy.wire.errors import RequestError

_TEXTS = {"input_text": "text", "output_text": "text", "text": "text", "summary_text": "text", "refusal": "refusal"}
_FILE = "input_file"
_TEXT_MEDIA = ("text/", "application/json", "application/xml", "application/yaml")


def chat_parts(parts: Sequence[Any], where: str) -> list[Json]:
    """The parts of a content in the form of Chat Completions.

    Args:
        parts: the parts as the client sent them.
        where: their place in the request, for errors, such as `input[3].content`.

    Raises:
        RequestError: a part cannot be passed to a model; its place is `param`.
    """
    made: list[Json] = []
    for at, part in enumerate(parts):
        chat = _chat_part(part, f"{where}[{at}]")
        if made and "text" in chat and "text" in made[-1] and _FILE in (part["type"], parts[at - 1]["type"]):
            chat["text"] = f"\n\n{chat['text']}"  # a file is not a part of the text next to it
        made.append(chat)
    return made


def _chat_part(part: Any, where: str) -> Json:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "input_image":
        return _image(part, where)
    if kind == _FILE:
        return {"type": "text", "text": _text_file(part, where)}
    if not isinstance(kind, str):
        raise RequestError(f"'{where}' needs a 'type', a string.", param=where)
    if kind not in _TEXTS:
        raise RequestError(f"A part of type {kind[:64]!r} is not supported.", param=where)
    if not isinstance(text := part.get(_TEXTS[kind]), str):
        raise RequestError(f"'{_TEXTS[kind]}' must be a string.", param=where)
    return {"type": "text", "text": text}


def _image(part: Json, where: str) -> Json:
    if not isinstance(part.get("image_url"), str):
        raise RequestError("A picture needs an 'image_url'; files are not kept here.", param=where)
    detail = {"detail": part["detail"]} if isinstance(part.get("detail"), str) else {}
    return {"type": "image_url", "image_url": {"url": part["image_url"], **detail}}


def _text_file(part: Json, where: str) -> str:
    """The text of a file that is sent as a data URL."""
    data = part.get("file_data")
    head, comma, body = data.partition(",") if isinstance(data, str) else ("", "", "")
    media = head.removeprefix("data:")
    if not comma or not head.startswith("data:") or not media.startswith(_TEXT_MEDIA):
        raise RequestError("A file must hold text and come along as a data URL in 'file_data'.", param=where)
    try:
        text = b64decode(body, validate=True).decode() if media.endswith(";base64") else unquote(body, errors="strict")
    except ValueError as exc:
        raise RequestError("The file does not hold text.", param=where) from exc
    name = part.get("filename")
    return f"{name}:\n\n{text}" if isinstance(name, str) and name else text
