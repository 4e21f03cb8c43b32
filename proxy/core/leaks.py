"""Tool calls that leaked into text, in whole and streamed text alike.

    GLM       <tool_call>web_search<arg_key>query</arg_key><arg_value>x</arg_value></tool_call>
    harmony   <|start|>assistant<|channel|>commentary to=functions.web_search<|message|>{"query":"x"}<|call|>
              web_search<|channel|>commentary json<|message|>{"query":"x"}          (its beginning lost)
    bare      {"query": "x"}                                                        (nothing but the arguments)

They are read as calls where they name a tool that the model was offered, and never shown. What only looks similar stays
text: markers in code (a user asking about `<tool_call>`), unknown names, harmony's words without harmony's structure.

Every character is looked at a bounded number of times, and no more than `MAX_HELD` are ever held back.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

import orjson

from proxy.core.chat import Json

# More text than this is no tool call: it is shown, whatever it began with.
MAX_HELD = 64 * 1024
# Text is taken in pieces of this size, so that cutting a call out of it never copies more.
_STEP = 4096
# Nothing that is this long is a bare name in front of harmony's markers.
_LONGEST_BEGINNING = 256

_GLM_OPEN, _GLM_CLOSE = "<tool_call>", "</tool_call>"
_HARMONY = ("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|call|>", "<|end|>", "<|return|>")
_MARKERS = (_GLM_OPEN, *_HARMONY)
_LONGEST_MARKER = max(map(len, _MARKERS))
_TOKEN = re.compile("|".join(re.escape(token) for token in ("```", "`", "\n", *_MARKERS)))

_GLM_NAME = re.compile(r"\s*([\w.-]+)\s*")
_GLM_ARGUMENT = re.compile(r"\s*<arg_key>([^<]*)</arg_key>\s*<arg_value>(.*?)</arg_value>\s*", re.DOTALL)
_RECIPIENT = re.compile(r"\bto=([\w.-]+)")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_MESSAGE = "<|message|>"
_MESSAGE_END = re.compile(r"<\|(?:end|call|return|start)\|>")
_ANY_HARMONY = re.compile(r"<\|\w+\|>")

# What gpt-oss's own browser takes. A model that writes these instead of an answer reaches for a browser that is not
# there: {"cursor": 2, "id": 2}.
_BROWSER_ARGUMENTS = frozenset(
    {"cursor", "id", "loc", "num_lines", "pattern", "query", "source", "topn", "view_source"}
)


@dataclass(frozen=True, slots=True)
class Leak:
    """A call found in text: its name as the model was offered it, its arguments as JSON text."""

    name: str
    arguments: str


class _Mode(Enum):
    BEGINNING = auto()  # nothing but what may be a name or an opening brace has come
    TEXT = auto()
    FENCE = auto()  # in a block of code
    INLINE = auto()  # in a span of code
    GLM = auto()
    HARMONY = auto()  # to the end of the turn
    JSON = auto()  # to the end of the turn


@dataclass(slots=True)
class LeakFilter:
    """Text in, as it comes; text that may be shown out; `leaks` and `garbled` say what was found besides.

    Args:
        tools: the names that may be called -> their JSON Schemas.
        json_expected: the client asked for JSON, so an answer that is one object is an answer.
    """

    tools: Mapping[str, Json]
    json_expected: bool = False
    leaks: list[Leak] = field(default_factory=list)
    garbled: bool = False  # raw model format that is no call of any tool was taken out
    _mode: _Mode = _Mode.BEGINNING
    _held: str = ""
    _searched: int = 0

    def feed(self, text: str) -> str:
        """The text that may be shown now."""
        return "".join([self._feed(text[at : at + _STEP]) for at in range(0, len(text), _STEP)])

    def _feed(self, text: str) -> str:
        self._held += text
        shown: list[str] = []
        while True:
            before = self._mode
            shown.append(self._advance())
            if self._mode is before:
                return "".join(shown)

    def close(self) -> str:
        """The end of the turn: what was held and turns out to be text."""
        held, self._held = self._held, ""
        if self._mode is _Mode.GLM:
            return self._read_glm(held, whole=False)
        if self._mode is _Mode.HARMONY:
            return self._read_harmony(held)
        if self._mode is _Mode.JSON:
            return self._read_json(held)
        return held

    def _advance(self) -> str:
        """One step; a step that changes the mode is followed by another."""
        match self._mode:
            case _Mode.BEGINNING:
                return self._begin()
            case _Mode.GLM:
                return self._capture_glm()
            case _Mode.HARMONY | _Mode.JSON:
                return self._capture()
            case _:
                return self._scan()

    def _begin(self) -> str:
        begun = self._held.lstrip()
        if begun.startswith("{") and not self.json_expected:
            self._mode = _Mode.JSON
        elif len(self._held) <= _LONGEST_BEGINNING and self._could_be_harmony(begun):
            if _ANY_HARMONY.search(begun):
                self._mode = _Mode.HARMONY
        else:
            self._mode = _Mode.TEXT
        return ""

    def _could_be_harmony(self, begun: str) -> bool:
        """Whether the text so far is, or may become, a bare name that harmony's markers follow."""
        word, marker, _ = begun.partition("<|")
        names = ("assistant", *self.tools, *(f"functions.{name}" for name in self.tools))
        candidates = (*names, *(f"to={name}" for name in names))
        if marker:
            return word.strip() in candidates
        if begun.endswith("<"):
            word = begun[:-1]
            return word.strip() in candidates
        return any(candidate.startswith(begun.rstrip()) for candidate in candidates)

    def _scan(self) -> str:
        """Text up to the first marker outside of code; what may be the beginning of one stays behind."""
        at = 0
        while match := _TOKEN.search(self._held, at):
            mark, start, at = match.group(), match.start(), match.end()
            if self._held[start:] in ("`", "``"):
                return self._release(start)  # one backtick, or the first of three
            if mark == "```":
                self._mode = _Mode.TEXT if self._mode is _Mode.FENCE else _Mode.FENCE
            elif mark == "`" and self._mode is not _Mode.FENCE:
                self._mode = _Mode.TEXT if self._mode is _Mode.INLINE else _Mode.INLINE
            elif mark == "\n" and self._mode is _Mode.INLINE:
                self._mode = _Mode.TEXT
            elif mark in _MARKERS and self._mode is _Mode.TEXT:
                self._mode = _Mode.GLM if mark == _GLM_OPEN else _Mode.HARMONY
                self._searched = 0
                return self._release(start)
        return self._release(len(self._held) - _partial(self._held, at))

    def _capture_glm(self) -> str:
        end = self._held.find(_GLM_CLOSE, self._searched)
        if end < 0:
            self._searched = max(0, len(self._held) - len(_GLM_CLOSE))
            return self._capture()
        end += len(_GLM_CLOSE)
        segment, self._held = self._held[:end], self._held[end:]
        self._mode = _Mode.TEXT
        return self._read_glm(segment, whole=True)

    def _capture(self) -> str:
        """Hold on, but not for ever."""
        if len(self._held) <= MAX_HELD:
            return ""
        self._mode = _Mode.TEXT
        return self._release(len(self._held))

    def _release(self, end: int) -> str:
        shown, self._held = self._held[:end], self._held[end:]
        return shown

    def _read_glm(self, segment: str, *, whole: bool) -> str:
        leak = parse_glm(segment.removeprefix(_GLM_OPEN).removesuffix(_GLM_CLOSE))
        if leak is None or leak.name not in self.tools:
            return segment
        if whole or segment.rstrip().endswith("</arg_value>"):
            self.leaks.append(leak)
        else:
            self.garbled = True  # cut off in the middle: nothing that could be run, nothing that should be read
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
        fitting = [name for name, schema in self.tools.items() if fits(value, schema)]
        schemas = {id(self.tools[name]) for name in fitting}
        if len(schemas) == 1:
            self.leaks.append(Leak(fitting[0], held.strip()))
            return ""
        if value and _BROWSER_ARGUMENTS.issuperset(value):
            self.garbled = True
            return ""
        return held


def parse_glm(text: str) -> Leak | None:
    """`name<arg_key>k</arg_key><arg_value>v</arg_value>...`, or None. Values are JSON where they are, else text."""
    name = _GLM_NAME.match(text)
    if name is None:
        return None
    at = name.end()
    arguments: Json = {}
    while argument := _GLM_ARGUMENT.match(text, at):
        at = argument.end()
        arguments[argument[1].strip()] = _value(argument[2])
    rest = text[at:].strip()
    if rest.startswith("{") and not arguments:
        return Leak(name[1], rest)
    if rest and not rest.startswith("<arg"):
        return None
    return Leak(name[1], orjson.dumps(arguments).decode())


def parse_harmony(text: str, tools: Mapping[str, Json]) -> tuple[list[Leak], str] | None:
    """The calls and the user's text in harmony's raw format; None where it has not harmony's structure."""
    leaks: list[Leak] = []
    shown: list[str] = []
    at = 0
    recognised = False
    while (header_end := text.find(_MESSAGE, at)) >= 0:
        header = text[at:header_end]
        begin = header_end + len(_MESSAGE)
        end = _MESSAGE_END.search(text, begin)
        body = text[begin : end.start() if end else len(text)]
        at = end.end() if end else len(text)
        name = _recipient(header, tools)
        channel = _CHANNEL.search(header)
        recognised = recognised or name is not None or channel is not None
        if name is not None:
            leaks.append(Leak(name, body.strip()))
        elif channel is None or channel[1] != "analysis":
            shown.append(body)
    rest = text[at:]
    if (name := _recipient(rest, tools)) is not None and (brace := rest.find("{")) >= 0:
        leaks.append(Leak(name, _ANY_HARMONY.sub("", rest[brace:]).strip()))
        recognised = True
    return (leaks, "".join(shown)) if recognised else None


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


def fits(value: object, schema: Json) -> bool:
    """Whether an object could be the arguments of a tool with this schema: all its keys known, none missing."""
    properties = schema.get("properties")
    if not isinstance(value, dict) or not value or not isinstance(properties, dict):
        return False
    required = schema.get("required") or ()
    return value.keys() <= properties.keys() and all(key in value for key in required)


def _value(text: str) -> object:
    stripped = text.strip()
    if stripped[:1] in ("{", "[", '"') or stripped in ("true", "false", "null") or _NUMBER.fullmatch(stripped):
        try:
            return orjson.loads(stripped)
        except orjson.JSONDecodeError:
            return text
    return text


_NUMBER = re.compile(r"-?\d{1,15}(?:\.\d{1,15})?")


def _partial(text: str, begin: int) -> int:
    """How many characters at the end of `text` may be the beginning of a marker."""
    at = text.rfind("<", max(begin, len(text) - _LONGEST_MARKER))
    if at < 0:
        return 0
    tail = text[at:]
    return len(tail) if any(marker.startswith(tail) for marker in _MARKERS) else 0
