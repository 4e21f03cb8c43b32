"""The content parts of items -> parts of Chat Completions."""

from collections.abc import Iterable, Sequence
from typing import Any

from proxy.api.fields import refuse
from proxy.api.unshown import NO_FAULTS, Forgiven, NotShown, Unshown, note, picture_part, text_at, text_part, type_of
from proxy.wire.chat import Json
from proxy.wire.errors import RequestError

_TEXTS = {"input_text": "text", "output_text": "text", "text": "text", "summary_text": "text", "refusal": "refusal"}
_FILE = "input_file"


def chat_parts(
    parts: Sequence[Any], where: str, forgiven: Forgiven = NO_FAULTS, unshown: Unshown | None = None
) -> list[Json]:
    """The parts of a content in the form of Chat Completions.

    For the faults that are `forgiven`, a note takes the place of a part, and `unshown` takes the type of the part. For
    any other fault, `RequestError` is raised, with the place of the part in the content at `where` as `param`.
    """
    made: list[Json] = []
    for at, part in enumerate(parts):
        try:
            chat = _chat_part(part, f"{where}[{at}]")
        except forgiven:
            chat = _in_place_of(part)
            if unshown is not None:
                unshown.add(type_of(part))
        if made and "text" in chat and "text" in made[-1] and _FILE in (type_of(part), type_of(parts[at - 1])):
            chat["text"] = f"\n\n{chat['text']}"  # a file is not a part of the text next to it
        made.append(chat)
    return made


def holds_files(items: Iterable[Json]) -> bool:
    """Whether one of the items has a file, which may take long to read."""
    contents = [item.get("content") or item.get("output") for item in items]
    return any(type_of(part) == _FILE for content in contents if isinstance(content, list) for part in content)


def _chat_part(part: Any, where: str) -> Json:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "input_image":
        return _image(part, where)
    if kind == _FILE:
        return text_part(_file(part, where))
    if not isinstance(kind, str):
        refuse(where, "needs a 'type', a string")
    if kind not in _TEXTS:
        raise RequestError(f"A part of type {kind[:64]!r} is not supported.", param=where)
    if not isinstance(text := part.get(_TEXTS[kind]), str):
        raise RequestError(f"'{_TEXTS[kind]}' must be a string.", param=where)
    return text_part(text)


def _in_place_of(part: Any) -> Json:
    """The text of a part that cannot be shown, or else a note."""
    own = part.get("text") if isinstance(part, dict) else None
    return text_part(own) if isinstance(own, str) and own else note(type_of(part))


def _image(part: Json, where: str) -> Json:
    if not isinstance(part.get("image_url"), str):
        raise NotShown("A picture needs an 'image_url'; files are not kept here.", param=where)
    detail = {"detail": part["detail"]} if isinstance(part.get("detail"), str) else {}
    return picture_part(part["image_url"], where, **detail)


def _file(part: Json, where: str) -> str:
    """The text of a file that is sent as a data URL, with its name."""
    data, name = part.get("file_data"), part.get("filename")
    if not isinstance(data, str):
        raise NotShown("A file must come along as a data URL in 'file_data'.", param=where)
    text = text_at(data, where)
    return f"{name}:\n\n{text}" if isinstance(name, str) and name else text
