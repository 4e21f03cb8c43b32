"""The one door: a tool is a name, a description, a JSON Schema and one async call.

Built-in tools, HTTP APIs, MCP servers and Python functions all become a `Tool`, and nothing else is ever run. It is the
public API for tools of one's own too, as `proxy.Tool`:

    Tool(name="roll_dice", description="Rolls a die.", parameters={"type": "object"}, run=roll)

What concerns calling it (how often, for how long, what is kept) is said beside it and done by the registry.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

from proxy.core.chat import Json, ToolOutput, ToolSpec

Run: TypeAlias = Callable[[Json], Awaitable[str | ToolOutput]]


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
        origin: where it comes from, for `toolproxy check`.
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
    origin: str = "built in"

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
        )
