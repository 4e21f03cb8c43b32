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

`filter` finds them in a text that arrives in pieces; `glm`, `harmony` and `bare` parse the parts that it has found.
`written` recognises further formats, which are not parsed: a text in such a format is not an answer.
"""

import re
from collections.abc import Container, Mapping

import orjson
from msgspec import Struct

from proxy.loop.chat import Json

# Harmony's marks and GLM's tags, of which the last may be cut off.
_MARK = re.compile(r"<\|\w+\|>|</?\w+>|<[|/]?\w*\Z")
_ARGUMENT_BEGUN = re.compile("<arg_key>|<arg_value>")


class Leak(Struct, frozen=True):
    """A call that was found in a text: the name that the model wrote, and the arguments as JSON text."""

    name: str
    arguments: str


class Found(Struct, frozen=True):
    """The content of a text in a raw format.

    Attributes:
        text: the part for the user.
        leaks: the calls.
        garbled: whether something that is not a call of any tool was taken out.
    """

    text: str = ""
    leaks: tuple[Leak, ...] = ()
    garbled: bool = False


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


def parsed(text: str) -> object:
    """The value of a JSON text; None: the text is not JSON."""
    try:
        value: object = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    return value
