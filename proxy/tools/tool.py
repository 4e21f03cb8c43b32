"""The one door: a tool is a name, a description, a JSON Schema and one async call.

Built-in tools, HTTP APIs, MCP servers and Python functions all become a `Tool`, and nothing else is ever run. It is the
public API for tools of one's own too, as `proxy.Tool`:

    Tool(name="roll_dice", description="Rolls a die.", parameters={"type": "object"}, run=roll)
    Tool.from_function(roll_dice)  # the same from type hints and docstring

What concerns calling it (how often, for how long, what is kept) is said beside it and done by the registry.
"""

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias, TypedDict, Unpack

from proxy.loop.chat import Json, ToolOutput, ToolSpec
from proxy.loop.offer import SEARCH

Run: TypeAlias = Callable[[Json], Awaitable[str | ToolOutput]]

# The rule of OpenAI and GLM for a function's name.
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


class Terms(TypedDict, total=False):
    """What `Tool.from_function` may be told beside the function; the meanings are those of `Tool`."""

    name: str
    description: str
    parameters: Json
    aliases: tuple[str, ...]
    offer: str
    max_calls: int | None
    eager: bool
    repair: Callable[[Json], Json]
    timeout: float | None
    retries: int
    max_concurrent: int | None
    cache_seconds: float
    fallback: str | None
    searches: bool
    origin: str


def as_it_is(arguments: Json) -> Json:
    """For tools whose arguments need no words of their own changed."""
    return arguments


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """One tool, as the model sees it and as it is called.

    Attributes:
        name: letters, digits, `_` and `-`, at most 64 of them.
        description: for the model: what it does, and when to use it.
        parameters: a JSON Schema of type object; arguments that break it are never run.
        run: does the work: arguments in, text for the model out, or a `ToolOutput` where pages can be cited. Raises
            `ToolError` for what the model should know, `ToolUnavailable` where another try may succeed.
        aliases: other names under which a model or a client may call it.
        offer: when it is shown to a model: always, declared, on_request or never.
        max_calls: how often it may run in one request; None: as often as the request's budget allows.
        eager: whether a call may start while the model is still writing; not for tools that change things.
        repair: makes arguments that mean the same thing in other words fit the schema, before they are checked.
        timeout: seconds for one call, tries and waits together; None: the request's `tool_timeout`.
        retries: how often a call is tried again after `ToolUnavailable`; only for tools that may safely run twice.
        max_concurrent: calls of all requests that may run at the same time; None: any number.
        cache_seconds: how long a result serves equal calls of the same caller; 0: every call is run.
        fallback: the tool that is tried with the same arguments when this one fails.
        searches: whether it is a search of the web, whose calls are counted as `web_search_requests`; the tool named
            `web_search` always is.
        origin: where it comes from, for `toolproxy check`.

    Raises:
        ValueError: the name is none that models can call.
    """

    name: str
    description: str
    parameters: Json
    run: Run
    aliases: tuple[str, ...] = ()
    offer: str = "always"
    max_calls: int | None = None
    eager: bool = True
    repair: Callable[[Json], Json] = as_it_is
    timeout: float | None = None
    retries: int = 0
    max_concurrent: int | None = None
    cache_seconds: float = 0
    fallback: str | None = None
    searches: bool = False
    origin: str = "built in"

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"a tool's name may have letters, digits, '_' and '-', at most 64 of them: {self.name!r}")

    @classmethod
    def from_function(cls, function: Callable[..., object], **terms: Unpack[Terms]) -> "Tool":
        """A Python function as a tool.

        Args:
            function: sync (it runs in a thread) or async; takes its arguments by name; returns text, a `ToolOutput`
                or anything that JSON can hold.
            **terms: fields of `Tool`. Left out, name and description are those of the function, and the schema is
                derived from its type hints and its docstring.

        Raises:
            ValueError: a model could not call it: a type without JSON Schema, positional-only parameters, ...
        """
        from proxy.tools.python.function import tool_of  # noqa: PLC0415 - it imports this module

        return tool_of(function, **terms)

    @property
    def spec(self) -> ToolSpec:
        """How a model sees it."""
        return ToolSpec(
            name=self.name,
            description=self.description,
            parameters=self.parameters,
            aliases=self.aliases,
            max_calls=self.max_calls,
            mode=self.offer,
            eager=self.eager,
            searches=self.searches or self.name == SEARCH,
        )
