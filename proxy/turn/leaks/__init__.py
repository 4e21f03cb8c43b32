"""Tool calls that leaked into text, in the raw formats of the models.

    GLM       <tool_call>web_search<arg_key>query</arg_key><arg_value>x</arg_value></tool_call>
              web_search<arg_key>query</arg_key><arg_value>x</arg_value></tool_call>  (its beginning lost)
    Hermes    <tool_call>{"name": "web_search", "arguments": {"query": "x"}}</tool_call>
    harmony   <|start|>assistant<|channel|>commentary to=functions.web_search<|message|>{"query":"x"}<|call|>
              web_search<|channel|>commentary json<|message|>{"query":"x"}          (its beginning lost)
              commentary to=functions.web_search json<|message|>{"query":"x"}       (its first marks lost)
              web_search<|channel|>commentary {"query":"x"}                         (<|message|> or arguments lost)
    bare      {"name": "web_search", "arguments": {"query": "x"}}
              {"query": "x"}                                                        (nothing but the arguments)

Each of `glm`, `harmony` and `bare` has a `Syntax`; `filter` finds their calls in a text that arrives in pieces.
`written` recognises further formats, which are not parsed: a text in such a format is not an answer.
"""

import re
from collections.abc import Callable, Collection, Container, Mapping
from enum import Enum, auto
from typing import Protocol

from msgspec import Struct

from proxy.wire.chat import Json

LONGEST_NAME = 128
"""The longest name of a tool that is recognised in a text."""

_WORD_AT_END = re.compile(r"[A-Za-z0-9_.=-]+\s*\Z")
"""The last word of a text, with the blanks after it. ASCII only: Chinese text has no blank before a name."""

# Harmony's marks and GLM's tags, of which the last may be cut off.
_MARK = re.compile(r"<\|\w+\|>|</?\w+>|<[|/]?\w*\Z")
_ARGUMENT_BEGUN = re.compile("<arg_key>|<arg_value>")


class Leak(Struct, frozen=True):
    """A call that was found in a text: the name that the model wrote, and the arguments as JSON text."""

    name: str
    arguments: str


class LeakedContent(Struct, frozen=True):
    """The content of a text in a raw format.

    Attributes:
        text: the part for the user.
        leaks: the calls.
        garbled: whether something that is not a call of any tool was taken out.
    """

    text: str = ""
    leaks: tuple[Leak, ...] = ()
    garbled: bool = False


class NotACall(Exception):
    """A text that began like a call in a raw format turns out to be none."""


class End(Enum):
    """The end of a text in a raw format."""

    MARK = auto()  # the mark that closes a call
    TEXT = auto()  # the end of the model's text
    CUT = auto()  # a limit: more would have followed


class Scanner(Protocol):
    """Reads one call while it arrives, each character a bounded number of times."""

    def feed(self, piece: str) -> int | None:
        """The index in the piece at which the call has ended; None: more of it may follow.

        Raises:
            NotACall: it is no call. How the text is cut into pieces does not matter.
        """


class Syntax(Struct, frozen=True):
    """A raw format of calls.

    Attributes:
        marks: the marks with which a call can begin.
        header_length: how many characters before a mark belong to its call; None: no call begins at the mark. Takes the
            text before the mark, the mark, and the names that may be called.
        scanner: makes a scanner for a call; takes the names that may be called -> their JSON Schemas.
        read: parses a call; takes its text, these names, and what ended it. Raises `UpstreamError` if the arguments are
            nested too deep.
    """

    marks: tuple[str, ...]
    header_length: Callable[[str, str, Mapping[str, Json]], int | None]
    scanner: Callable[[Mapping[str, Json]], Scanner]
    read: Callable[[str, Mapping[str, Json], End], LeakedContent]


def one_of(marks: Collection[str]) -> str:
    """A regular expression for any of the marks, which looks at each `<` of a text only once."""
    tokens = [re.escape(mark[2:]) for mark in marks if mark.startswith("<|")]
    tags = [re.escape(mark[1:]) for mark in marks if not mark.startswith("<|")]
    return rf"<(?:{'|'.join(tags)}|\|(?:{'|'.join(tokens)}))"


def clean_name(name: str, tools: Container[str]) -> str:
    """A function's name without the parts of a raw format that servers leave attached to it.

    Such as `web_search<|channel|>commentary`, `functions.web_search`, `assistant<|channel|>bash<|channel|>commentary`,
    `<tool_call>read`, `read</arg_value></tool_call>` and `read<arg_key>...`. A name that is unknown even without these
    parts is returned without them. A name that only contains that of a tool is another name.
    """
    if name in tools:
        return name
    pieces = [bare_name(piece.strip()) for piece in _MARK.split(_ARGUMENT_BEGUN.split(name, 1)[0])]
    return next((piece for piece in pieces if piece in tools), next((piece for piece in pieces if piece), name))


def bare_name(word: str) -> str:
    """The name in `to=functions.name`."""
    return word.removeprefix("to=").removeprefix("functions.")


def name_length(text: str, names: Container[str]) -> int:
    """How many characters at the end of a text are one of the names, with the blanks after it."""
    match = _WORD_AT_END.search(text[-LONGEST_NAME:])
    word = match[0] if match else ""
    name = word.rstrip()
    # The name may be glued to the sentence before it, so each part behind a full stop may be the name.
    parts = [at for at in range(len(name)) if at == 0 or name[at - 1] == "."]
    return next((len(word) - at for at in parts if clean_name(name[at:], names) in names), 0)


def fitting_tool(value: object, tools: Mapping[str, Json]) -> str | None:
    """The tool whose arguments the value could be; None: there is no such tool, or more than one."""
    fitting = [name for name, schema in tools.items() if fits(value, schema)]
    # The aliases of one tool share one schema object.
    return fitting[0] if len({id(tools[name]) for name in fitting}) == 1 else None


def fits(value: object, schema: Json) -> bool:
    """Whether a value could be the arguments of a tool with this schema: it has only known and all required keys."""
    properties = schema.get("properties")
    if not isinstance(value, dict) or not value or not isinstance(properties, dict):
        return False
    required = schema.get("required") or ()
    return value.keys() <= properties.keys() and all(key in value for key in required)
