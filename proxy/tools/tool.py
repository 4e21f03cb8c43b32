"""The interface of all tools: a name, a description, a JSON Schema and one async function.

Built-in tools, HTTP APIs, MCP servers and Python functions all become a `Tool`, and nothing else is ever run. `Tool` is
also the public API for one's own tools, as `proxy.Tool`:

    Tool(name="roll_dice", description="Rolls a die.", parameters={"type": "object"}, run=roll)
    Tool.from_function(roll_dice)  # the same from type hints and docstring

A `Tool` is a `ToolSpec`, which is the part for the model, with further fields about running calls, for the registry.
"""

import re
from collections.abc import Awaitable, Callable
from typing import Any, Self, TypeAlias

from proxy.keys.pool import KeyPool
from proxy.loop.call_context import CallContext
from proxy.loop.results import ToolOutput
from proxy.tools.check import Check
from proxy.tools.python.function import Function
from proxy.wire.chat import Json, ToolSpec
from proxy.wire.search import Reading, SearchFilters

RunTool: TypeAlias = Callable[[Json], Awaitable[str | ToolOutput]]
RunFiltered: TypeAlias = Callable[[Json, SearchFilters], Awaitable[ToolOutput]]
RunInCall: TypeAlias = Callable[[Json, CallContext], Awaitable[str | ToolOutput]]

# The rule of OpenAI and GLM for a function's name.
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


class Tool(ToolSpec, frozen=True, kw_only=True):
    """A tool that can be run.

    Attributes:
        run: takes the arguments and returns the text for the model, or a `ToolOutput` with pages that can be cited.
            Raises `ToolError` with a message for the model, and `ToolUnavailable` if a retry may succeed.
        repair: rewrites other names and forms of the arguments to fit the schema, before they are validated.
        timeout: seconds for one call with all retries and waits; None: the request's `tool_timeout`.
        retries: how often a call is retried after `ToolUnavailable`; only for tools that may safely run twice.
        max_concurrent: how many calls of all requests may run at the same time; None: any number.
        cache_seconds: how long a result is cached for equal calls of the same caller; 0: every call is run.
        fallback: the tools that are tried in order with the same arguments if this one fails.
        block: domains, or paths below a domain, whose pages neither this tool nor a fallback returns.
        reading: how the pages are read that the tool finds; with 0 pages none are. None: none are either, or, where the
            tool is a fallback, as the tool has it in whose place it is called.
        run_filtered: replaces `run` for a tool that applies the filters of a request itself.
        run_in_call: replaces both for a tool of the proxy's own that needs the context of its call, such as the time at
            which it ends or the user's credentials. Data that it keeps is used only for calls of the same scope.
        one_service: whether all calls depend on the same service, so that failures in a row suspend the tool. A tool
            that reads pages of many sites depends on none.
        keys: the keys of its service, if they are several, for `/readyz` and the metrics.
        price: the price of a successful call that is not from the cache, for `usage.cost`; None: not counted.
        origin: where the tool comes from, for `toolproxy check`.
        check: sees each result before it is cached or shown; None: as the configuration has it for all tools.
        version: differs between configurations of the same tool, which do not share cached results.

    Raises:
        ValueError: models cannot call a tool with this name.
    """

    run: RunTool
    repair: Callable[[Json], Json] | None = None
    timeout: float | None = None
    retries: int = 0
    max_concurrent: int | None = None
    cache_seconds: float = 0
    fallback: str | tuple[str, ...] | None = None
    block: tuple[str, ...] = ()
    reading: Reading | None = None
    run_filtered: RunFiltered | None = None
    run_in_call: RunInCall | None = None
    one_service: bool = True
    keys: KeyPool | None = None
    price: float | None = None
    origin: str = "built in"
    check: Check | None = None
    version: str = ""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"a tool's name may have letters, digits, '_' and '-', at most 64 of them: {self.name!r}")

    @classmethod
    def from_function(cls, function: Callable[..., object], **fields: Any) -> Self:
        """A Python function as a tool.

        Args:
            function: an async function, or a sync one, which runs in a thread. It takes its arguments by name, and
                returns a text, a `ToolOutput` or any value that can be serialized as JSON.
            **fields: fields of `Tool`. By default, name and description are those of the function, and the schema is
                derived from its type hints and its docstring.

        Raises:
            ValueError: a model could not call the function: a type without JSON Schema, positional-only parameters, ...
        """
        adapted = Function(function, parameters=fields.get("parameters"))
        named = {"name": adapted.name, "description": adapted.description, **fields}
        return cls(**{**named, "parameters": adapted.parameters, "run": adapted.run})
