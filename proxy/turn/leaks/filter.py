"""The filter that takes leaked calls out of a text while it is streamed.

Leaked calls become tool calls and are never shown. GLM-4.5v's marks around an answer, `<|begin_of_box|>` and
`<|end_of_box|>`, are not shown either. Text that only looks similar stays text: markers in code (a user asks about
`<tool_call>`), harmony's words without harmony's structure, and JSON that the client asked for.

                    a word                    a row of backticks or tildes
    Beginning ------------------> Text <--------------------------------------> Code
        |                        |    ^      the same row again; a line end
        | a brace                |    |
        |                 a mark |    | the call ends, or it is none
        |                        v    |
        +----------------> LeakedCall +

States:       one value of the closed union `State`. In `Beginning` blanks wait, in `Text` what may be the beginning of
              a call at the end of the window, and in `LeakedCall` all of it, until its `Scanner` finds the end or that
              it is none. `Code` is shown as it comes. When the budget of the text is spent (`_budget`), all text is
              shown without a look at it; only a call that has begun is read to its end.
Held text:    the filter owns it, in its one window: what is behind `_shown` waits, at most `MAX_BUFFERED` of a call and
              some `_CONTEXT` of other text. `feed` shows it as soon as later text decides what it is, and `close` the
              rest that is still undecided. If nobody calls `close`, that rest is lost.
Between two pieces: nothing happens. Text before `_seen` was looked at. It is read again only as words before a mark, as
              a row of backticks that ends the window (it is shown already), and behind the first mark of a call that
              was none; so each character is looked at a bounded number of times.
After a limit (`close(is_cut=True)`): a call that has begun is not shown. Nor is text that waits, unless it is a single
              `<` or two characters in the middle of a sentence (`_waits_for_call`).

Some of the text that was shown stays in the window, because a call may begin with words before its mark:

    ... and so web_search<|channel|>commentary {"query": "x
               |         |          |                      |
               start     mark       mark_end               _seen, up to which the scanner has read

A call whose first mark was lost, as it was here, begins with words that a stream may have shown before the next mark
came. Whatever is in one piece with the mark is taken out.
"""

import re
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from msgspec import Struct

from proxy.turn.json_mode import JsonMode
from proxy.turn.leaks import End, Leak, NotACall, Scanner, Syntax, bare, glm, harmony, one_of
from proxy.turn.turn_bounds import require_few_calls
from proxy.wire.chat import Json

SYNTAXES: Final = (glm.SYNTAX, harmony.SYNTAX)
"""The raw formats whose calls begin with a mark. An object without marks (`bare`) may only be the whole text."""

MAX_BUFFERED: Final = 64 * 1024
"""A longer text is not a tool call: it is shown, however it began."""

MOST_LOOKS: Final = 32 * 1024
"""The budget of one text in looks: one for a row of backticks, for a box or for a line end in a span of code. All of
them take 30 ms. A model writes 131,072 tokens at most."""

_MARK_COSTS: Final = 16  # looks: the words before the mark of a call and a scanner take some 10 us
_SIGNS_PER_LOOK: Final = 32  # so many `<` that begin no mark cost one look
# A scanner is given so many characters at a time, so that a call that is none after a few of them costs no more.
_STEP: Final = 1024
# How much of the text before a mark is kept: more than a header, and than a word before one.
_CONTEXT: Final = 256

_BOXES: Final = ("<|begin_of_box|>", "<|end_of_box|>")
_SYNTAX_OF: Final = {mark: syntax for syntax in SYNTAXES for mark in syntax.marks}
_MARKS: Final = (*_SYNTAX_OF, *_BOXES)
_MARKS_BEGUN: Final = frozenset(mark[:end] for mark in _MARKS for end in range(1, len(mark)))
_LONGEST_MARK: Final = max(map(len, _MARKS))
# Each alternative begins with a literal character, so that the regex engine skips all other text fast.
_TOKEN: Final = re.compile(f"``*|~~*|{one_of(_MARKS)}")
_FENCE: Final = 3  # the backticks or tildes that open a block of code; fewer backticks open a span, in one line
_LONGEST_FENCE: Final = 64  # more of them are no other fence
_SPAN_TOKEN: Final = re.compile("\n|``*")
_BLOCK_TOKENS: Final = {"`": re.compile("``*"), "~": re.compile("~~*")}
# `<`, `<|`, `<t` and `<a` begin tags of HTML and formulas as well. After so many pieces that ended in one of them there
# are many more to come: from then on they are shown at once, and a call that begins there is still found. A call that
# is found resets the count.
_SHORT_MARK: Final = 2
_PATIENCE: Final = 4
# Where a text was cut off, they began a call only here: at the beginning of the text, of a line or of a sentence.
_CALL_MAY_BEGIN: Final = re.compile("(?:\\A|[\n.!?:\u2026\u3002\uff01\uff1f\uff1a]) *\\Z")


class Beginning(Struct, frozen=True):
    """Only blanks have arrived."""


class Text(Struct, frozen=True):
    """Text outside of code and calls."""


class Code(Struct, frozen=True):
    """Code, which ends with the row of backticks or tildes that has opened it."""

    fence: str


class LeakedCall(Struct, frozen=True):
    """A call that has begun.

    Attributes:
        syntax: the raw format that it is written in.
        scanner: looks for its end.
        start: the index in the window at which it begins.
        mark_end: the index after its first mark.
    """

    syntax: Syntax
    scanner: Scanner
    start: int
    mark_end: int


State: TypeAlias = Beginning | Text | Code | LeakedCall

_BEGINNING: Final = Beginning()
_TEXT: Final = Text()


def is_plain(state: State, piece: str) -> bool:
    """Whether a piece is shown without a look at it: it neither ends code nor holds or begins a mark or a `to=`."""
    if isinstance(state, Text):
        return not ("<" in piece or "`" in piece or "~" in piece or "=" in piece)
    return isinstance(state, Code) and not (state.fence[0] in piece or "\n" in piece)


class LeakFilter(Struct):
    """Takes leaked calls out of a text that arrives in pieces.

    Attributes:
        tools: the names that may be called -> their JSON Schemas.
        json_mode: how the client asked for JSON; if it did in words, only an object that is sure to be a call is one.
        leaks: the calls that were found.
        garbled: whether raw model format that is not a call of any tool was taken out.
    """

    tools: Mapping[str, Json]
    json_mode: Callable[[], JsonMode] = lambda: JsonMode.NO
    leaks: list[Leak] = []
    garbled: bool = False
    _state: State = _BEGINNING
    _window: str = ""
    _seen: int = 0
    _shown: int = 0
    _budget: int = MOST_LOOKS
    _patience: int = _PATIENCE

    def feed(self, text: str) -> str:
        """The text that may be shown now. Raises `UpstreamError` if the text holds too many calls."""
        window = self._window
        is_unfinished = self._seen < len(window)
        self._window = window = window + text
        if not is_unfinished and is_plain(self._state, text):  # nearly every piece
            self._seen = self._shown = len(window)
        else:
            self._budget -= text.count("<") // _SIGNS_PER_LOOK
            out: list[str] = []
            while self._advance(out):
                pass
            text = "".join(out)
        if len(window) > _STEP:
            self._trim()
        return text

    def close(self, *, is_cut: bool = False) -> str:
        """The rest of the text so far, without leaks. More text may follow. Raises `UpstreamError`, as `feed` does.

        `is_cut` tells whether a limit has cut off the text, so that it may end with the beginning of a call.
        """
        out: list[str] = []
        if isinstance(self._state, LeakedCall):
            self._end_call(self._state, End.CUT if is_cut else End.TEXT, out)
            self._window, self._seen, self._shown = "", 0, 0
        elif is_cut and isinstance(self._state, Text) and self._waits_for_call():
            self.garbled = True
            self._show(self._seen, out)
            self._seen = self._shown = len(self._window)
        else:
            self._show(len(self._window), out)
        return "".join(out)

    def _advance(self, out: list[str]) -> bool:
        """Read on in the window up to the next change of state; False: there is none before more text arrives."""
        match self._state:
            case LeakedCall() as call:
                return self._read_call(call, out)
            case _ if self._budget <= 0:
                self._show(len(self._window), out)
                self._seen = self._shown
                return False
            case Beginning():
                return self._begin()
            case Text():
                return self._read_text(out)
            case code:
                return self._read_code(code, out)

    def _begin(self) -> bool:
        begun = self._window.lstrip()
        if not begun and len(self._window) < _CONTEXT:
            return False
        self._state = _TEXT
        if begun.startswith("{") and (asked := self.json_mode()) is not JsonMode.BY_FORMAT:
            self._begin_call(bare.syntax(only_sure=asked is JsonMode.BY_PROMPT), 0, 0)
        return True

    # -- text and code --

    def _read_text(self, out: list[str]) -> bool:
        window = self._window
        while self._budget > 0 and (token := _TOKEN.search(window, self._seen)):
            row, self._seen = token[0], token.end()
            if row[0] == "<":
                if self._take_mark(row, token.start(), out):
                    return True
                continue
            self._budget -= 1
            if self._seen == len(window):  # there may be more of them
                self._show_open_row(token.start(), out)
                return False
            if row[0] == "`" or len(row) >= _FENCE:
                self._state = Code(row[:_LONGEST_FENCE])
                return True
        if self._budget <= 0:
            return True
        self._show_text(out)
        return False

    def _take_mark(self, mark: str, start: int, out: list[str]) -> bool:
        """Take a mark, up to `_seen`, out of the text, or begin the call that it belongs to; whether a call begins."""
        syntax = _SYNTAX_OF.get(mark)
        if syntax is None:  # a box
            self._budget -= 1
            self._show(start, out)
            self._shown = self._seen
            return False
        self._budget -= _MARK_COSTS
        length = syntax.header_length(self._window[max(0, start - _CONTEXT) : start], mark, self.tools)
        if length is None:
            return False
        self._show(start - length, out)
        self._begin_call(syntax, start - length, self._seen)
        return True

    def _show_text(self, out: list[str]) -> None:
        """Show the rest of the window, but for what may be the beginning of a call at its end."""
        window = self._window
        # If patience runs out, `end` becomes the length of the window, and `_seen` stays at the `<` on purpose: the
        # text is shown, and a call that begins there is still found.
        self._seen = end = self._end_of_text()
        if window[end : end + 1] == "<" and end + _SHORT_MARK >= len(window):
            self._patience -= 1
            if self._patience < 0:
                end = len(window)
            elif window[self._shown : end].isspace():  # the blanks wait too, so that the piece is not split
                end = self._shown
        self._show(end, out)

    def _read_code(self, code: Code, out: list[str]) -> bool:
        window, is_span = self._window, len(code.fence) < _FENCE
        tokens = _SPAN_TOKEN if is_span else _BLOCK_TOKENS[code.fence[0]]
        for token in tokens.finditer(window, self._seen):
            self._budget -= 1
            row, self._seen = token[0], token.end()
            if row != "\n" and self._seen == len(window):
                self._show_open_row(token.start(), out)
                return False
            if row in ("\n", code.fence) or (not is_span and row.startswith(code.fence)):
                self._state = _TEXT
                return True
            if self._budget <= 0:
                return True
        self._seen = len(window)
        self._show(self._seen, out)
        return False

    def _show_open_row(self, start: int, out: list[str]) -> None:
        """Show a row of backticks or tildes at the end of the window, which is looked at again when more follows."""
        end = len(self._window)
        self._show(end, out)
        self._seen = max(start, end - _LONGEST_FENCE)

    def _end_of_text(self) -> int:
        """The index at which a mark that has begun, or words that belong to it, may begin at the end of the window."""
        window, end = self._window, len(self._window)
        at = window.rfind("<", max(self._seen, end - _LONGEST_MARK))
        if at >= 0 and window[at:] in _MARKS_BEGUN:
            before = window[max(0, at - _CONTEXT) : at]
            return at - max(syntax.header_length(before, "", self.tools) or 0 for syntax in SYNTAXES)
        return end - harmony.recipient_length(window)

    def _waits_for_call(self) -> bool:
        """Whether the text that waits is taken for the beginning of a call if nothing follows."""
        if not (waiting := self._window[self._shown :]):
            return False
        mark = waiting[waiting.rfind("<") :] if "<" in waiting else ""
        # `_seen < _shown`: words that belong to the call were already shown.
        if len(mark) > _SHORT_MARK or self._seen < self._shown:
            return True
        return _CALL_MAY_BEGIN.search(self._window[max(0, self._seen - _CONTEXT) : self._seen]) is not None

    def _show(self, end: int, out: list[str]) -> None:
        """Show the window up to `end`, as far as it was not shown before."""
        if end > self._shown:
            out.append(self._window[self._shown : end])
            self._shown = end

    def _trim(self) -> None:
        """Take text that was shown out of the window, but for the last of it."""
        done = min(self._seen, self._shown) - _CONTEXT
        if done > 0 and not isinstance(self._state, LeakedCall):
            self._window = self._window[done:]
            self._seen, self._shown = self._seen - done, self._shown - done

    # -- calls --

    def _begin_call(self, syntax: Syntax, start: int, mark_end: int) -> None:
        self._patience = _PATIENCE
        self._state, self._seen = LeakedCall(syntax, syntax.scanner(self.tools), start, mark_end), start

    def _read_call(self, call: LeakedCall, out: list[str]) -> bool:
        window = self._window
        while self._seen < len(window):
            piece = window[self._seen : self._seen + _STEP]
            try:
                end = call.scanner.feed(piece)
            except NotACall:  # its first mark is text; another call may begin after that
                self._show(call.mark_end, out)
                self._state, self._seen = _TEXT, call.mark_end
                return True
            self._seen += len(piece) if end is None else end
            if end is not None:
                self._end_call(call, End.MARK, out)
                return True
            if self._seen - call.start > MAX_BUFFERED:
                self._state = _TEXT
                return True
        return False

    def _end_call(self, call: LeakedCall, end: End, out: list[str]) -> None:
        """Parse a call up to `_seen`, and show the text for the user in it."""
        written = self._window[call.start : self._seen]
        found = call.syntax.read(written, self.tools, end)
        self.leaks += found.leaks
        require_few_calls(len(self.leaks))
        self.garbled = self.garbled or found.garbled
        self._state = _TEXT
        if found.text == written:
            self._show(self._seen, out)
        else:
            out.append(found.text.removeprefix(self._window[call.start : self._shown]))
            self._shown = self._seen


def may_leak(text: str) -> bool:
    """Whether a whole text can hold a call: every marker begins with `<`, and a bare call with a brace."""
    return "<" in text or text.lstrip()[:1] == "{"
