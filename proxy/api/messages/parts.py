"""Content blocks that a user sends -> parts of Chat Completions.

A block that cannot be passed to a model is refused in a user's own content. In the result of a tool it is replaced by a
note, because a refusal would block the conversation for good. So is a block of an unknown type, unless it has a text.
"""

from typing import Any, NoReturn

from proxy.wire import rawjson
from proxy.wire.chat import Json
from proxy.wire.errors import RequestError

BETWEEN = "\n\n"  # the texts of several blocks
_NOT_SHOWN = "[{what} that cannot be shown here]"
_LONGEST_TYPE = 100  # characters
_KNOWN = frozenset({"text", "image", "document", "search_result", "tool_result", "tool_reference"})
_PICTURES = ("image/jpeg", "image/png", "image/gif", "image/webp")


def user_parts(blocks: list[Any], where: str) -> list[Json]:
    """The parts of a user's content.

    Args:
        blocks: the blocks as the client sent them.
        where: their place in the request, for errors, such as `messages.1.content`.

    Raises:
        RequestError: a block is not well formed or not supported; its place is `param`.
    """
    return [part for at, block in enumerate(blocks) for part in parts_of(block, f"{where}.{at}")]


def result_parts(blocks: list[Any]) -> list[Json]:
    """The parts of a tool's result, with a note in place of each block that cannot be passed on."""
    return [part for block in blocks for part in _shown_parts(block)]


def as_blocks(content: Any, where: str) -> list[Any]:
    """A content, which may be a string or a list, as blocks. Raises `RequestError`."""
    if isinstance(content, list):
        return content
    if not isinstance(content, str | None):
        refuse(where, "must be a string or a list of content blocks")
    return [{"type": "text", "text": content}] if content else []


def refuse(where: str, why: str) -> NoReturn:
    """Refuse a request because of the field at `where`."""
    raise RequestError(f"{where}: {why}", param=where)


def named(value: Any) -> str:
    """A client's value in an error message: text in quotation marks, anything else as JSON."""
    return repr(value[:100]) if isinstance(value, str) else rawjson.dumps(value).decode()[:100]


def is_known(block: Any) -> bool:
    """Whether a block is of a type that a user's content may have here, or of no type at all."""
    kind = block.get("type") if isinstance(block, dict) else None
    return not isinstance(kind, str) or kind in _KNOWN


def _shown_parts(block: Any) -> list[Json]:
    """The parts of one block of a tool's result."""
    if isinstance(block, dict) and block.get("type") == "tool_reference":
        return [_text(f"[tool {block.get('tool_name', '')} is available]")]
    try:
        return parts_of(block, "")
    except RequestError:
        kind = block.get("type") if isinstance(block, dict) else None
        return [_text(_NOT_SHOWN.format(what=_content_of_type(kind) if isinstance(kind, str) else "content"))]


def parts_of(block: Any, where: str) -> list[Json]:
    """The parts of the block at `where`. Raises `RequestError`."""
    if not isinstance(block, dict):
        refuse(where, "must be a content block, an object with a `type`")
    match block.get("type"):
        case "text":
            text = string_in(block, "text", where)
            return [_text(text)] if text else []
        case "image":
            url = _picture(_object(block, "source", where), f"{where}.source")
            return [{"type": "image_url", "image_url": {"url": url}}]
        case "document":
            return _document(block, where)
        case "search_result":
            texts = [part["text"] for part in user_parts(_list(block, "content", where), f"{where}.content")]
            lines = (block.get("title"), block.get("source"), *texts)
            return [_text("\n".join([line for line in lines if isinstance(line, str) and line]))]
        case str(kind):  # a type that is not known yet; a refusal would block the conversation for good
            own: Any = block.get("text")
            return [_text(own if own and isinstance(own, str) else _NOT_SHOWN.format(what=_content_of_type(kind)))]
        case kind:
            refuse(f"{where}.type", f"{named(kind)} is not supported here")


def _content_of_type(kind: str) -> str:
    return f"content of type {kind[:_LONGEST_TYPE]}"


def _document(block: Json, where: str) -> list[Json]:
    """The parts of a text document, with its title and its context first."""
    source = _object(block, "source", where)
    heading = [block[key] for key in ("title", "context") if isinstance(block.get(key), str) and block[key]]
    match source.get("type"):
        case "text":
            return [_text("\n\n".join([*heading, string_in(source, "data", f"{where}.source")]))]
        case "content":
            blocks = as_blocks(source.get("content"), f"{where}.source.content")
            title = [_text("\n\n".join(heading))] if heading else []
            return title + user_parts(blocks, f"{where}.source.content")
        case "base64":
            refuse(f"{where}.source", "a PDF cannot be read here; send its text as a document with a `text` source")
        case "url":
            refuse(f"{where}.source", "documents are not fetched; send the text, or offer a web_fetch tool")
        case kind:
            refuse(f"{where}.source", f"a document of type {named(kind)} is not supported here")


def _picture(source: Json, where: str) -> str:
    """The URL of a picture, or a data URL with its content."""
    match source.get("type"):
        case "base64":
            media = string_in(source, "media_type", where)
            if media not in _PICTURES:
                refuse(f"{where}.media_type", f"must be one of {', '.join(_PICTURES)}")
            return f"data:{media};base64,{string_in(source, 'data', where)}"
        case "url":
            return string_in(source, "url", where)
        case "file":
            refuse(where, "files are not kept here; send the picture's data or its URL")
        case kind:
            refuse(where, f"a picture of type {named(kind)} is not supported here")


def _text(text: str) -> Json:
    return {"type": "text", "text": text}


def string_in(holder: Json, key: str, where: str) -> str:
    """A field of the block or the object at `where` that has to be a string. Raises `RequestError`."""
    value = holder.get(key)
    return value if isinstance(value, str) else refuse(f"{where}.{key}", "must be a string")


def _object(holder: Json, key: str, where: str) -> Json:
    value = holder.get(key)
    return value if isinstance(value, dict) else refuse(f"{where}.{key}", "must be an object")


def _list(holder: Json, key: str, where: str) -> list[Any]:
    value = holder.get(key)
    return value if isinstance(value, list) else refuse(f"{where}.{key}", "must be a list")
