"""The whitelist of tools: every tool that may be run, by name.

Each call passes the same steps, in this order: its arguments are parsed, repaired and validated; its time is limited;
the cache is looked up; the concurrency limit and the circuit breaker are applied; failures that may be temporary are
retried; at last the fallback is called.
"""

import asyncio
import math
from collections.abc import Iterable, Mapping
from itertools import zip_longest
from types import MappingProxyType

import orjson
from msgspec import to_builtins
from msgspec.structs import replace

from proxy.breaker import BreakerState
from proxy.loop.chat import Json, ToolCall, ToolSpec
from proxy.loop.offer import SEARCH
from proxy.loop.prompts import NO_SUCH_TOOL
from proxy.loop.results import (
    Cause,
    InvalidArguments,
    NotConfigured,
    NotUnderstood,
    ToolError,
    ToolOutput,
    ToolTimeout,
    ToolUnavailable,
)
from proxy.loop.search import NO_FILTERS, SearchFilters
from proxy.ports import Caches, Clock, NoObserver, Observer, Results
from proxy.timeouts import within
from proxy.tools.arguments import mended, parse_arguments, schema_fault, validator_of
from proxy.tools.browser import PARAMETERS
from proxy.tools.permitted import filters_of_call, permitted
from proxy.tools.result_cache import local_caches
from proxy.tools.state import ToolState
from proxy.tools.tool import SCOPE, Tool

_FIRST_WAIT = 0.25  # seconds before the first retry, doubled for each further one
_LONGEST_WAIT = 5.0  # seconds; if a service is busy for longer, the fallback is called
_QUOTA_SECONDS = 900.0  # how long a service without credit is skipped if it does not name a time


class Registry:
    """All usable tools. Implements `ports.Toolset`.

    Args:
        tools: the tools that are known from the start.
        clock: for caches, waits and circuit breakers.
        observe: gets the events of retries, fallbacks, cache hits and circuit breakers.
        caches: makes the caches of the tools that have one; None: in this process.
        states: tool name -> its state under the configuration before.

    Attributes:
        specs: name -> tool as a model sees it. A new mapping whenever something has changed.
        names: the names and aliases of all tools.

    Raises:
        ValueError: two tools have the same name, or a schema is not valid.
    """

    def __init__(
        self,
        tools: Iterable[Tool],
        *,
        clock: Clock,
        observe: Observer = NoObserver(),  # noqa: B008 - it has no state
        caches: Caches | None = None,
        states: Mapping[str, ToolState] = MappingProxyType({}),
    ) -> None:
        self.specs: Mapping[str, ToolSpec] = {}
        self.names: frozenset[str] = frozenset()
        self._clock = clock
        self._caches = caches or local_caches(clock)
        self._observe = observe
        self._states = {**states}
        self._entries: dict[str, _Entry] = {}
        self._groups: dict[str, list[str]] = {}
        for tool in tools:
            self._add(tool)

    def skipped(self) -> dict[str, Cause]:
        """The tools whose service is currently not called, and why."""
        now = self._clock.monotonic()
        return {name: entry.state.cause for name, entry in self._entries.items() if entry.state.breaker.wait(now)}

    @property
    def tool_states(self) -> dict[str, ToolState]:
        """The circuit breaker, cache and slots of each tool, by the tool's name."""
        return {name: entry.state for name, entry in self._entries.items()}

    def group_of(self, name: str) -> str | None:
        """The group of a tool that was put by `put_group`; None for any other tool."""
        return self.specs[name].group

    @property
    def origins(self) -> dict[str, str]:
        """Tool name -> where the tool comes from."""
        return {name: entry.tool.origin for name, entry in self._entries.items()}

    def put_group(self, group: str, tools: Iterable[Tool]) -> list[str]:
        """Replace the tools of a group, such as those of an MCP server; return the reasons why any were refused.

        A tool is refused, and the others are accepted, if its name or an alias is taken or its schema is not valid.
        """
        gone = self._groups.pop(group, [])
        for name in gone:
            del self._entries[name]
        self.specs = {name: spec for name, spec in self.specs.items() if name not in gone}
        self.names = frozenset(name for spec in self.specs.values() for name in spec.names)
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
        if taken := self.names.intersection(tool.names):
            raise ValueError(f"there are two tools named {min(taken)!r}")
        if fault := schema_fault(tool.parameters):
            raise ValueError(f"the parameters of {tool.name!r}: {fault}")
        state = self._states.pop(tool.name, None) or ToolState(tool, self._caches)
        own = {alias: PARAMETERS[alias] for alias in tool.aliases if alias in PARAMETERS}
        is_search = tool.searches or tool.name == SEARCH
        tool = replace(tool, group=group, searches=is_search, alias_parameters=own)
        self._entries[tool.name] = _Entry(tool, state)
        self.specs = {**self.specs, tool.name: tool}
        self.names |= {*tool.names}

    def arguments_of(self, call: ToolCall) -> Json | None:
        """See `ports.Toolset.arguments_of`."""
        entry = self._entries.get(call.name)
        try:
            return parse_arguments(call.arguments, entry.validator, repair=entry.tool.repair) if entry else None
        except InvalidArguments:
            return None

    def mended(self, text: str) -> Json | None:
        """See `ports.Toolset.mended`."""
        return mended(text)

    async def execute(
        self,
        call: ToolCall,
        *,
        default_timeout: float,
        max_timeout: float = math.inf,
        scope: str,
        filters: SearchFilters = NO_FILTERS,
    ) -> ToolOutput:
        """Run one call; see `ports.Toolset.execute`.

        Raises:
            ToolError: the call could not be carried out; the message is for the model.
        """
        entry = self._entries.get(call.name)
        if entry is None:
            raise ToolError(NO_SUCH_TOOL.format(name=call.name))
        SCOPE.set(scope)
        if block := entry.tool.block:
            filters = replace(filters, block=tuple(dict.fromkeys((*filters.block, *block))))
        # A fallback's own fallbacks are not called, because there could be a cycle.
        chain = [entry, *filter(None, map(self._entries.get, entry.fallbacks))]
        for tried, following in zip_longest(chain, chain[1:]):
            seconds = min(tried.tool.timeout or default_timeout, max_timeout)
            is_search = tried.tool.searches or entry.tool.searches
            try:
                return await self._answer(tried, call, seconds, scope, filters, is_search=is_search)
            except ToolError as exc:
                if following is None or isinstance(exc, (InvalidArguments, NotUnderstood)):
                    raise
                if not isinstance(exc, NotConfigured):  # known since the start, so there is no event
                    names = {"tool": tried.tool.name, "to": following.tool.name}
                    self._observe("tool.fell_back", **names, outcome=exc.outcome, why=exc.why)
        raise AssertionError("the last tool of a chain returns or raises")

    async def _answer(
        self, entry: "_Entry", call: ToolCall, seconds: float, scope: str, filters: SearchFilters, *, is_search: bool
    ) -> ToolOutput:
        """The part of one tool's output that the filters of request and call permit."""
        tool = entry.tool
        arguments = parse_arguments(call.arguments, entry.validator, repair=tool.repair)
        if is_search:
            filters = filters_of_call(filters, arguments, tool.parameters)
        try:
            if entry.state.cache is None:
                output = await within(seconds, self._with_retries(entry, arguments, filters))
            else:
                async with asyncio.timeout(seconds):
                    output = await self._cached(entry, entry.state.cache, arguments, scope, filters)
        except TimeoutError as exc:
            self._failed(entry)
            raise ToolTimeout(f"The tool gave no answer within {seconds:g} seconds.") from exc
        if tool.name != call.name:
            output = replace(output, answered_by=tool.name)
        if filters is NO_FILTERS or not filters.has_rules:
            return output
        return permitted(output, filters, is_filtered=tool.run_filtered is not None, is_search=is_search)

    async def _cached(
        self, entry: "_Entry", cache: Results, arguments: Json, scope: str, filters: SearchFilters
    ) -> ToolOutput:
        """The output for a call, from the cache or from the tool."""
        was_run = False

        async def run() -> ToolOutput:
            nonlocal was_run
            was_run = True
            return await self._with_retries(entry, arguments, filters)

        asked = [arguments, filters] if entry.tool.run_filtered and filters != NO_FILTERS else arguments
        key = orjson.dumps(asked, option=orjson.OPT_SORT_KEYS, default=to_builtins).decode()
        output = await cache.get_or_run(f"{scope}\n{entry.tool.version}\n{key}", run)
        if was_run:
            return output
        self._observe("tool.cache_hit", tool=entry.tool.name)
        return output if output.cost is None else replace(output, cost=0)

    async def _with_retries(self, entry: "_Entry", arguments: Json, filters: SearchFilters) -> ToolOutput:
        """Call the tool once it has a slot, and retry if that may succeed and does no harm."""
        async with entry.state.slots:
            for attempt in range(entry.tool.retries):
                try:
                    return await self._call_once(entry, arguments, filters)
                except ToolUnavailable as exc:
                    wait = exc.wait or _FIRST_WAIT * 2**attempt
                    if exc.cause in ("key", "quota") or wait > _LONGEST_WAIT:
                        raise
                    self._observe(
                        "tool.retried", tool=entry.tool.name, attempt=attempt + 1, outcome=exc.outcome, why=exc.why
                    )
                    await self._clock.sleep(wait)
            return await self._call_once(entry, arguments, filters)

    async def _call_once(self, entry: "_Entry", arguments: Json, filters: SearchFilters) -> ToolOutput:
        """Call the tool, unless its circuit breaker is open."""
        tool, now = entry.tool, self._clock.monotonic()
        if not entry.state.breaker.allows(now):
            raise entry.state.refusal(now)
        try:
            output = await (tool.run_filtered(arguments, filters) if tool.run_filtered else tool.run(arguments))
        except ToolUnavailable as exc:
            self._failed(entry, exc)
            raise
        if isinstance(output, str):
            output = ToolOutput(output)
        elif not isinstance(output, ToolOutput):
            raise ToolError("The tool returned something that is not text.")
        if entry.state.breaker.succeeded():
            self._observe("tool.breaker_closed", tool=entry.tool.name)
        return output if tool.price is None else replace(output, cost=tool.price)

    def _failed(self, entry: "_Entry", error: ToolUnavailable | None = None) -> None:
        """Count a failure of the service that a tool depends on, and open the breaker if further calls are useless."""
        now = self._clock.monotonic()
        was_open = entry.state.breaker.state is BreakerState.OPEN
        seconds = _skip_seconds(error)
        if seconds is not None:
            entry.state.breaker.trip(now, seconds)
        elif not entry.state.breaker.failed(now):
            return
        entry.state.cause = error.cause if error else "down"
        if not was_open:
            told = None if seconds == math.inf else entry.state.breaker.wait(now)
            self._observe("tool.breaker_opened", tool=entry.tool.name, seconds=told, cause=entry.state.cause)


def _skip_seconds(error: ToolUnavailable | None) -> float | None:
    """The seconds for which a service is skipped after this failure; None: the breaker counts the failure instead."""
    if error is None:
        return None
    match error.cause:
        case "key":
            return math.inf  # until the configuration is loaded again
        case "quota":
            return error.wait or _QUOTA_SECONDS
        case "busy" if (error.wait or 0) > _LONGEST_WAIT:
            return error.wait
        case _:
            return None


class _Entry:
    """A tool with its state, the validator of its arguments, and the fallbacks that are tried in order if it fails."""

    def __init__(self, tool: Tool, state: ToolState) -> None:
        self.tool = tool
        self.state = state
        self.validator = validator_of(tool.parameters)
        self.fallbacks = (tool.fallback,) if isinstance(tool.fallback, str) else tool.fallback or ()
