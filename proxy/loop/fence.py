"""The fence around what a tool returns, which tells a model that it is data, and the text that may stand within it.

    <tool_result tool="web_search" note="data, ...">
    the tool's text
    </tool_result>

The text cannot hide anything, nor end or imitate the fence: invisible characters are taken out, and what looks like the
fence, in whatever letters, is broken up by a backslash.
"""

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final
from unicodedata import normalize

from proxy.loop.prompts import RESULT_IS_DATA

OPENING: Final = "<tool_result "
CLOSING: Final = "\n</tool_result>"
_CANNOT_STAND_IN_A_TAG = re.compile(r"[^!#-;=?-~]+")
_LONGEST_SOURCE = 500

INVISIBLE: Final = re.compile(
    "["
    "\0-\x08\x0b-\x1f\x7f-\x9f"  # control characters but tab and newline, some of which break chat templates
    "\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b\u200e\u200f"  # without a width, and marks of direction
    "\u202a-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e01ef"  # tags and further variants of characters, which hide text from people but not from models
    "]+"
)
"""Characters that nobody sees. U+200C, U+200D and the first sixteen variants stay: scripts and emoji need them."""

# Those of them that Python calls printable, and in UTF-8 the first bytes of the tags and further variants.
_PRINTABLE = "\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0"
_VARIANTS = b"\xf3\xa0"
# Digits and letters of other scripts (Cyrillic, Greek, Lisu ...) that look like the fence's; `_alike` finds the others.
_OTHER_LETTERS: Mapping[str, str] = MappingProxyType(
    {
        "t": "\u0442\u0422\u03c4\u03a4\ua4d4",
        "o": "0\u043e\u041e\u03bf\u039f\u0585\u1d0f\ua4f3",
        "l": "1I\u0131\u0456|\u01c0\u0406\u04cf\u04c0\u03b9\u0399\ua4e1\ua4f2",
        "r": "\u0433\u1d26\u0280",
        "e": "\u0435\u0415\u03b5\u0395\u0454\u04bd\ua4f0",
        "s": "5$\u0455\u0405\ua731\ua4e2",
        "u": "\u03c5\u057d\u1d1c\u028b\ua4f4",
    }
)
# Letters that Unicode itself calls forms of Latin ones: with accents, of full width, mathematical, in circles.
_BLOCKS = (
    range(0xC0, 0x250),
    range(0x1D2C, 0x1D6B),
    range(0x1E00, 0x1F00),
    range(0x2070, 0x20A0),
    range(0x2100, 0x2190),
    range(0x24B6, 0x24EA),
    range(0xFF21, 0xFF5B),
    range(0x1D400, 0x1D6A4),
    range(0x1F110, 0x1F18A),
)
_ANGLES = "<\u2039\u3008\u27e8\u300a\u00ab\u227a\u22d6\u02c2\u1438\u276e\u2770\u29fc\u3008\ufe64\uff1c"
_BEGINNINGS = (*_ANGLES, "&")
# A search holds the interpreter; this many characters take up to 10 ms.
_PIECE_CHARACTERS = 256 * 1024
# Between two letters: blanks, accents, joiners and variants.
_GAP = "[\\s\u0300-\u036f\u200c\u200d\ufe00-\ufe0f]*"


def _alike() -> dict[str, str]:
    """Each letter of the fence -> the characters that look like it."""
    alike = {letter: letter + letter.upper() + others for letter, others in _OTHER_LETTERS.items()}
    for block in _BLOCKS:
        for character in map(chr, block):
            letter = normalize("NFKD", character)[:1].lower()
            if letter in alike:
                alike[letter] += character
    return alike


def _fence_like() -> re.Pattern[str]:
    alike = {letter: f"[{re.escape(characters)}]" for letter, characters in _alike().items()}
    tool, result = (_GAP.join(alike[letter] for letter in word) for word in ("tool", "result"))
    between = f"(?:[^\\w{_ANGLES}]|_)*"  # ends at the next angle bracket, so that no character is read twice
    in_name = f"(?:[^\\w{_ANGLES}>\u203a\u3009\u27e9\uff1e]|_)*"
    angle = f"[{_ANGLES}]|&lt;?+|&#0*60;?+|&#x0*3c;?+"
    return re.compile(f"({angle})(?!\\\\)(?={between}{tool}{in_name}{result})", re.IGNORECASE)


_FENCE_LIKE = _fence_like()


def harmless(text: str) -> str:
    """A tool's text, cleaned for the fence."""
    if len(text) > _PIECE_CHARACTERS:
        return "".join(map(harmless, _pieces_of(text)))
    # These tests are cheap; a search for each character would cost 8 % of a request with one tool call.
    is_ascii = text.isascii()
    may_hide = not (text.isprintable() or text.replace("\n", "").replace("\t", "").isprintable())
    if not (may_hide or is_ascii):
        may_hide = any(one in text for one in _PRINTABLE) or _VARIANTS in text.encode("utf-8", "replace")
    if may_hide:
        text = INVISIBLE.sub("", text)
    if "<" in text or "&" in text or (not is_ascii and any(angle in text for angle in _ANGLES)):
        text = _FENCE_LIKE.sub(r"\1\\", text)
    return text


def _pieces_of(text: str) -> Iterator[str]:
    """The pieces of a long text, each of which begins with an angle, as what looks like the fence does."""
    begun = 0
    while begun < len(text):
        end = begun + _PIECE_CHARACTERS
        if end < len(text):
            angle = max(text.rfind(angle, begun + 1, end) for angle in _BEGINNINGS)
            end = end if angle < 0 else angle
        yield text[begun:end]
        begun = end


def fenced(tool: str, text: str, sources: Mapping[str, str] = MappingProxyType({})) -> str:
    """A harmless text in the fence. If the text comes from a single page of `sources`, the fence names the page."""
    source = ""
    if len(sources) == 1:
        (url,) = sources
        source = f' source="{_CANNOT_STAND_IN_A_TAG.sub("", url)[:_LONGEST_SOURCE]}"'
    return f'{OPENING}tool="{tool}"{source} note="{RESULT_IS_DATA}">\n{text}{CLOSING}'


def unfenced(content: str) -> str:
    """The tool's own text in a successful result or a part of one, without the fence and the text outside it."""
    text = content.partition(CLOSING)[0]
    return text.partition(">\n")[2] if text.startswith(OPENING) else text
