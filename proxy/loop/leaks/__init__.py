"""Tool calls that leaked into text, in the raw formats in which models write them.

    GLM       <tool_call>web_search<arg_key>query</arg_key><arg_value>x</arg_value></tool_call>
              web_search<arg_key>query</arg_key><arg_value>x</arg_value></tool_call>  (its beginning lost)
    Hermes    <tool_call>{"name": "web_search", "arguments": {"query": "x"}}</tool_call>
    harmony   <|start|>assistant<|channel|>commentary to=functions.web_search<|message|>{"query":"x"}<|call|>
              web_search<|channel|>commentary json<|message|>{"query":"x"}          (its beginning lost)
              commentary to=functions.web_search json<|message|>{"query":"x"}       (its first marks lost)
              web_search<|channel|>commentary {"query":"x"}                         (<|message|> or arguments lost)
    bare      {"query": "x"}                                                        (nothing but the arguments)

`filter` finds them in a text that comes in pieces; `glm` and `harmony` read what it has found.
"""

import re
from collections.abc import Callable, Mapping

import orjson
from msgspec import Struct

from proxy.loop.chat import Json

_HARMONY_MARK = re.compile(r"<\|\w+\|>")
_FIRST_KEY = re.compile(r'\{\s*"([^"\\]*)"')

# The arguments of gpt-oss's own browser. A model that writes a cursor instead of an answer calls a browser that it does
# not have: {"cursor": 2, "id": 2}.
_BROWSER_ARGUMENTS = frozenset(
    {"cursor", "id", "loc", "num_lines", "pattern", "query", "source", "topn", "view_source"}
)


# Of these arguments each alone shows that its text is such a call.
_ONLY_BROWSERS = frozenset({"cursor", "loc", "num_lines", "topn", "view_source"})
_FENCE_BEGUN = re.compile(r"(?:```|~~~)\w*\s")
_FENCED = re.compile(r"(```|~~~)\w*\s(.*?)\s*\1", re.DOTALL)
# A string, whose brackets do not count, or a bracket. Possessive and closed by the end of the text, so that a text of
# quotation marks and backslashes is read once.
_BRACKET = re.compile(r'"(?:[^"\\]|\\.?)*+(?:"|\Z)|[()\[\]{}]', re.DOTALL)
# Harmony without its marks, and a call in the syntax of a program.
_WRITTEN_CALL = re.compile(r"(?:assistant)?(?:analysis|commentary)?\s*((?:to=)?[\w.-]+)\s*(?:json)?\s*[({]")
# Of Hermes, Llama, Mistral, Anthropic and DeepSeek.
_FORMATS = (
    "<tool_call>", "<tool_calls>", "<function_call>", "<function_calls>", "<function=", "<invoke ", "[TOOL_CALLS]",
    "<|python_tag|>", "<\uff5ctool",
)  # fmt: skip
_CHANNELS = re.compile(r"(?:assistant)?analysis.*assistantfinal", re.DOTALL)  # harmony without its marks
_CHANNEL_BEGUN = re.compile(r"(?:assistant)?analysis")


class Leak(Struct, frozen=True):
    """A call found in text: the name that the model wrote, its arguments as JSON text."""

    name: str
    arguments: str


class Found(Struct, frozen=True):
    """The content of a piece of raw format.

    Attributes:
        text: what of it the user may read.
        leaks: its calls.
        garbled: whether something was taken out of it that is no call of any tool.
    """

    text: str = ""
    leaks: tuple[Leak, ...] = ()
    garbled: bool = False


def clean_name(name: str, tools: Mapping[str, Json]) -> str:
    """A function's name without the pieces of raw format that servers leave glued to it.

    `web_search<|channel|>commentary`, `functions.web_search`, `assistant<|channel|>bash<|channel|>commentary`,
    `read<arg_key>...`. A name that is no tool's even then stays without them: it is an unknown name.
    """
    if name in tools:
        return name
    pieces = [bare_name(piece.strip()) for piece in _HARMONY_MARK.split(name.partition("<arg_key>")[0])]
    return next((piece for piece in pieces if piece in tools), next((piece for piece in pieces if piece), name))


def bare_name(word: str) -> str:
    """The name in `to=functions.name`."""
    return word.removeprefix("to=").removeprefix("functions.")


def may_be_arguments(text: str, tools: Mapping[str, Json]) -> bool:
    """Whether a text that begins with a brace may become the bare arguments of a call."""
    begun = text.lstrip()
    key = _FIRST_KEY.match(begun)
    if key is None:
        return begun[1:].lstrip()[:1] in ("", '"', "}")
    known = (schema.get("properties") for schema in tools.values())
    return key[1] in _BROWSER_ARGUMENTS or any(isinstance(names, dict) and key[1] in names for names in known)


def read_arguments(text: str, tools: Mapping[str, Json]) -> Found:
    """A text that may be the bare arguments of a call."""
    value = parsed(text.strip())
    if (name := fitting_tool(value, tools)) is not None:
        return Found(leaks=(Leak(name, text.strip()),))
    if isinstance(value, dict) and _BROWSER_ARGUMENTS.issuperset(value) and not _ONLY_BROWSERS.isdisjoint(value):
        return Found(garbled=True)
    return Found(text)


def is_bare_call(text: str, tools: Mapping[str, Json], *, json_expected: Callable[[], bool]) -> bool:
    """Whether a text is nothing but tool calls, in whatever syntax, or begins with a raw format of calls or thoughts.

    Args:
        text: of a turn that has to be the answer.
        tools: the names that may be called -> their JSON Schemas.
        json_expected: whether the client asked for JSON, so that an object may be the answer.
    """
    text = text.strip()
    if fenced := _FENCED.fullmatch(text):
        text = fenced[2].strip()
    value = parsed(text)
    if isinstance(value, dict):
        is_named = isinstance(name := value.get("name"), str) and bare_name(name) in tools
        is_call = is_named or fitting_tool(value, tools) is not None or _BROWSER_ARGUMENTS.issuperset(value)
        return bool(value) and is_call and not json_expected()
    return text.startswith(_FORMATS) or _CHANNELS.match(text) is not None or _is_written_calls(text, tools)


def may_be_bare_call(text: str, tools: Mapping[str, Json]) -> bool:
    """Whether a text of which more may come begins like one that is nothing but tool calls."""
    begun = _FENCE_BEGUN.sub("", text.lstrip(), count=1).lstrip()
    written = _WRITTEN_CALL.match(begun)
    is_written = written is not None and bare_name(written[1]) in tools
    return begun.startswith(("{", *_FORMATS)) or _CHANNEL_BEGUN.match(begun) is not None or is_written


def _is_written_calls(text: str, tools: Mapping[str, Json]) -> bool:
    """Whether a text is calls and nothing else: `web_search ("x")` is one, `search (noun): ...` begins like one."""
    rest = text
    while written := _WRITTEN_CALL.match(rest):
        if bare_name(written[1]) not in tools:
            return False
        rest = rest[_end_of_bracket(rest, written.end() - 1) :].lstrip(" \t\r\n;,")
    return bool(text) and not rest


def _end_of_bracket(text: str, start: int) -> int:
    """The place behind what the bracket at `start` encloses; the end of the text where it is not closed."""
    depth = 0
    for match in _BRACKET.finditer(text, start):
        depth += (match[0] in "([{") - (match[0] in ")]}")
        if depth == 0:
            return match.end()
    return len(text)


def fitting_tool(value: object, tools: Mapping[str, Json]) -> str | None:
    """The only tool whose arguments an object could be; None where there is none, or more than one."""
    fitting = [name for name, schema in tools.items() if fits(value, schema)]
    # The aliases of one tool share one schema object.
    return fitting[0] if len({id(tools[name]) for name in fitting}) == 1 else None


def fits(value: object, schema: Json) -> bool:
    """Whether an object could be the arguments of a tool with this schema: all its keys known, none missing."""
    properties = schema.get("properties")
    if not isinstance(value, dict) or not value or not isinstance(properties, dict):
        return False
    required = schema.get("required") or ()
    return value.keys() <= properties.keys() and all(key in value for key in required)


def parsed(text: str) -> object:
    """The value of a JSON text; None where it is none."""
    try:
        value: object = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    return value
