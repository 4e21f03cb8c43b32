"""Tool calls that leaked into text, in whole and streamed text alike.

    GLM       <tool_call>web_search<arg_key>query</arg_key><arg_value>x</arg_value></tool_call>
              web_search<arg_key>query</arg_key><arg_value>x</arg_value></tool_call>  (its beginning lost)
    Hermes    <tool_call>{"name": "web_search", "arguments": {"query": "x"}}</tool_call>
    harmony   <|start|>assistant<|channel|>commentary to=functions.web_search<|message|>{"query":"x"}<|call|>
              web_search<|channel|>commentary json<|message|>{"query":"x"}          (its beginning lost)
              commentary to=functions.web_search json<|message|>{"query":"x"}       (its first marks lost)
    bare      {"query": "x"}                                                        (nothing but the arguments)

They are read as calls and never shown, nor are GLM-4.5v's marks around an answer, `<|begin_of_box|>` and
`<|end_of_box|>`. What only looks similar stays text: markers in code (a user asking about `<tool_call>`), harmony's
words without harmony's structure, JSON that the client asked for.

Every character is looked at a bounded number of times, and no more than `MAX_HELD` are ever held back.
"""

import re
from collections.abc import Callable, Mapping
from enum import Enum, auto

import orjson
from msgspec import Struct

from proxy.loop.chat import Json

# More text than this is no tool call: it is shown, whatever it began with.
MAX_HELD = 64 * 1024
# Text is taken in pieces of this size, so that cutting a call out of it never copies more.
_STEP = 4096
# Nothing that is this long is a bare name in front of harmony's markers.
_LONGEST_NAME = 128

_GLM_OPEN, _GLM_CLOSE = "<tool_call>", "</tool_call>"
_ARGUMENT = "<arg_key>"  # where a call's opening tag was lost, the first mark that is left
_BOXES = ("<|begin_of_box|>", "<|end_of_box|>")
_HARMONY = ("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|call|>", "<|end|>", "<|return|>")
_MARKERS = (_GLM_OPEN, _ARGUMENT, *_HARMONY)
_MARKS = (*_MARKERS, *_BOXES)
_LONGEST_MARK = max(map(len, _MARKS))
# Each alternative begins with a plain character: what begins with none of them is then skipped at C's speed.
_TOKEN = re.compile("``*|~~*|\n|" + "|".join(map(re.escape, _MARKS)))
_FENCE = 3  # as many backticks open a block of code

_GLM_NAME = re.compile(r"\s*([\w.-]+)\s*")
_GLM_ARGUMENT = re.compile(r"\s*<arg_key>([^<]*)</arg_key>\s*<arg_value>(.*?)</arg_value>\s*", re.DOTALL)
_HERMES = re.compile(r"<tool_call>\s*\{")
_QUOTE = re.compile(r'\\.|"', re.DOTALL)
_NUMBER = re.compile(r"-?\d{1,15}(?:\.\d{1,15})?")

_RECIPIENT = re.compile(r"\bto=\s*([\w.-]+)")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_MESSAGE = "<|message|>"
_SEGMENT_END = re.compile(r"<\|(?:call|end|return)\|>|(?=<\|start\|>)")
_ANY_HARMONY = re.compile(r"<\|\w+\|>")
# Role, recipient, channel, recipient, content type: in this order, each of them optional, and nothing else.
_HEADER = re.compile(
    r"\s*(?:<\|start\|>)?\s*(?:[\w.-]+)?\s*(?:to=\s*[\w.-]+)?\s*(?:<\|channel\|>\s*\w+)*"
    r"\s*(?:to=\s*[\w.-]+)?\s*(?:<\|constrain\|>)?\s*\w*\s*"
)
_WORD_AT_END = re.compile(r"[\w.=-]+\Z")
_A_LETTER = "\u00aa"  # one that no name begins with
_ROLE, _COMMENTARY = "assistant", "commentary"
# A header whose marks before the recipient were lost: `commentary to=functions.web_search json` in front of a mark, and
# what may become one. Every part of it is bounded, so that a window at the end of a text is enough.
_RECIPIENT_AT_END = r"(?:commentary\s{1,8})?to=\s{0,4}[\w.-]{1,128}(?:\s{1,4}\w{1,16})?\s{0,4}\Z"
_HEADER_AT_END = re.compile(rf"(?<!\w){_RECIPIENT_AT_END}")
_HEADER_BEGUN = re.compile(rf"(?<!\w)(?:(?:commentary\s{{1,8}})?to=\s{{0,4}}\Z|{_RECIPIENT_AT_END})")
_BEGUN_COMMENTARY = "|".join(_COMMENTARY[:end] for end in range(len(_COMMENTARY), 0, -1))
_CHANNEL_BEGUN = re.compile(rf"(?<!\w)(?:{_BEGUN_COMMENTARY}|(?:commentary\s{{1,8}})?(?:to?)?)\Z")
_LONGEST_HEADER, _LONGEST_CHANNEL = 192, 24
_FIRST_KEY = re.compile(r'\{\s*"([^"\\]*)"')

# What gpt-oss's own browser takes. A model that writes a cursor instead of an answer reaches for a browser that is not
# there: {"cursor": 2, "id": 2}.
_BROWSER_ARGUMENTS = frozenset(
    {"cursor", "id", "loc", "num_lines", "pattern", "query", "source", "topn", "view_source"}
)


class Leak(Struct, frozen=True):
    """A call found in text: the name that the model wrote, its arguments as JSON text."""

    name: str
    arguments: str


class _Mode(Enum):
    BEGINNING = auto()  # nothing but blanks has come, or what may be the arguments of a tool
    TEXT = auto()
    FENCE = auto()  # in a block of code
    INLINE = auto()  # in a span of code
    GLM = auto()
    HARMONY = auto()  # to the end of the turn
    JSON = auto()  # to the end of the turn


_BEGINNING, _TEXT = _Mode.BEGINNING, _Mode.TEXT  # asked for each chunk, see `breaker`


class LeakFilter(Struct):
    """Text in, as it comes; text that may be shown out; `leaks` and `garbled` say what was found besides.

    Args:
        tools: the names that may be called -> their JSON Schemas.
        json_expected: whether the client asked for JSON, so that a text that is one object is an answer.
    """

    tools: Mapping[str, Json]
    json_expected: Callable[[], bool] = bool  # says no
    leaks: list[Leak] = []
    garbled: bool = False  # raw model format that is no call of any tool was taken out
    _mode: _Mode = _Mode.BEGINNING
    _fence: str = ""  # what closes the code that the text is in
    _held: str = ""
    _searched: int = 0
    _quoted_to: int = 0  # how far the quotes of a call in Hermes form were counted ...
    _in_string: bool = False  # ... and whether that is inside of a JSON string
    _shown: str = ""  # the latest text that was let out; what comes next may go on with its last word
    _names: str = ""  # a line each, with a line end before it: a search in C for what begins like one

    def feed(self, text: str) -> str:
        """The text that may be shown now."""
        if self._mode is _BEGINNING and not self._held and _is_plain_beginning(text):
            self._mode = _TEXT
        # The short way, which nearly all text goes: nothing is held, and nothing in it or at its end is of interest.
        plain = "<" not in text and "`" not in text and "~" not in text and "=" not in text
        if plain and self._mode is _TEXT and not self._held and len(text) <= _STEP:
            words = text[-_LONGEST_NAME:].rsplit(None, 1)
            if not words or (words[-1].isalnum() and f"\n{words[-1]}" not in self._beginnings()):
                self._shown = text
                return text
            word = _last_word(text)
            if not word or not (self._may_be_name(word.strip(), whole=False) or _CHANNEL_BEGUN.search(word.rstrip())):
                self._shown = text
                return text
        return "".join([self._feed(text[at : at + _STEP]) for at in range(0, len(text), _STEP)])

    def close(self) -> str:
        """The end of this text: what was held and turns out to be text. More may follow, as text."""
        held, self._held = self._held, ""
        mode, self._mode = self._mode, _Mode.TEXT
        if mode is _Mode.GLM:
            return self._read_glm(held, whole=False)
        if mode is _Mode.HARMONY:
            return self._read_harmony(held)
        if mode is _Mode.JSON:
            return self._read_json(held)
        return held

    def _feed(self, text: str) -> str:
        self._held += text
        shown: list[str] = []
        while True:
            before = self._mode
            shown.append(self._advance())
            if self._mode is before:
                return "".join(shown)

    def _advance(self) -> str:
        """One step; a step that changes the mode is followed by another."""
        match self._mode:
            case _Mode.BEGINNING:
                return self._begin()
            case _Mode.GLM:
                return self._capture_glm()
            case _Mode.JSON:
                return self._capture_json()
            case _Mode.HARMONY:
                return self._capture()
            case _:
                return self._scan()

    def _begin(self) -> str:
        begun = self._held.lstrip()
        if begun.startswith("{") and not self.json_expected():
            self._mode = _Mode.JSON
        elif begun or len(self._held) > _LONGEST_NAME:
            self._mode = _Mode.TEXT
        return ""

    def _scan(self) -> str:
        """Text up to the first marker outside of code; what may be the beginning of one stays behind."""
        shown: list[str] = []
        at = 0
        while match := _TOKEN.search(self._held, at):
            mark, start, at = match.group(), match.start(), match.end()
            if mark[0] in "`~" and at == len(self._held):
                return "".join((*shown, self._release(start)))  # there may be more of them
            if mark in _MARKERS:
                if self._mode is _Mode.TEXT and (mark != _ARGUMENT or self._follows_a_name(start)):
                    return "".join((*shown, self._begin_capture(mark, start)))
            elif mark in _BOXES:
                if self._mode is _Mode.TEXT:
                    shown.append(self._release(start))
                    self._held, self._shown, at = self._held[len(mark) :], "", 0
            elif mark == "\n":
                self._mode = _Mode.TEXT if self._mode is _Mode.INLINE else self._mode
            elif mark[0] == "`" or len(mark) >= _FENCE:
                self._pass_fence(mark)
        return "".join((*shown, self._release(len(self._held) - self._undecided(at))))

    def _pass_fence(self, mark: str) -> None:
        """Code begins or ends: a block with three or more, a span with any number, each ended by its like."""
        if self._mode is _Mode.TEXT:
            self._mode = _Mode.FENCE if len(mark) >= _FENCE else _Mode.INLINE
            self._fence = mark
        elif mark == self._fence or (self._mode is _Mode.FENCE and mark.startswith(self._fence)):
            self._mode = _Mode.TEXT

    def _follows_a_name(self, end: int) -> bool:
        """Whether the name of a tool stands right before this place."""
        name = _last_word(self._with_context(end))
        return bool(name) and clean_name(name.strip(), self.tools) in self.tools

    def _begin_capture(self, mark: str, start: int) -> str:
        self._mode = _Mode.GLM if mark in (_GLM_OPEN, _ARGUMENT) else _Mode.HARMONY
        self._searched = self._quoted_to = 0
        self._in_string = False
        if mark == _ARGUMENT:
            start -= len(_last_word(self._held[:start]))
        elif self._mode is _Mode.HARMONY:
            start -= self._header_before(start)
        return self._release(max(0, start))

    def _header_before(self, end: int) -> int:
        """How many characters before one of harmony's markers belong to it: a name, or a recipient."""
        before = self._with_context(end)
        if match := _HEADER_AT_END.search(before[-_LONGEST_HEADER:]):
            return len(match[0])
        name = _last_word(before)  # web_search<|channel|>commentary
        return len(name) if name and clean_name(name.strip(), self.tools) in (*self.tools, _ROLE) else 0

    def _with_context(self, end: int) -> str:
        """What is held up to a place, behind a character that stands for the last one that was shown.

        A word that goes on with what was shown before is none by itself, however the text was cut.
        """
        last = self._shown[-1:]
        context = _A_LETTER if last.isalnum() or last == "_" else last if last in ".=-" else ""
        return context + self._held[:end]

    def _undecided(self, begin: int) -> int:
        """How many characters at the end may be the beginning of a marker, or what belongs to one behind it."""
        if self._mode is not _Mode.TEXT:
            return 0
        at = self._held.rfind("<", max(begin, len(self._held) - _LONGEST_MARK))
        if at >= 0 and not any(mark.startswith(self._held[at:]) for mark in _MARKS):
            at = -1
        end = at if at >= 0 else len(self._held)
        return len(self._held) - end + self._undecided_header(self._with_context(end), is_marked=at >= 0)

    def _undecided_header(self, before: str, *, is_marked: bool) -> int:
        """How much of the end of a text may belong to the marker behind it, or to one that is still to come."""
        window = before[-_LONGEST_HEADER:]
        if "to=" in window and (match := (_HEADER_AT_END if is_marked else _HEADER_BEGUN).search(window)):
            return len(match[0])
        word = _last_word(before)
        undecided = len(word) if word and self._may_be_name(word.strip(), whole=is_marked) else 0
        if not is_marked and (match := _CHANNEL_BEGUN.search(before[-_LONGEST_CHANNEL:])):
            return max(undecided, len(match[0]))
        return undecided

    def _may_be_name(self, word: str, *, whole: bool) -> bool:
        bare = word.removeprefix("to=").removeprefix("functions.")
        if whole:
            return bare in self.tools or bare == _ROLE
        return f"\n{bare}" in self._beginnings() or f"\n{word}" in self._beginnings()

    def _beginnings(self) -> str:
        if not self._names:
            self._names = "\n".join(("", *self.tools, _ROLE, _COMMENTARY, "functions.", "to="))
        return self._names

    def _capture_glm(self) -> str:
        while (end := self._held.find(_GLM_CLOSE, self._searched)) >= 0:
            end += len(_GLM_CLOSE)
            segment = self._held[:end]
            inside = segment.count("<arg_value>") > segment.count("</arg_value>") or self._ends_in_string(end)
            if inside:  # the mark is part of a value
                self._searched = end
                continue
            self._held = self._held[end:]
            self._mode = _Mode.TEXT
            return self._read_glm(segment, whole=True)
        self._searched = max(self._searched, len(self._held) - len(_GLM_CLOSE))
        return self._capture()

    def _ends_in_string(self, end: int) -> bool:
        """Whether a call in Hermes form is inside of a JSON string there; to be asked for one end after another."""
        if _HERMES.match(self._held):
            for mark in _QUOTE.finditer(self._held, self._quoted_to, end):
                self._in_string ^= mark[0] == '"'
            self._quoted_to = end
        return self._in_string

    def _capture_json(self) -> str:
        """What begins with a brace is held while it may become the arguments of a tool."""
        begun = self._held.lstrip()
        inside = begun[1:].lstrip()
        key = _FIRST_KEY.match(begun)
        hopeless = (inside and inside[0] not in '"}') or (key is not None and not self._is_argument(key[1]))
        if hopeless:
            self._mode = _Mode.TEXT
            return ""
        return self._capture()

    def _is_argument(self, key: str) -> bool:
        known = (schema.get("properties") for schema in self.tools.values())
        return key in _BROWSER_ARGUMENTS or any(isinstance(names, dict) and key in names for names in known)

    def _capture(self) -> str:
        """Hold on, but not for ever."""
        if len(self._held) <= MAX_HELD:
            return ""
        self._mode = _Mode.TEXT
        return self._release(len(self._held))

    def _release(self, end: int) -> str:
        shown, self._held = self._held[:end], self._held[end:]
        self._shown = shown or self._shown
        return shown

    def _read_glm(self, segment: str, *, whole: bool) -> str:
        self._shown = ""
        if _HERMES.match(segment):
            return self._read_hermes(segment)
        leak, rest = parse_glm(segment.removeprefix(_GLM_OPEN).removesuffix(_GLM_CLOSE), self.tools)
        if leak is None:
            return segment
        is_call = leak.name in self.tools or "<arg_value>" in segment
        complete = not rest and (whole or segment.rstrip().endswith(("</arg_value>", "}")))
        if is_call and complete:
            self.leaks.append(leak)
        elif is_call and rest.startswith("<"):
            self.garbled = True  # cut off in the middle: nothing that could be run, nothing that should be read
        else:
            return segment
        return ""

    def _read_hermes(self, segment: str) -> str:
        leak = parse_hermes(segment.removeprefix(_GLM_OPEN).removesuffix(_GLM_CLOSE), self.tools)
        if leak is not None:
            self.leaks.append(leak)
        elif '"name"' in segment and _GLM_CLOSE not in segment:
            self.garbled = True  # cut off in the middle
        else:
            return segment
        return ""

    def _read_harmony(self, held: str) -> str:
        found = parse_harmony(held, self.tools)
        if found is None:
            return held
        leaks, text = found
        self.leaks += leaks
        self.garbled = self.garbled or not (leaks or text.strip())
        return text

    def _read_json(self, held: str) -> str:
        try:
            value = orjson.loads(held.strip())
        except orjson.JSONDecodeError:
            return held
        name = fitting_tool(value, self.tools)
        if name is not None:
            self.leaks.append(Leak(name, held.strip()))
            return ""
        if isinstance(value, dict) and "cursor" in value and _BROWSER_ARGUMENTS.issuperset(value):
            self.garbled = True
            return ""
        return held


def may_leak(text: str) -> bool:
    """Whether a whole text can hold a call at all: every marker begins like a tag, bare arguments with a brace."""
    return "<" in text or text.lstrip()[:1] == "{"


def _is_plain_beginning(text: str) -> bool:
    """Whether a text begins with neither a blank nor what may be the arguments of a tool."""
    return text[:1] not in ("", "{") and not text[0].isspace()


def _last_word(text: str) -> str:
    """The word that a text ends with, and the blanks behind it; empty where it ends with none, or a very long one."""
    text = text[-_LONGEST_NAME:]
    words = text.rsplit(None, 1)
    match = _WORD_AT_END.search(words[-1]) if words else None
    return text[text.rindex(words[-1]) + match.start() :] if match else ""


def parse_glm(text: str, tools: Mapping[str, Json]) -> tuple[Leak | None, str]:
    """`name<arg_key>k</arg_key><arg_value>v</arg_value>...` as a call, and what could not be read of it.

    A value is text where the tool's schema says so; elsewhere it is JSON where it can be.
    """
    name = _GLM_NAME.match(text)
    if name is None:
        return None, text
    cleaned = clean_name(name[1], tools)
    properties = tools.get(cleaned, {}).get("properties")
    at = name.end()
    arguments: Json = {}
    while argument := _GLM_ARGUMENT.match(text, at):
        at = argument.end()
        key = argument[1].strip()
        schema = properties.get(key) if isinstance(properties, dict) else None
        is_text = isinstance(schema, dict) and schema.get("type") == "string"
        arguments[key] = argument[2] if is_text else _value(argument[2])
    rest = text[at:].strip()
    if rest.startswith("{") and not arguments:
        return Leak(cleaned, rest), ""
    return Leak(cleaned, orjson.dumps(arguments).decode()), rest


def parse_hermes(text: str, tools: Mapping[str, Json]) -> Leak | None:
    """`{"name": ..., "arguments": ...}` as a call."""
    value = _json(text)
    if not isinstance(value, dict) or not isinstance(name := value.get("name"), str):
        return None
    cleaned, arguments = clean_name(name, tools), value.get("arguments")
    if cleaned not in tools and arguments is None:
        return None
    return Leak(cleaned, arguments if isinstance(arguments, str) else orjson.dumps(arguments or {}).decode())


def parse_harmony(text: str, tools: Mapping[str, Json]) -> tuple[list[Leak], str] | None:
    """The calls and the user's text in harmony's raw format; None where it has not harmony's structure."""
    leaks: list[Leak] = []
    shown: list[str] = []
    for segment in _SEGMENT_END.split(text):
        header, mark, body = segment.partition(_MESSAGE)
        if not mark:
            header, brace, rest = segment.partition("{")
            header, body = (header, brace + rest) if brace and _RECIPIENT.search(header) else ("", segment)
        if not _HEADER.fullmatch(header) or (not mark and _ANY_HARMONY.search(body)):
            return None
        if _RECIPIENT.search(header) and "<|" not in header and not body.lstrip().startswith("{"):
            return None
        name = _recipient(header, tools) or (fitting_tool(_json(body), tools) if _CHANNEL.search(header) else None)
        channel = _CHANNEL.search(header)
        if name is not None:
            leaks.append(Leak(name, body.strip()))
        elif channel is None or channel[1] != "analysis":
            shown.append(body)
    return leaks, "".join(shown)


def _recipient(header: str, tools: Mapping[str, Json]) -> str | None:
    """The tool that a harmony header addresses: by `to=`, or by a bare name in front of its markers."""
    match = _RECIPIENT.search(header)
    if match:
        return clean_name(match[1], tools)
    name = clean_name(header, tools)
    return name if name in tools else None


def clean_name(name: str, tools: Mapping[str, Json]) -> str:
    """A function's name without the pieces of raw format that servers leave glued to it.

    `web_search<|channel|>commentary`, `functions.web_search`, `assistant<|channel|>bash<|channel|>commentary`,
    `read<arg_key>...`. A name that is no tool's even then stays without them: it is an unknown name.
    """
    if name in tools:
        return name
    pieces = [_bare(piece) for piece in _ANY_HARMONY.split(name.partition("<arg_key>")[0])]
    return next((piece for piece in pieces if piece in tools), next((piece for piece in pieces if piece), name))


def _bare(piece: str) -> str:
    return piece.strip().removeprefix("to=").removeprefix("functions.")


def fitting_tool(value: object, tools: Mapping[str, Json]) -> str | None:
    """The only tool whose arguments an object could be; None where there is none, or more than one."""
    fitting = [name for name, schema in tools.items() if fits(value, schema)]
    return fitting[0] if len({id(tools[name]) for name in fitting}) == 1 else None


def fits(value: object, schema: Json) -> bool:
    """Whether an object could be the arguments of a tool with this schema: all its keys known, none missing."""
    properties = schema.get("properties")
    if not isinstance(value, dict) or not value or not isinstance(properties, dict):
        return False
    required = schema.get("required") or ()
    return value.keys() <= properties.keys() and all(key in value for key in required)


def holds_raw_format(text: str) -> bool:
    """Whether a text still holds markers of a raw format outside of code: it is no answer then."""
    if "<" not in text:  # every marker begins with it; to take code out of a long answer takes far longer
        return False
    plain = re.sub(r"(```|~~~).*?(?:\1|\Z)|(`+)[^\n]*?\2", "", text, flags=re.DOTALL)
    return _GLM_OPEN in plain or any(marker in plain for marker in _HARMONY)


def _json(text: str) -> object:
    try:
        value: object = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    return value


def _value(text: str) -> object:
    stripped = text.strip()
    if stripped[:1] in ("{", "[", '"') or stripped in ("true", "false", "null") or _NUMBER.fullmatch(stripped):
        value = _json(stripped)
        return text if value is None and stripped != "null" else value
    return text
