"""The filter that takes leaked calls out of a text while it is streamed.

Leaked calls become tool calls and are never shown. GLM-4.5v's marks around an answer, `<|begin_of_box|>` and
`<|end_of_box|>`, are not shown either. Text that only looks similar stays text: markers in code (a user asks about
`<tool_call>`), harmony's words without harmony's structure, and JSON that the client asked for.

Each character is examined a bounded number of times, and at most `MAX_BUFFERED` characters are buffered.
"""

import re
from collections.abc import Callable, Mapping
from typing import Literal, TypeAlias

from msgspec import Struct

from proxy.loop.asked_json import AskedJson
from proxy.loop.chat import Json
from proxy.loop.leaks import Found, Leak, bare, clean_name, glm, harmony
from proxy.loop.turn_bounds import require_few_calls

# A longer text is not a tool call: it is shown, however it began.
MAX_BUFFERED = 64 * 1024
# Text is processed in pieces of this size, so that cutting out a call never copies more.
_STEP = 4096

_BOXES = ("<|begin_of_box|>", "<|end_of_box|>")
_CALL_MARKS = (glm.OPEN, glm.ARGUMENT, *harmony.MARKS)
_ALL_MARKS = (*_CALL_MARKS, *_BOXES)
_LONGEST_MARK = max(map(len, _ALL_MARKS))
# Each alternative begins with a literal character, so that the regex engine skips all other text fast.
_TOKEN = re.compile("``*|~~*|\n|" + "|".join(map(re.escape, _ALL_MARKS)))
_FENCE = 3  # the backticks that open a block of code
_QUOTE = re.compile(r'\\.|"', re.DOTALL)
_A_LETTER = "0"  # stands for any letter; hardly any name begins with it


_Mode: TypeAlias = Literal[
    "beginning",  # only blanks have arrived
    "text",
    "fence",  # in a block of code
    "inline",  # in a span of code
    "glm",
    "harmony",  # to the end of the turn
    "json",  # to the end of the turn
]


class LeakFilter(Struct):
    """Takes leaked calls out of a text that arrives in pieces.

    Attributes:
        tools: the names that may be called -> their JSON Schemas.
        asked_json: how the client asked for JSON; if it did in words, only an object that is sure to be a call is one.
        leaks: the calls that were found.
        garbled: whether raw model format that is not a call of any tool was taken out.
    """

    tools: Mapping[str, Json]
    asked_json: Callable[[], AskedJson] = lambda: AskedJson.NO
    leaks: list[Leak] = []
    garbled: bool = False
    _mode: _Mode = "beginning"
    _only_sure: bool = False  # whether a text in JSON is a call only if it is sure to be one
    _fence: str = ""  # the mark that opened the current code, and will close it
    _buffer: str = ""
    _searched: int = 0
    _quoted_to: int = 0  # the end of the part of a call in Hermes form in which the quotes have been counted
    _in_string: bool = False  # whether that end is inside a JSON string
    _shown: str = ""  # the latest text that was shown; the next text may continue its last word
    _names: str = ""  # words that may begin a header, each after a line end, so that one search finds a beginning

    def __post_init__(self) -> None:
        self._names = "\n".join(("", *self.tools, *harmony.HEADER_WORDS))

    def feed(self, text: str) -> str:
        """The text that may be shown now. Most pieces have no mark and no beginning of a name."""
        if self._mode == "beginning" and not self._buffer and text[:1] not in ("", "{") and not text[0].isspace():
            self._mode = "text"
        has_mark = "<" in text or "`" in text or "~" in text or "=" in text
        if self._mode == "text" and not self._buffer and not has_mark and len(text) <= _STEP:
            words = text.rsplit(None, 1)
            word = words[-1] if words else ""
            is_plain = word.isalnum() or word.rstrip(".,").isalnum()
            if (is_plain and word.isascii() and f"\n{word}" not in self._names) or not harmony.may_begin_header(
                text, self._names
            ):
                self._shown = text
                return text
        return "".join([self._feed(text[at : at + _STEP]) for at in range(0, len(text), _STEP)])

    def close(self) -> str:
        """The rest of the text so far, without leaks. More text may follow."""
        text, self._buffer = self._buffer, ""
        mode, self._mode = self._mode, "text"
        match mode:
            case "glm":
                self._shown = ""
                return self._collect(glm.read(text, self.tools, is_whole=False))
            case "harmony":
                return self._collect(harmony.read(text, self.tools))
            case "json":
                return self._collect(bare.read(text, self.tools, only_sure=self._only_sure))
        return text

    def _collect(self, found: Found) -> str:
        self.leaks += found.leaks
        require_few_calls(len(self.leaks))
        self.garbled = self.garbled or found.garbled
        return found.text

    def _feed(self, text: str) -> str:
        self._buffer += text
        shown: list[str] = []
        while True:
            before = self._mode
            shown.append(self._advance())
            if self._mode == before:
                return "".join(shown)

    def _advance(self) -> str:
        """Take one step, and return the text that it shows; another step follows if this one changes the mode."""
        match self._mode:
            case "beginning":
                return self._begin()
            case "glm":
                return self._buffer_glm()
            case "json":
                if bare.may_be_call(self._buffer, self.tools, only_sure=self._only_sure):
                    return self._limit_buffer()
                self._mode = "text"
                return ""
            case "harmony":
                return self._limit_buffer()
            case _:
                return self._scan()

    def _begin(self) -> str:
        begun = self._buffer.lstrip()
        if begun.startswith("{") and (asked := self.asked_json()) is not AskedJson.BY_FORMAT:
            self._mode, self._only_sure = "json", asked is AskedJson.IN_WORDS
        elif begun or len(self._buffer) > harmony.LONGEST_NAME:
            self._mode = "text"
        return ""

    def _scan(self) -> str:
        """The text before the first marker outside of code; a possible beginning of a marker stays in the buffer."""
        shown: list[str] = []
        at = 0
        while match := _TOKEN.search(self._buffer, at):
            mark, start, at = match.group(), match.start(), match.end()
            if mark[0] in "`~" and at == len(self._buffer):
                return "".join((*shown, self._release(start)))  # there may be more of them
            if mark in _CALL_MARKS:
                if self._mode == "text" and (mark != glm.ARGUMENT or self._follows_a_name(start)):
                    return "".join((*shown, self._begin_call(mark, start)))
            elif mark in _BOXES:
                if self._mode == "text":
                    shown.append(self._release(start))
                    self._buffer, self._shown, at = self._buffer[len(mark) :], "", 0
            elif mark == "\n":
                self._mode = "text" if self._mode == "inline" else self._mode
            elif mark[0] == "`" or len(mark) >= _FENCE:
                self._pass_fence(mark)
        return "".join((*shown, self._release(len(self._buffer) - self._undecided(at))))

    def _pass_fence(self, mark: str) -> None:
        """Enter or leave code: a block at three or more marks, a span at fewer. The same mark closes the code."""
        if self._mode == "text":
            self._mode = "fence" if len(mark) >= _FENCE else "inline"
            self._fence = mark
        elif mark == self._fence or (self._mode == "fence" and mark.startswith(self._fence)):
            self._mode = "text"

    def _follows_a_name(self, end: int) -> bool:
        """Whether the buffer up to `end` ends with the name of a tool."""
        name = harmony.last_word(self._with_context(end))
        return bool(name) and clean_name(name.strip(), self.tools) in self.tools

    def _begin_call(self, mark: str, start: int) -> str:
        self._mode = "glm" if mark in (glm.OPEN, glm.ARGUMENT) else "harmony"
        self._searched = self._quoted_to = 0
        self._in_string = False
        if mark == glm.ARGUMENT:
            start -= len(harmony.last_word(self._buffer[:start]))
        elif self._mode == "harmony":
            start -= harmony.header_length(self._with_context(start), self.tools)
        return self._release(max(0, start))

    def _with_context(self, end: int) -> str:
        """The buffer up to `end`, preceded by a stand-in for the last character that was shown.

        So the rest of a word whose beginning was shown does not look like a whole word.
        """
        last = self._shown[-1:]
        is_letter = last.isascii() and (last.isalnum() or last == "_")
        context = _A_LETTER if is_letter else last if last in ".=-" else ""
        return context + self._buffer[:end]

    def _undecided(self, begin: int) -> int:
        """How many characters at the end may be the beginning of a marker, or belong to a marker that follows."""
        if self._mode != "text":
            return 0
        at = self._buffer.rfind("<", max(begin, len(self._buffer) - _LONGEST_MARK))
        if at >= 0 and not any(mark.startswith(self._buffer[at:]) for mark in _ALL_MARKS):
            at = -1
        end = at if at >= 0 else len(self._buffer)
        before = self._with_context(end)
        header = harmony.possible_header_length(before, self.tools, self._names, is_marked=at >= 0)
        return len(self._buffer) - end + header

    def _buffer_glm(self) -> str:
        while (end := self._buffer.find(glm.CLOSE, self._searched)) >= 0:
            end += len(glm.CLOSE)
            call = self._buffer[:end]
            if call.count("<arg_value>") > call.count("</arg_value>") or self._read_quotes(end):
                self._searched = end  # the mark is part of a value
                continue
            self._buffer = self._buffer[end:]
            self._mode = "text"
            self._shown = ""
            return self._collect(glm.read(call, self.tools, is_whole=True))
        self._searched = max(self._searched, len(self._buffer) - len(glm.CLOSE))
        return self._limit_buffer()

    def _read_quotes(self, end: int) -> bool:
        """Count the quotes of a call in Hermes form up to `end`, which never falls; whether `end` is in a string."""
        if glm.HERMES.match(self._buffer):
            for mark in _QUOTE.finditer(self._buffer, self._quoted_to, end):
                self._in_string ^= mark[0] == '"'
            self._quoted_to = end
        return self._in_string

    def _limit_buffer(self) -> str:
        """Show nothing while the buffer is within its limit; beyond the limit, show the whole buffer as text."""
        if len(self._buffer) <= MAX_BUFFERED:
            return ""
        self._mode = "text"
        return self._release(len(self._buffer))

    def _release(self, end: int) -> str:
        shown, self._buffer = self._buffer[:end], self._buffer[end:]
        self._shown = shown or self._shown
        return shown


def may_leak(text: str) -> bool:
    """Whether a whole text can hold a call: every marker begins with `<`, and a bare call with a brace."""
    return "<" in text or text.lstrip()[:1] == "{"
