"""The text of `clients_file`: entries are added to it and taken out of it, and the rest stays as its owner wrote it.

The text is a list of clients, or a mapping whose only key `clients` has the list:

    - name: app-one
      key_sha256: 4bf5...
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

import orjson
import yaml

from proxy.wire.errors import ConfigurationError

KEY: Final = "clients"

_PLAIN_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9._@-]*")


class CannotEdit(ConfigurationError):
    """The text is of a form in which entries have to be changed by hand."""


def with_client(text: str, name: str, digest: str) -> str:
    """The text with one more client at its end. Raises `CannotEdit`."""
    entry = {"name": name, "key_sha256": digest}
    found = list_in(text)
    if found is None or not found.value:
        before, after = _around(text, found)
        is_nested = before.rstrip().endswith(f"{KEY}:")
        edited = f"{_ended(before)}{_block(entry, 2 * is_nested)}{after.lstrip()}"
    elif found.flow_style:
        end = found.end_mark.index - 1
        comma = "" if text[:end].rstrip().endswith(",") else ", "
        edited = f"{text[:end]}{comma}{_flow(entry)}{text[end:]}"
    else:
        edited = _ended(text) + _block(entry, found.start_mark.column)
    return _checked(edited, [*entries_in(text), entry])


def without_client(text: str, name: str) -> str:
    """The text without the client of that name, which must be written in it as it is. Raises `CannotEdit`."""
    entries, found = entries_in(text), list_in(text)
    at = next((at for at, entry in enumerate(entries) if isinstance(entry, dict) and entry.get("name") == name), None)
    if at is None or found is None:
        raise CannotEdit([f"there is no entry {name!r} in it"])
    begin, end = _flow_span(found, at) if found.flow_style else _block_span(text, found, at)
    return _checked(text[:begin] + text[end:], [entry for number, entry in enumerate(entries) if number != at])


def list_in(text: str) -> yaml.SequenceNode | None:
    """The list of clients in a text; None if it has no entry at all, such as a text of comments only.

    Raises:
        CannotEdit: it is something else.
    """
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError) as exc:
        raise CannotEdit(["it is not YAML"]) from exc
    match node:
        case yaml.MappingNode(value=[(yaml.ScalarNode(value="clients"), inner)]):
            node = inner
    match node:
        case None | yaml.ScalarNode(tag="tag:yaml.org,2002:null"):
            return None
        case yaml.SequenceNode():
            return node
    raise CannotEdit(["it is not a list of clients"])


def entries_in(text: str) -> list[Any]:
    """The entries of a text as they are written. Raises `CannotEdit`."""
    list_in(text)
    try:
        held = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as exc:
        raise CannotEdit(["it is not YAML"]) from exc
    held = held.get(KEY) if isinstance(held, dict) else held
    return held or []


def _checked(edited: str, entries: list[Any]) -> str:
    """The edited text, if its entries are these: whatever else is in a text, nothing of it may be lost."""
    with suppress(CannotEdit):
        if entries_in(edited) == entries:
            return edited
    raise CannotEdit(["it is written in a form that cannot be edited"])


def _around(text: str, empty: yaml.SequenceNode | None) -> tuple[str, str]:
    """The texts before and after the place where entries go: that of an empty list, otherwise the end of the file."""
    return (text, "") if empty is None else (text[: empty.start_mark.index], text[empty.end_mark.index :])


def _ended(text: str) -> str:
    return text if not text or text.endswith("\n") else f"{text}\n"


def _block(entry: dict[str, str], indent: int) -> str:
    first, *others = (f"{key}: {_scalar(value)}\n" for key, value in entry.items())
    return " " * indent + f"- {first}" + "".join(" " * (indent + 2) + line for line in others)


def _flow(entry: dict[str, str]) -> str:
    return f"{{{', '.join(f'{key}: {_scalar(value)}' for key, value in entry.items())}}}"


def _scalar(text: str) -> str:
    """A text as YAML, in quotes unless it is read back as the same text without them."""
    if _PLAIN_NAME.fullmatch(text) and yaml.safe_load(text) == text:
        return text
    return orjson.dumps(text).decode()


def _flow_span(entries: yaml.SequenceNode, at: int) -> tuple[int, int]:
    """The begin and end of an entry within brackets, with one of the commas around it."""
    nodes = entries.value
    if at + 1 < len(nodes):
        return nodes[at].start_mark.index, nodes[at + 1].start_mark.index
    begin = nodes[at - 1].end_mark.index if at else nodes[at].start_mark.index
    return begin, nodes[at].end_mark.index


def _block_span(text: str, entries: yaml.SequenceNode, at: int) -> tuple[int, int]:
    """The begin and end of the lines of an entry, from its dash on; comments before and after it are no part of it."""
    node, lines = entries.value[at], text.splitlines(keepends=True)
    dashes = (
        token.start_mark
        for token in yaml.scan(text, Loader=yaml.SafeLoader)
        if isinstance(token, yaml.BlockEntryToken) and token.start_mark.column == entries.start_mark.column
    )
    first = max(dash.line for dash in dashes if dash.index < node.start_mark.index)
    last = max(_last_lines(node))
    return sum(map(len, lines[:first])), sum(map(len, lines[: last + 1]))


def _last_lines(node: yaml.Node) -> Iterator[int]:
    """The last line of each part of an entry. The end of a block is where the next thing begins."""
    match node:
        case yaml.ScalarNode() | yaml.CollectionNode(flow_style=True):
            yield node.end_mark.line - (node.end_mark.column == 0)
        case yaml.MappingNode():
            for key, value in node.value:
                yield from _last_lines(key)
                yield from _last_lines(value)
        case yaml.SequenceNode():
            for item in node.value:
                yield from _last_lines(item)
