"""Harmony, gpt-oss's raw format: headers of role, recipient and channel between marks like `<|call|>`."""

import re
from collections.abc import Mapping

from proxy.loop.chat import Json
from proxy.loop.leaks import Found, Leak, bare_name, clean_name, fitting_tool, parsed

MARKS = ("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|call|>", "<|end|>", "<|return|>")
# The longest bare name before harmony's marks.
LONGEST_NAME = 128

_MESSAGE = "<|message|>"
_ROLE, _COMMENTARY = "assistant", "commentary"
HEADER_WORDS = (_ROLE, _COMMENTARY, "functions.", "to=")
"""Words that may begin a header, beside the names of the tools."""
_ANY_MARK = re.compile(r"<\|\w+\|>")
_SEGMENT_END = re.compile(r"<\|(?:call|end|return)\|>|(?=<\|start\|>)")
_RECIPIENT = re.compile(r"\bto=\s*([\w.-]+)")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_KNOWN_CHANNEL = re.compile(r"<\|channel\|>\s*(?:analysis|commentary|final)\b")
_OBJECT_BEGUN = re.compile(r'\{\s*(?:["}]|\Z)')
# Role, recipient, channel, recipient and content type, in this order, each of them optional.
_HEADER = re.compile(
    r"\s*(?:<\|start\|>)?\s*(?:[\w.-]+)?\s*(?:to=\s*[\w.-]+)?\s*(?:<\|channel\|>\s*\w+)*"
    r"\s*(?:to=\s*[\w.-]+)?\s*(?:<\|constrain\|>)?\s*\w*\s*"
)
# ASCII only, as names of tools are: Chinese text has no blank before a name.
_WORD_AT_END = re.compile(r"[\w.=-]+\Z", re.ASCII)
# A header whose marks before the recipient were lost, such as `commentary to=functions.web_search json` before a mark,
# and the beginnings of such a header. Each part is bounded, so that it is enough to search the end of a text.
_RECIPIENT_AT_END = r"(?:commentary\s{1,8})?to=\s{0,4}[\w.-]{1,128}(?:\s{1,4}\w{1,16})?\s{0,4}\Z"
_HEADER_AT_END = re.compile(rf"(?<!\w){_RECIPIENT_AT_END}", re.ASCII)
_HEADER_BEGUN = re.compile(rf"(?<!\w)(?:(?:commentary\s{{1,8}})?to=\s{{0,4}}\Z|{_RECIPIENT_AT_END})", re.ASCII)
_BEGUN_COMMENTARY = "|".join(_COMMENTARY[:end] for end in range(len(_COMMENTARY), 0, -1))
_CHANNEL_BEGUN = re.compile(rf"(?<!\w)(?:commentary\s{{1,8}}(?:to?)?|{_BEGUN_COMMENTARY}|to?)\Z", re.ASCII)
_LONGEST_HEADER, _LONGEST_CHANNEL = 192, 24
_LONGEST_WITH_MARKS = 320


def read(text: str, tools: Mapping[str, Json]) -> Found:
    """Parse a text from harmony's first mark on. If it does not have harmony's structure, all of it is text."""
    leaks: list[Leak] = []
    shown: list[str] = []
    for segment in _SEGMENT_END.split(text):
        header, mark, body = segment.partition(_MESSAGE)
        if not mark:
            header, body = _split_unmarked(segment)
        if not _is_header(header) or (not mark and _ANY_MARK.search(body)):
            return Found(text)
        if _RECIPIENT.search(header) and "<|" not in header and not body.lstrip().startswith("{"):
            return Found(text)
        channel = _CHANNEL.search(header)
        name = _recipient(header, tools) or (fitting_tool(parsed(body), tools) if channel else None)
        if name is not None:
            leaks.append(Leak(name, body.strip() or "{}"))
        elif channel is None or channel[1] == "final" or (mark and channel[1] != "analysis"):
            shown.append(body)
    visible = "".join(shown)
    return Found(visible, tuple(leaks), garbled=not (leaks or visible.strip()))


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
    return len(text) <= _LONGEST_WITH_MARKS and _HEADER.fullmatch(text) is not None


def _recipient(header: str, tools: Mapping[str, Json]) -> str | None:
    """The tool that a header addresses, by `to=` or by a bare name before the marks."""
    match = _RECIPIENT.search(header)
    if match:
        return clean_name(match[1], tools)
    name = clean_name(header, tools)
    return name if name in tools else None


# -- headers whose first marks were lost, so that they are plain words up to the next mark --


def last_word(text: str) -> str:
    """The last word of a text, with the blanks after it; empty: the text ends with no word, or with a long one."""
    text = text[-LONGEST_NAME:]
    words = text.rsplit(None, 1)
    match = _WORD_AT_END.search(words[-1]) if words else None
    return text[text.rindex(words[-1]) + match.start() :] if match else ""


def header_length(before: str, tools: Mapping[str, Json]) -> int:
    """How many characters at the end of a text belong to the mark after it: those of a name or a recipient."""
    if match := _HEADER_AT_END.search(before[-_LONGEST_HEADER:]):
        return len(match[0])
    name = last_word(before)  # web_search<|channel|>commentary
    return len(name) if name and clean_name(name.strip(), tools) in (*tools, _ROLE) else 0


def possible_header_length(before: str, tools: Mapping[str, Json], names: str, *, is_marked: bool) -> int:
    """How many characters at the end of a text may belong to a mark that has not, or not completely, arrived.

    Args:
        before: the text.
        tools: the names that may be called -> their JSON Schemas.
        names: these names and `HEADER_WORDS`, each after a line end.
        is_marked: whether the beginning of a mark follows the text, so that a name at its end has to be complete.
    """
    window = before[-_LONGEST_HEADER:]
    if "to=" in window and (match := (_HEADER_AT_END if is_marked else _HEADER_BEGUN).search(window)):
        return len(match[0])
    word = last_word(before)
    if is_marked:
        name = bare_name(word.strip())
        return len(word) if name in tools or name == _ROLE else 0
    length = len(word) if word and _begins_name(word.strip(), names) else 0
    match = _CHANNEL_BEGUN.search(before[-_LONGEST_CHANNEL:])
    return max(length, len(match[0])) if match else length


def may_begin_header(text: str, names: str) -> bool:
    """Whether the last word of a plain text may belong to a header that continues after it."""
    word = last_word(text).rstrip()
    return bool(word) and (_begins_name(word, names) or _CHANNEL_BEGUN.search(word) is not None)


def _begins_name(word: str, names: str) -> bool:
    return f"\n{bare_name(word)}" in names or f"\n{word}" in names
