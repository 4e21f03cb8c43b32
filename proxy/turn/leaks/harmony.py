"""Harmony, gpt-oss's raw format: headers of role, recipient and channel between marks like `<|call|>`."""

import re
from collections.abc import Mapping

from msgspec import Struct

from proxy.turn.leaks import End, Leak, LeakedContent, NotACall, Syntax, clean_name, fitting_tool, name_length
from proxy.wire.chat import Json
from proxy.wire.json_text import json_value

_MESSAGE = "<|message|>"
_ENDS = ("<|call|>", "<|end|>", "<|return|>")
MARKS = ("<|start|>", "<|channel|>", _MESSAGE, "<|constrain|>", *_ENDS)
_NEVER_FIRST = (_MESSAGE, "<|constrain|>", *_ENDS)
_ANY_MARK = re.compile(r"<\|\w+\|>")
_MARK_BEGUN = re.compile(r"<(?:\|\w*\|?)?\Z")
# The end of a header that was cut off: a mark or a recipient without what should follow it, and a part of a mark.
_CUT = re.compile(r"(?:<\|(?:channel|message)\|>|to=)?\s*(?:<(?:\|\w*\|?)?)?\Z")
_SEGMENT_END = re.compile(r"<\|(?:call|end|return)\|>|(?=<\|start\|>)")
_RECIPIENT = re.compile(r"\bto=\s*([\w.-]+)")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_KNOWN_CHANNEL = re.compile(r"<\|channel\|>\s*(?:analysis|commentary|final)\b")
_OBJECT_BEGUN = re.compile(r'\{\s*(?:["}]|\Z)')
# Role, recipient, channel, recipient and content type, in this order, each of them optional. The blanks are possessive:
# a row of them could be divided among its parts in millions of ways.
_HEADER = re.compile(
    r"\s*+(?:<\|start\|>)?\s*+(?:[\w.-]+)?\s*+(?:to=\s*+[\w.-]+)?\s*+(?:<\|channel\|>\s*+\w+)*"
    r"\s*+(?:to=\s*+[\w.-]+)?\s*+(?:<\|constrain\|>)?\s*+\w*\s*+"
)
# What a header is made of, in any order.
_HEADERS_PARTS = re.compile(r"(?:[\w.=\s-]+|<\|(?:start|channel|constrain)\|>)*+")
_LONGEST_HEADER = 320
_ENOUGH = 512  # characters, in which a header and a mark after it have their place
# The end of a header whose marks before the recipient were lost, such as `commentary to=functions.web_search json`.
# Each part is bounded, so that it is enough to search the end of a text.
_LOST_MARKS = r"(?<!\w)(?:(?:assistant)?commentary\s{1,8})?to=\s{0,4}"
_RECIPIENT_NAMED = r"[\w.-]{1,128}(?:\s{1,4}\w{1,16})?\s{0,4}"
_LONGEST_LOST = 192
_HEADER_AT_END = re.compile(rf"{_LOST_MARKS}{_RECIPIENT_NAMED}\Z", re.ASCII)

# The same, up to any of its characters behind `to=`.
_HEADER_BEGUN_AT_END = re.compile(rf"{_LOST_MARKS}(?:{_RECIPIENT_NAMED})?\Z", re.ASCII)


class HeaderScanner(Struct):
    """Refuses a text whose first mark does not belong to a header; anything else is read to the end of the text."""

    _header: str | None = ""  # the text so far; None: it begins with a header

    def feed(self, piece: str) -> None:
        """Take the next piece; the end of the text is the end of the call."""
        if self._header is not None:
            text = (self._header + piece)[:_ENOUGH]
            self._header = text if _is_undecided(text) and len(text) < _ENOUGH else None


def _is_undecided(text: str) -> bool:
    """Whether a text may become a header; False: it begins with one. Raises `NotACall` if it does neither."""
    header, rest = _split_header(text)
    if not header and rest.startswith(_ENDS):  # another message follows, or nothing
        header, rest = _split_header(rest[rest.index(">") + 1 :])
        is_possible = len(header) <= _LONGEST_HEADER and (not rest or rest[0] in "<{")
    elif _MARK_BEGUN.match(rest) or not rest:
        is_possible = len(header) <= _LONGEST_HEADER
        rest = ""
    elif rest.startswith("{") and _RECIPIENT.search(header) is None:
        is_possible = _is_header(header) and bool(_KNOWN_CHANNEL.search(header) and _OBJECT_BEGUN.match(rest))
        rest = rest[1:].strip()
    else:
        is_possible = rest.startswith(("{", _MESSAGE, *_ENDS)) and _is_header(header)
        is_lost = "<|" not in header and _RECIPIENT.search(header) is not None  # only arguments may follow
        if is_lost and rest.startswith(_MESSAGE):
            rest = rest.removeprefix(_MESSAGE).lstrip()
            is_possible = is_possible and rest[:1] in ("", "{")
    if not is_possible:
        raise NotACall
    return not rest


def _split_header(text: str) -> tuple[str, str]:
    rest = _HEADERS_PARTS.sub("", text, count=1)
    return text[: len(text) - len(rest)], rest


def _read(text: str, tools: Mapping[str, Json], end: End) -> LeakedContent:
    """Parse a text from harmony's first mark on. If it does not have harmony's structure, all of it is text."""
    leaks: list[Leak] = []
    shown: list[str] = []
    *segments, last = _SEGMENT_END.split(text)
    is_cut = end is End.CUT and "<" in last and _is_header(_CUT.sub("", last))
    for segment in segments if is_cut else (*segments, last):
        header, mark, body = segment.partition(_MESSAGE)
        if not mark:
            header, body = _split_unmarked(segment)
        if not _is_header(header) or (not mark and _ANY_MARK.search(body)):
            return LeakedContent(text)
        if _RECIPIENT.search(header) and "<|" not in header and not body.lstrip().startswith("{"):
            return LeakedContent(text)
        channel = _CHANNEL.search(header)
        name = _recipient(header, tools) or (fitting_tool(json_value(body), tools) if channel else None)
        if name is not None:
            leaks.append(Leak(name, body.strip() or "{}"))
        elif channel is None or channel[1] == "final" or (mark and channel[1] != "analysis"):
            shown.append(body)
    visible = "".join(shown)
    return LeakedContent(visible, tuple(leaks), garbled=not (leaks or visible.strip()))


def _split_unmarked(segment: str) -> tuple[str, str]:
    """The header and the body of a segment without `<|message|>`.

    Arguments may directly follow a header. A header at the end of a text is a call without arguments, or a call that
    was cut off. Any other segment is only a body.
    """
    header, brace, rest = segment.partition("{")
    body = brace + rest
    is_addressed = _RECIPIENT.search(header) is not None
    has_channel = _KNOWN_CHANNEL.search(header) is not None
    if brace:
        is_split = is_addressed or (has_channel and _OBJECT_BEGUN.match(body) is not None)
    else:
        is_sentence = header.rstrip().endswith(".")
        is_split = (has_channel or (is_addressed and "<|" in header)) and not is_sentence and _is_header(header)
    return (header, body) if is_split else ("", segment)


def _is_header(text: str) -> bool:
    return len(text) <= _LONGEST_HEADER and _HEADER.fullmatch(text) is not None


def _recipient(header: str, tools: Mapping[str, Json]) -> str | None:
    """The tool that a header addresses, by `to=` or by a bare name before the marks."""
    match = _RECIPIENT.search(header)
    if match:
        return clean_name(match[1], tools)
    name = clean_name(header, tools)
    return name if name in tools else None


def _header_length(before: str, mark: str, tools: Mapping[str, Json]) -> int | None:
    """How many characters at the end of a text belong to the mark after it: those of a name or a recipient."""
    if match := _HEADER_AT_END.search(before[-_LONGEST_LOST:]):
        return len(match[0])
    if length := name_length(before, tools) or name_length(before, ("assistant",)):  # web_search<|channel|>commentary
        return length
    # After a word and a blank, a mark that does not begin a message is only mentioned.
    return None if mark in _NEVER_FIRST and before.endswith(" ") and before.strip() else 0


def recipient_length(text: str) -> int:
    """How many characters at the end of a text are a recipient (`to=`) without marks, to which more may belong."""
    text = text[-_LONGEST_LOST:]
    match = _HEADER_BEGUN_AT_END.search(text) if "to=" in text else None
    return len(match[0]) if match else 0


SYNTAX = Syntax(MARKS, _header_length, lambda _: HeaderScanner(), _read)
