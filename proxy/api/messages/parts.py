"""Content blocks that a user sends -> parts of Chat Completions.

A block of an unknown type is replaced by its text, or else by a note. What cannot be shown to a model is a fault here;
`conversation` decides where a note takes its place.
"""

from collections.abc import Mapping
from typing import Any, NoReturn, TypeVar

from proxy.api.fields import prefixed
from proxy.api.unshown import NotShown, note, picture_part, text_of_file, text_part, type_of
from proxy.wire import rawjson
from proxy.wire.chat import Json

T = TypeVar("T", str, Json, list[Any])

BETWEEN = "\n\n"  # the texts of several blocks
_DEMANDS: Mapping[type, str] = {str: "must be a string", dict: "must be an object", list: "must be a list"}
KNOWN_TYPES = frozenset({"text", "image", "document", "search_result", "tool_result", "tool_reference"})
"""The types of blocks that a user's content may have here."""


def _parts_of_all(blocks: list[Any], where: str) -> list[Json]:
    """The parts of the blocks of the content at `where`."""
    return [part for at, block in enumerate(blocks) for part in parts_of(block, f"{where}.{at}")]


def as_blocks(content: Any, where: str) -> list[Any]:
    """A content, which may be a string or a list, as blocks. Raises `RequestError`."""
    if isinstance(content, list):
        return content
    if not isinstance(content, str | None):
        refuse(where, "must be a string or a list of content blocks")
    return [{"type": "text", "text": content}] if content else []


def refuse(where: str, why: str) -> NoReturn:
    """Refuse a request because of the field at `where`."""
    raise prefixed(where, why)


def _refuse_unshown(where: str, why: str) -> NoReturn:
    raise NotShown(f"{where}: {why}", param=where)


def named(value: Any) -> str:
    """A client's value in an error message: text in quotation marks, anything else as JSON."""
    return repr(value[:100]) if isinstance(value, str) else rawjson.dumps(value).decode()[:100]


def parts_of(block: Any, where: str) -> list[Json]:
    """The parts of the block at `where`. Raises `RequestError`."""
    if not isinstance(block, dict):
        refuse(where, "must be a content block, an object with a `type`")
    match block.get("type"):
        case "text":
            text = field_in(block, "text", str, where)
            return [text_part(text)] if text else []
        case "image":
            return [_picture(field_in(block, "source", dict, where), f"{where}.source")]
        case "document":
            return _document(block, where)
        case "search_result":
            texts = [
                part["text"] for part in _parts_of_all(field_in(block, "content", list, where), f"{where}.content")
            ]
            lines = (block.get("title"), block.get("source"), *texts)
            return [text_part("\n".join([line for line in lines if isinstance(line, str) and line]))]
        case "tool_reference":
            return [text_part(f"[tool {block.get('tool_name', '')} is available]")]
        case str():  # a type that is not known yet; a refusal would block the conversation for good
            own: Any = block.get("text")
            return [text_part(own) if own and isinstance(own, str) else note(type_of(block))]
        case kind:
            refuse(f"{where}.type", f"{named(kind)} is not supported here")


def _document(block: Json, where: str) -> list[Json]:
    """The parts of a document, with its title and its context first."""
    source = field_in(block, "source", dict, where)
    heading = [block[key] for key in ("title", "context") if isinstance(block.get(key), str) and block[key]]
    match source.get("type"):
        case "text":
            return [text_part("\n\n".join([*heading, field_in(source, "data", str, f"{where}.source")]))]
        case "content":
            blocks = as_blocks(source.get("content"), f"{where}.source.content")
            title = [text_part("\n\n".join(heading))] if heading else []
            return title + _parts_of_all(blocks, f"{where}.source.content")
        case "base64":
            media, data = (field_in(source, key, str, f"{where}.source") for key in ("media_type", "data"))
            return [text_part("\n\n".join([*heading, text_of_file(media, data, f"{where}.source")]))]
        case "url":
            _refuse_unshown(f"{where}.source", "documents are not fetched; send the text, or offer a web_fetch tool")
        case kind:
            _refuse_unshown(f"{where}.source", f"a document of type {named(kind)} is not supported here")


def _picture(source: Json, where: str) -> Json:
    """The part with a picture."""
    match source.get("type"):
        case "base64":
            media, data = (field_in(source, key, str, where) for key in ("media_type", "data"))
            return picture_part(f"data:{media};base64,{data}", f"{where}.media_type")
        case "url":
            return picture_part(field_in(source, "url", str, where), where)
        case "file":
            _refuse_unshown(where, "files are not kept here; send the picture's data or its URL")
        case kind:
            _refuse_unshown(where, f"a picture of type {named(kind)} is not supported here")


def field_in(holder: Json, key: str, kind: type[T], where: str) -> T:
    """A field of the block or the object at `where` that has to be of a type. Raises `RequestError`."""
    value = holder.get(key)
    return value if isinstance(value, kind) else refuse(f"{where}.{key}", _DEMANDS[kind])
