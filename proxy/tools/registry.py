"""The whitelist: every tool that may be run, by name; a call in, text out.

What is true of every call is done here, in this order: arguments are parsed, repaired and checked; time is bounded; the
cache is asked; the circuit breaker and the concurrency cap hold back what cannot succeed; what may succeed on another
try is tried again; at last the fallback is asked.
"""

import asyncio
import math
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, TypeAlias

import jsonschema_rs
import orjson
from msgspec.structs import replace

from proxy.breaker import Breaker
from proxy.loop.chat import Json, ToolCall, ToolOutput, ToolSpec
from proxy.loop.errors import InvalidArguments, ToolError, ToolTimeout, ToolUnavailable
from proxy.ports import Caches, Clock, NoObserver, Observer, Results
from proxy.timeouts import within
from proxy.tools.arguments import parse_arguments, schema_fault, validator_of
from proxy.tools.result_cache import local_caches
from proxy.tools.tool import Tool

_FIRST_WAIT = 0.25  # seconds before the first retry, doubled for each further one


class Registry:
    """All usable tools. Implements `ports.Toolset`.

    Args:
        tools: those that are there from the start.
        clock: for caches, waits and circuit breakers.
        observe: told of retries and fallbacks.
        caches: makes the cache of a tool that wants one; None: in this process.

    Raises:
        ValueError: two tools have the same name, or a schema is none.
    """

    def __init__(
        self,
        tools: Iterable[Tool],
        *,
        clock: Clock,
        observe: Observer = NoObserver(),  # noqa: B008 - it has no state
        caches: Caches | None = None,
    ) -> None:
        self._clock = clock
        self._caches = caches or local_caches(clock)
        self._observe = observe
        self._entries: dict[str, _Entry] = {}
        self._specs: dict[str, ToolSpec] = {}
        self._groups: dict[str, list[str]] = {}
        for tool in tools:
            self._add(tool)

    @property
    def specs(self) -> Mapping[str, ToolSpec]:
        """Every tool as a model sees it, by name. Another mapping whenever something in it has changed."""
        return self._specs

    @property
    def origins(self) -> dict[str, str]:
        """Where each tool comes from, by name."""
        return {name: entry.tool.origin for name, entry in self._entries.items()}

    def put_group(self, group: str, tools: Iterable[Tool]) -> list[str]:
        """Replace the tools of a group that come and go, such as those of an MCP server; says which were refused.

        A tool is refused, and the others are taken, when its name or an alias is another's or its schema is none.
        """
        gone = self._groups.pop(group, [])
        for name in gone:
            del self._entries[name]
        self._specs = {name: spec for name, spec in self._specs.items() if name not in gone}
        self._groups[group] = added = []
        refused = []
        for tool in tools:
            try:
                self._add(tool, group)
            except ValueError as exc:
                refused.append(str(exc))
            else:
                added.append(tool.name)
        return refused

    def _add(self, tool: Tool, group: str | None = None) -> None:
        names = {name for spec in self._specs.values() for name in (spec.name, *spec.aliases)}
        if taken := names.intersection((tool.name, *tool.aliases)):
            raise ValueError(f"there are two tools named {min(taken)!r}")
        if fault := schema_fault(tool.parameters):
            raise ValueError(f"the parameters of {tool.name!r}: {fault}")
        self._entries[tool.name] = _Entry(tool, self._caches)
        self._specs = {**self._specs, tool.name: replace(tool.spec, group=group)}

    def execute(
        self, call: ToolCall, *, patience: float, at_most: float = math.inf, scope: str
    ) -> Coroutine[Any, Any, ToolOutput]:
        """Run one call, as `ports.Toolset` has it.

        Raises:
            ToolError: it could not be carried out; the message is for the model.
        """
        entry = self._entries.get(call.name)
        if entry is None:
            raise ToolError(f"There is no tool named {call.name!r}.")

        def run(entry: "_Entry") -> Coroutine[Any, Any, ToolOutput]:
            return self._run(entry, call, min(entry.tool.timeout or patience, at_most), scope)

        # One step only: a fallback's own fallback would make chains, and circles.
        if entry.tool.fallback is None or (other := self._entries.get(entry.tool.fallback)) is None:
            return run(entry)
        return self._run_or_fall_back(entry, other, run)

    async def _run_or_fall_back(
        self, entry: "_Entry", other: "_Entry", run: Callable[["_Entry"], Coroutine[Any, Any, ToolOutput]]
    ) -> ToolOutput:
        try:
            return await run(entry)
        except InvalidArguments:
            raise
        except ToolError as exc:
            self._observe("tool.fell_back", tool=entry.tool.name, to=other.tool.name, outcome=exc.outcome, why=exc.why)
            return await run(other)

    async def _run(self, entry: "_Entry", call: ToolCall, seconds: float, scope: str) -> ToolOutput:
        arguments = parse_arguments(call.arguments, entry.validator, repair=entry.tool.repair)
        try:
            if entry.cache is None:
                return await within(seconds, self._try(entry, arguments))
            return await within(seconds, self._kept_or_run(entry, entry.cache, arguments, scope))
        except TimeoutError as exc:
            self._failed(entry)
            raise ToolTimeout(f"The tool gave no answer within {seconds:g} seconds.") from exc

    async def _kept_or_run(self, entry: "_Entry", cache: Results, arguments: Json, scope: str) -> ToolOutput:
        was_run = False

        async def run() -> ToolOutput:
            nonlocal was_run
            was_run = True
            return await self._try(entry, arguments)

        key = f"{scope}\n{orjson.dumps(arguments, option=orjson.OPT_SORT_KEYS).decode()}"
        output = await cache.get_or_run(key, run)
        if not was_run:
            self._observe("tool.cache_hit", tool=entry.tool.name)
        return output

    def _try(self, entry: "_Entry", arguments: Json) -> Coroutine[Any, Any, ToolOutput]:
        """One call, as soon as the tool may be called once more at the same time."""
        run = self._tries if entry.tool.retries else self._once
        return run(entry, arguments) if entry.slots is None else _in_turn(entry.slots, run, entry, arguments)

    async def _tries(self, entry: "_Entry", arguments: Json) -> ToolOutput:
        """One call, tried again where another try may succeed and does no harm."""
        for attempt in range(entry.tool.retries):
            try:
                return await self._once(entry, arguments)
            except ToolUnavailable as exc:
                self._observe(
                    "tool.retried", tool=entry.tool.name, attempt=attempt + 1, outcome=exc.outcome, why=exc.why
                )
                await self._clock.sleep(_FIRST_WAIT * 2**attempt)
        return await self._once(entry, arguments)

    async def _once(self, entry: "_Entry", arguments: Json) -> ToolOutput:
        now = self._clock.monotonic()
        if not entry.breaker.allows(now):
            wait = entry.breaker.wait(now)
            raise ToolUnavailable(f"This tool keeps failing and is not called now; it may work in {wait:.0f} seconds.")
        try:
            returned = await entry.tool.run(arguments)
        except ToolUnavailable:
            self._failed(entry)
            raise
        output = _as_output(returned)
        entry.breaker.succeeded()
        return output

    def _failed(self, entry: "_Entry") -> None:
        """What a tool needs did not answer: too often in a row, and it is left alone for a while."""
        if entry.breaker.failed(self._clock.monotonic()):
            self._observe("tool.breaker_opened", tool=entry.tool.name, seconds=entry.breaker.seconds)


class _Entry:
    """A tool with what is kept for it between calls."""

    def __init__(self, tool: Tool, caches: Caches) -> None:
        self.tool = tool
        self.validator: jsonschema_rs.Validator = validator_of(tool.parameters)
        self.breaker = Breaker()
        self.cache = caches(tool.name, tool.cache_seconds) if tool.cache_seconds else None
        self.slots = asyncio.Semaphore(tool.max_concurrent) if tool.max_concurrent else None


_Run: TypeAlias = Callable[[_Entry, Json], Coroutine[Any, Any, ToolOutput]]


async def _in_turn(slots: asyncio.Semaphore, run: _Run, entry: _Entry, arguments: Json) -> ToolOutput:
    async with slots:
        return await run(entry, arguments)


def _as_output(returned: object) -> ToolOutput:
    if isinstance(returned, str):
        return ToolOutput(returned)
    if isinstance(returned, ToolOutput):
        return returned
    raise ToolError("The tool returned something that is not text.")
