"""Turns the tools of an MCP server into our tools, and its results into text for a chat model. Pure.

All input comes from the server: names are adapted, schemas are completed or refused, descriptions are cut and hide
nothing, and the length of results is limited.
"""

import re
from collections.abc import Iterable
from typing import Any

import orjson
from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
    ToolAnnotations,
)
from mcp_types import Tool as ListedTool

from proxy.config.redaction import Redact, masked
from proxy.loop.call_context import NO_CONTEXT
from proxy.loop.fence import INVISIBLE
from proxy.loop.results import ToolOutput
from proxy.tools.tool import RunInCall, Tool
from proxy.wire.code import CodeResult

# The limit for joining texts; `limits.max_result_bytes` later cuts the result for the model.
MOST_CHARACTERS = 4 * 1024 * 1024
_LONGEST_NAME = 64
_LONGEST_DESCRIPTION = 2048
_LONGEST_LABEL = 200
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]")
_DESCRIBING = ("description", "title", "$comment")  # keywords of JSON Schema with words for whoever reads the schema
_VALUES = ("const", "default", "enum", "examples")  # keywords whose values are a call's, whatever keys they have
_BY_NAME = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")  # schemas by name


def without_secrets(listed: ListedTool, mask: Redact) -> ListedTool:
    """A listed tool in which no text repeats a secret that its server was sent: it goes to models, logs and stores."""
    shown: dict[str, Any] = {
        "name": mask(listed.name),
        "title": masked(listed.title, mask),
        "description": masked(listed.description, mask),
        "input_schema": masked(listed.input_schema, mask),
    }
    if listed.annotations is not None:
        title = masked(listed.annotations.title, mask)
        shown["annotations"] = listed.annotations.model_copy(update={"title": title})
    return listed.model_copy(update=shown)


def tool_of(listed: ListedTool, *, prefix: str, origin: str, run: RunInCall) -> Tool:
    """A server's tool as one of ours.

    A call starts early only if the tool declares itself read-only: by MCP's default, tools change things.

    Raises:
        ValueError: its schema is not for an object.
    """
    if listed.input_schema.get("type", "object") != "object":
        raise ValueError("its schema is not one of an object")
    hints = listed.annotations or ToolAnnotations()
    description = listed.description or listed.title or hints.title or ""
    return Tool(
        name=_NOT_IN_NAMES.sub("_", prefix + listed.name)[:_LONGEST_NAME],
        description=INVISIBLE.sub("", description)[:_LONGEST_DESCRIPTION],
        parameters=_shown_schema({"properties": {}, **listed.input_schema, "type": "object"}),
        run=lambda arguments: run(arguments, NO_CONTEXT),
        run_in_call=run,
        eager=hints.read_only_hint is True,
        origin=origin,
    )


def is_repeatable(listed: ListedTool) -> bool:
    """Whether a call whose outcome is unknown may be retried, which the tool has to declare."""
    hints = listed.annotations or ToolAnnotations()
    return hints.read_only_hint is True or hints.idempotent_hint is True


def output_of(result: CallToolResult, *, runs_code: bool = False) -> ToolOutput:
    """A result as text, with its links as sources that may be cited.

    Args:
        result: the result.
        runs_code: whether the tool runs code, whose outcome as an object says more than as words.
    """
    texts = _joined(map(_text_of, result.content))
    structured = result.structured_content
    if runs_code and structured is not None and any(name in structured for name in CodeResult.__struct_fields__):
        texts = _json_of(structured)
    elif structured is not None and not any(_has_words(block) for block in result.content):
        texts = _joined((_json_of(structured), texts))
    links = (block for block in result.content if isinstance(block, ResourceLink))
    sources = {link.uri: link.title or link.name for link in links if link.uri.startswith(("http://", "https://"))}
    return ToolOutput(texts or "(nothing)", sources)


def _shown_schema(schema: Any) -> Any:
    """A schema whose descriptions hide nothing from people that models read, with everything else as it is."""
    match schema:
        case dict():
            return {key: _shown_keyword(key, value) for key, value in schema.items()}
        case list():
            return [_shown_schema(item) for item in schema]
        case _:
            return schema


def _shown_keyword(key: str, value: Any) -> Any:
    if key in _BY_NAME and isinstance(value, dict):
        return {name: _shown_schema(schema) for name, schema in value.items()}
    if isinstance(value, str):
        return INVISIBLE.sub("", value) if key in _DESCRIBING else value
    return value if key in _VALUES else _shown_schema(value)


def _joined(texts: Iterable[str]) -> str:
    """The texts with a blank line between them; all come from one message of a server, whose size is bounded."""
    return "\n\n".join(filter(None, texts))[:MOST_CHARACTERS]


def _has_words(block: ContentBlock) -> bool:
    source = block.resource if isinstance(block, EmbeddedResource) else block
    return isinstance(source, (TextContent, TextResourceContents)) and bool(source.text.strip())


def _text_of(block: ContentBlock) -> str:
    source = block.resource if isinstance(block, EmbeddedResource) else block
    match source:
        case TextContent() | TextResourceContents():
            return source.text
        case ImageContent():
            return f"[an image, {_kind(source.mime_type)}, {_bytes_in(source.data)} bytes: it cannot be shown here]"
        case AudioContent():
            return f"[a sound, {_kind(source.mime_type)}, {_bytes_in(source.data)} bytes: it cannot be played here]"
        case ResourceLink():
            return f"{_label(source.title or source.name)}: {source.uri}"
        case BlobResourceContents():
            kind, size = _kind(source.mime_type), _bytes_in(source.blob)
            return f"[a file, {_label(source.uri)}, {kind}, {size} bytes: it cannot be read here]"


def _kind(mime_type: str | None) -> str:
    return _label(mime_type or "of an unknown type")


def _label(text: str) -> str:
    return " ".join(text[:_LONGEST_LABEL].split())


def _bytes_in(base64: str) -> int:
    return len(base64) * 3 // 4 - base64[-2:].count("=")


def _json_of(value: object) -> str:
    try:
        return orjson.dumps(value).decode()
    except (orjson.JSONEncodeError, RecursionError):  # an integer beyond 64 bits, say
        return str(value)
