"""The filter that takes leaked calls out of a text while it is streamed.

Leaked calls become tool calls and are never shown. GLM-4.5v's marks around an answer, `<|begin_of_box|>` and
`<|end_of_box|>`, are not shown either. Text that only looks similar stays text: markers in code (a user asks about
`<tool_call>`), harmony's words without harmony's structure, and JSON that the client asked for.

    beginning   only blanks have arrived
    text        shown as it comes, up to a mark of one of the `SYNTAXES`; what may begin a call waits (`openings`)
    code        shown as it comes, up to the mark that closes the code
    call        nothing is shown until the `Scanner` finds the end of the call, or that it is none

Each character is examined a bounded number of times, and at most `MAX_BUFFERED` characters are buffered.
"""

import re
from collections.abc import Callable, Mapping

from msgspec import Struct

from proxy.turn.asked_json import AskedJson
from proxy.turn.leaks import End, Leak, NotACall, Scanner, Syntax, bare, glm, harmony
from proxy.turn.leaks.openings import Openings, Place, is_inside, is_ordinary, place_after
from proxy.turn.turn_bounds import require_few_calls
from proxy.wire.chat import Json

SYNTAXES = (glm.SYNTAX, harmony.SYNTAX)
"""The raw formats whose calls begin with a mark. An object without marks (`bare`) may only be the whole text."""

MAX_BUFFERED = 64 * 1024
"""A longer text is not a tool call: it is shown, however it began."""

# Text is processed in pieces of this size, so that cutting out a call never copies more.
_STEP = 1024
# How much of the text before a piece is kept: more than a header, and than a word before one.
_CONTEXT = 256

_BOXES = ("<|begin_of_box|>", "<|end_of_box|>")
_SYNTAX_OF = {mark: syntax for syntax in SYNTAXES for mark in syntax.marks}
_MARKS = (*_SYNTAX_OF, *_BOXES)
_MARKS_BEGUN = frozenset(mark[:end] for mark in _MARKS for end in range(1, len(mark)))
_LONGEST_MARK = max(map(len, _MARKS))
# Each alternative begins with a literal character, so that the regex engine skips all other text fast.
_TOKEN = re.compile("``*|~~*|" + "|".join(map(re.escape, _MARKS)))
_TOKEN_IN_SPAN = re.compile(f"\n|{_TOKEN.pattern}")  # a span of code ends with its line
_FENCE = 3  # the backticks that open a block of code
_LONGEST_FENCE = 64  # more of them are no other fence
# `<`, `<|`, `<t` and `<a` begin tags of HTML and formulas as well.
_SHORT_MARK = 2
# A text in which so many words, or `<`, have waited in vain has many more of them. From then on they are shown at once:
# a call is still found, but its first letters may have been shown. Half of the patience is kept for the likely places.
_PATIENCE = 6
_SURE, _LIKELY, _RARE = -1, 0, 3  # waits always; while patience is left; while more than half of it is left
_LIKELIHOOD = {Place.START: _LIKELY, Place.SENTENCE: _RARE, Place.FIRST_WORD: _RARE}


class _Opening(Struct, frozen=True):
    """The possible beginning of a call at the end of the buffer.

    Attributes:
        start: the index in the buffer.
        least_patience: it waits for what follows if more than this is left of the filter's patience.
        is_cut_call: whether it is taken for a call if nothing follows, because a limit has cut off the text.
    """

    start: int
    least_patience: int
    is_cut_call: bool


class _Call(Struct):
    """A call that has begun.

    Attributes:
        syntax: the raw format that it is written in.
        scanner: looks for its end.
        mark_end: the index after its first mark.
        pieces: the pieces of its text so far.
        length: how many characters these have.
    """

    syntax: Syntax
    scanner: Scanner
    mark_end: int
    pieces: list[str] = []
    length: int = 0


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
    _flows: bool = False  # text or code has begun, no call has, and nothing waits
    _openings: Openings = Openings(())
    _initials: frozenset[str] = frozenset()  # the first characters of these
    _is_begun: bool = False  # whether a character other than a blank has arrived
    _code: str = ""  # the mark that opened the current code, and will close it
    _call: _Call | None = None
    _buffer: str = ""  # text at whose end a call or a mark may begin
    _shown: int = 0  # how many characters of the buffer, or of the call, were shown already
    _before: str = ""  # the end of the text before the buffer
    _patience: int = _PATIENCE

    def __post_init__(self) -> None:
        self._openings = Openings(self.tools)
        self._initials = self._openings.initials

    def feed(self, text: str) -> str:
        """The text that may be shown now. Most pieces are words or a sign that cannot belong to a call."""
        if self._flows and len(text) <= _STEP:
            earlier, blank, word = text.rpartition(" ")
            is_plain = word.isalnum() and word.isascii() and word[0] not in self._initials
            is_plain = is_plain and (not earlier or earlier.isalnum())
            if is_plain or self._is_plain(text):
                self._before = before = blank + word if is_plain and blank else self._before + text
                if len(before) > _STEP:
                    self._before = before[-_CONTEXT:]
                return text
        if len(text) <= _STEP:
            return self._feed(text)
        return "".join([self._feed(text[at : at + _STEP]) for at in range(0, len(text), _STEP)])

    def _is_plain(self, text: str) -> bool:
        """Whether no call or code can begin or end in a piece, nor a call at its end."""
        if self._code:
            return not ("`" in text or "~" in text or "\n" in text)
        if "<" in text or "`" in text or "~" in text or "to=" in text:
            return False
        word = words[-1] if (words := text.rsplit(None, 1)) else ""
        return not self._openings.may_end(word) or is_inside(self._before, text, word)

    def close(self, *, is_cut: bool = False) -> str:
        """The rest of the text so far, without leaks. More text may follow.

        Args:
            is_cut: whether a limit has cut off the text, so that it may end with the beginning of a call.

        Raises:
            UpstreamError: the text holds too many calls, or one with arguments that are nested too deep.
        """
        if self._call is not None:
            return self._end_call(self._call, End.CUT if is_cut else End.TEXT)
        shown: list[str] = []
        if is_cut and not self._code and (opening := self._opening(0)) and opening.is_cut_call:
            self.garbled = True
            self._buffer = self._buffer[: max(opening.start, self._shown)]
        self._show(len(self._buffer), shown)
        return "".join(shown)

    def _feed(self, piece: str) -> str:
        shown: list[str] = []
        rest: str | None = piece
        while rest is not None:
            if self._call is not None:
                rest = self._feed_call(self._call, rest, shown)
            elif self._is_begun:
                rest = self._feed_text(rest, shown)
            else:
                rest = self._begin(rest, shown)
        self._flows = self._is_begun and self._call is None and not self._buffer
        return "".join(shown)

    # -- text and code --

    def _begin(self, piece: str, shown: list[str]) -> str | None:
        """The text so far, once it has a character other than a blank, or many blanks."""
        text, self._buffer = self._buffer + piece, ""
        begun = text.lstrip()
        if not begun and len(text) < _CONTEXT:
            self._buffer = text
            return None
        self._is_begun = True
        if begun.startswith("{") and (asked := self.asked_json()) is not AskedJson.BY_FORMAT:
            self._buffer = text
            return self._begin_call(bare.syntax(only_sure=asked is AskedJson.IN_WORDS), 0, 0, shown)
        return text

    def _feed_text(self, piece: str, shown: list[str]) -> str | None:
        """Show the text up to the next call, and return the call so far; None: there is no call."""
        waited = len(self._buffer) > self._shown
        self._buffer += piece
        at = 0
        while match := (_TOKEN_IN_SPAN if 0 < len(self._code) < _FENCE else _TOKEN).search(self._buffer, at):
            mark, start, at = match.group(), match.start(), match.end()
            if mark[0] == "<":
                if syntax := _SYNTAX_OF.get(mark):
                    length = None if self._code else syntax.header_length(self._text_before(start), mark, self.tools)
                    if length is not None:
                        return self._begin_call(syntax, start - length, at, shown)
                elif not self._code:  # a box
                    self._show(max(start, self._shown), shown, keep=at)
                    self._before, at = "", 0
            elif mark == "\n":
                self._code = ""
            elif at == len(self._buffer):  # there may be more of them
                self._show(at, shown, keep=max(start, at - _LONGEST_FENCE))
                return None
            else:
                self._pass_fence(mark[:_LONGEST_FENCE])
        self._show_decided(at, shown, waited=waited)
        return None

    def _pass_fence(self, mark: str) -> None:
        """Enter or leave code: a block at three or more marks, a span at fewer. The same mark closes the code."""
        if self._code:
            is_end = mark == self._code or (len(self._code) >= _FENCE and mark.startswith(self._code))
            self._code = "" if is_end else self._code
        elif mark[0] == "`" or len(mark) >= _FENCE:
            self._code = mark

    def _show_decided(self, begin: int, shown: list[str], *, waited: bool) -> None:
        """Show the buffer but for its end, if a call may begin there.

        Args:
            begin: the index after the last mark.
            shown: takes the text.
            waited: whether the buffer waited for the latest piece; what may still begin a call goes on waiting.
        """
        end = len(self._buffer)
        opening = None if self._code else self._opening(begin)
        if opening is None:
            self._show(end, shown)
            return
        waits = waited and opening.start <= self._shown
        if not waits and (waits := self._patience > opening.least_patience):
            self._patience -= opening.least_patience is not _SURE
        if waits:
            end, begin = max(opening.start, self._shown), max(begin, self._shown)
            if not any(map(str.isalnum, self._buffer[begin:end])):
                end = begin  # blanks and signs before it wait too, so that a piece stays whole
        self._show(end, shown, keep=min(end, opening.start))

    def _opening(self, begin: int) -> _Opening | None:
        """The possible beginning of a call at the end of the buffer, from the index `begin` on."""
        end = len(self._buffer)
        at = self._buffer.rfind("<", max(begin, end - _LONGEST_MARK))
        if at >= 0 and self._buffer[at:] in _MARKS_BEGUN:
            before = self._text_before(at)
            if header := max(syntax.header_length(before, "", self.tools) or 0 for syntax in SYNTAXES):
                return _Opening(max(0, at - header), _SURE, is_cut_call=True)
            is_short = end - at <= _SHORT_MARK
            is_cut_call = not is_short or place_after(before) in (Place.START, Place.SENTENCE)
            return _Opening(at, _RARE if is_short else _SURE, is_cut_call)
        before = self._text_before(end)
        length = self._openings.length_at_end(before)
        if not length:
            return None
        place = place_after(before[:-length])
        if not is_ordinary(before[-length:]):
            return _Opening(max(0, end - length), _SURE, is_cut_call=place is not Place.INSIDE)
        if place is Place.INSIDE:
            return None
        return _Opening(max(0, end - length), _LIKELIHOOD[place], is_cut_call=False)

    def _text_before(self, end: int) -> str:
        """The text before an index of the buffer, as far as a header may reach."""
        return (self._before + self._buffer[max(0, end - _CONTEXT) : end])[-_CONTEXT:]

    def _show(self, end: int, shown: list[str], *, keep: int | None = None) -> None:
        """Show the buffer up to `end`, and take what is before `keep` (if None, before `end`) out of it."""
        keep = end if keep is None else keep
        shown.append(self._buffer[self._shown : end])
        self._before = self._text_before(keep)
        self._shown = max(0, max(self._shown, end) - keep)
        self._buffer = self._buffer[keep:]

    # -- calls --

    def _begin_call(self, syntax: Syntax, start: int, mark_end: int, shown: list[str]) -> str:
        """Show the text before a call, and return the call so far.

        Args:
            syntax: the raw format that it is written in.
            start: its index in the buffer; negative: its first words were shown before it could be known.
            mark_end: the index after its first mark.
            shown: takes the text.
        """
        if start < 0:
            words, self._before = self._before[start:], self._before[:start]
            self._buffer, self._shown = words + self._buffer, self._shown + len(words)
            start, mark_end = 0, mark_end + len(words)
        self._show(max(start, self._shown), shown, keep=start)
        self._call = _Call(syntax, syntax.scanner(self.tools), mark_end - start)
        text, self._buffer = self._buffer, ""
        return text

    def _feed_call(self, call: _Call, piece: str, shown: list[str]) -> str | None:
        """Take a piece of a call, and return the text that follows the call; None: the call goes on."""
        try:
            end = call.scanner.feed(piece)
        except NotACall:  # its first mark is text; another call may begin after that
            call.pieces.append(piece)
            self._leave_call(call)
            self._show(call.mark_end, shown)
            text, self._buffer = self._buffer, ""
            return text
        if end is not None:
            call.pieces.append(piece[:end])
            shown.append(self._end_call(call, End.MARK))
            return piece[end:]
        call.pieces.append(piece)
        call.length += len(piece)
        if call.length > MAX_BUFFERED:
            self._leave_call(call)
            self._show(len(self._buffer), shown)
        return None

    def _end_call(self, call: _Call, end: End) -> str:
        """The text for the user in a call."""
        self._leave_call(call)
        found = call.syntax.read(self._buffer, self.tools, end)
        self.leaks += found.leaks
        require_few_calls(len(self.leaks))
        self.garbled = self.garbled or found.garbled
        if found.text == self._buffer:
            shown: list[str] = []
            self._show(len(self._buffer), shown)
            return "".join(shown)
        text = found.text.removeprefix(self._buffer[: self._shown])
        self._buffer, self._shown, self._before, self._patience = "", 0, "", _PATIENCE
        return text

    def _leave_call(self, call: _Call) -> None:
        """Make the text of the current call the buffer."""
        self._call, self._buffer = None, "".join(call.pieces)


def may_leak(text: str) -> bool:
    """Whether a whole text can hold a call: every marker begins with `<`, and a bare call with a brace."""
    return "<" in text or text.lstrip()[:1] == "{"
