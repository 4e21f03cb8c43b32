"""The one door: a tool is a name, a description, a JSON Schema and one async call.

Built-in tools, HTTP APIs, MCP servers and Python functions all become a `Tool`, and nothing else is ever run. It is the
public API for tools of one's own too, as `proxy.Tool`:

    Tool(name="roll_dice", description="Rolls a die.", parameters={"type": "object"}, run=roll)
    Tool.from_function(roll_dice)  # the same from type hints and docstring

A `Tool` adds to `ToolSpec`, which a model sees, how a call is run; the registry reads that part.
"""

import re
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, Final, Self, TypeAlias

from proxy.loop.chat import Json, ToolSpec
from proxy.loop.results import ToolOutput
from proxy.loop.search import SearchFilters
from proxy.tools.python.function import Function

RunTool: TypeAlias = Callable[[Json], Awaitable[str | ToolOutput]]
RunFiltered: TypeAlias = Callable[[Json, SearchFilters], Awaitable[ToolOutput]]

SCOPE: Final[ContextVar[str]] = ContextVar("toolproxy_scope", default="")
"""The caller for whom a tool is run: what the tool keeps may serve only calls of the same scope."""

# The rule of OpenAI and GLM for a function's name.
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


class Tool(ToolSpec, frozen=True, kw_only=True):
    """A tool: its `ToolSpec`, and how it is called.

    Attributes:
        run: does the work: arguments in, text for the model out, or a `ToolOutput` where pages can be cited. Raises
            `ToolError` for what the model should know, `ToolUnavailable` where another try may succeed.
        repair: rewrites arguments that mean the same thing in other words to fit the schema, before they are checked.
        timeout: seconds for one call, tries and waits together; None: the request's `tool_timeout`.
        retries: how often a call is tried again after `ToolUnavailable`; only for tools that may safely run twice.
        max_concurrent: calls of all requests that may run at the same time; None: any number.
        cache_seconds: how long a result serves equal calls of the same caller; 0: every call is run.
        fallback: the tools that are tried in order with the same arguments when this one fails.
        block: domains, or paths below a domain, whose pages neither it nor a fallback gives.
        run_filtered: takes the place of `run` for a tool that applies the filters of a request itself.
        price: of one call that succeeds and is not from the cache, for `usage.cost`; None: not counted.
        origin: where it comes from, for `toolproxy check`.
        version: tells its configuration from others under the same name; what one has cached serves no other.

    Raises:
        ValueError: models cannot call a tool of this name.
    """

    run: RunTool
    repair: Callable[[Json], Json] | None = None
    timeout: float | None = None
    retries: int = 0
    max_concurrent: int | None = None
    cache_seconds: float = 0
    fallback: str | tuple[str, ...] | None = None
    block: tuple[str, ...] = ()
    run_filtered: RunFiltered | None = None
    price: float | None = None
    origin: str = "built in"
    version: str = ""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"a tool's name may have letters, digits, '_' and '-', at most 64 of them: {self.name!r}")

    @classmethod
    def from_function(cls, function: Callable[..., object], **fields: Any) -> Self:
        """A Python function as a tool.

        Args:
            function: sync (it runs in a thread) or async; takes its arguments by name; returns text, a `ToolOutput`
                or anything that JSON can hold.
            **fields: of `Tool`. Left out, name and description are those of the function, and the schema is derived
                from its type hints and its docstring.

        Raises:
            ValueError: a model could not call it: a type without JSON Schema, positional-only parameters, ...
        """
        adapted = Function(function, parameters=fields.get("parameters"))
        named = {"name": adapted.name, "description": adapted.description, **fields}
        return cls(**{**named, "parameters": adapted.parameters, "run": adapted.run})
