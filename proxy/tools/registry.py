"""The whitelist of tools: every tool that may be run, by name.

Each call passes the same steps, in this order: its arguments are parsed, repaired and validated; its time is limited;
the cache is looked up; the concurrency limit and the circuit breaker are applied; failures that may be temporary are
retried; at last the fallback is called.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from types import MappingProxyType

import orjson
from msgspec import to_builtins
from msgspec.structs import replace

from proxy.kit.beside import beside
from proxy.kit.counted import counted
from proxy.kit.no_observer import NoObserver
from proxy.kit.recording import CURRENT
from proxy.kit.rests import KeyState
from proxy.kit.timeouts import elapsed, within
from proxy.loop.call_context import CallContext
from proxy.loop.many_tools import MOST_FOUND, NAMES
from proxy.loop.offer import SEARCH
from proxy.loop.prompts import NO_SUCH_TOOL
from proxy.loop.results import (
    Cause,
    CredentialMissing,
    InvalidArguments,
    NotConfigured,
    NotUnderstood,
    ResultRefused,
    ToolError,
    ToolOutput,
    ToolTimeout,
    ToolUnavailable,
)
from proxy.ports import Caches, Clock, Observer, Results
from proxy.tools.arguments import history_of, mended, parse_arguments
from proxy.tools.browser import PARAMETERS
from proxy.tools.check import Check, replaced
from proxy.tools.finder import SIZE_OF_TOOL, ToolIndex
from proxy.tools.permitted import filters_of_call, permitted
from proxy.tools.result_cache import local_caches
from proxy.tools.schema import schema_fault, schema_of
from proxy.tools.state import LONGEST_WAIT, ToolState
from proxy.tools.tool import CONTEXT, Tool
from proxy.wire.chat import Json, ToolCall, ToolSpec
from proxy.wire.code import CodeResult
from proxy.wire.credentials import Credentials
from proxy.wire.json_text import is_object
from proxy.wire.search import NO_FILTERS, Reading, SearchFilters

_LONG_ARGUMENTS = 64 * 1024  # characters, which take up to some milliseconds to read
_FIRST_WAIT = 0.25  # seconds before the first retry, doubled for each further one


class Registry:
    """All usable tools. Implements `ports.Toolset`.

    Args:
        tools: the tools that are known from the start.
        clock: for caches, waits and circuit breakers.
        observe: gets the events of retries, fallbacks, cache hits and circuit breakers.
        caches: makes the caches of the tools that have one; None: in this process.
        states: tool name -> its state under the configuration before.
        check: checks the results of all tools that have no check of their own; None: nothing does.

    Attributes:
        specs: name -> tool as a model sees it. A new mapping whenever something has changed.
        names: the names and aliases of all tools.
        serving: a hosted tool (`ToolSpec.serves`) -> the name of the tool that stands in its place.
        unlisted: the group of a server that lists its tools for each user -> what stands for these tools.

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
        check: Check | None = None,
    ) -> None:
        self.specs: Mapping[str, ToolSpec] = {}
        self.names: frozenset[str] = frozenset()
        self.serving: dict[str, str] = {}
        self.unlisted: dict[str, ToolSpec] = {}
        self._clock = clock
        self._caches = caches or local_caches(clock)
        self._observe = observe
        self._states = {**states}
        self._check = check
        self._entries: dict[str, _Entry] = {}
        self._groups: dict[str, list[str]] = {}
        self._reading = asyncio.Lock()
        self._indexing = asyncio.Lock()
        self._index: tuple[Mapping[str, ToolSpec], ToolIndex] | None = None
        for tool in tools:
            self.specs = {**self.specs, tool.name: self._made(tool, self.names)}
            self.names |= {*tool.names}

    def skipped(self) -> dict[str, Cause]:
        """The tools whose service is currently not called, and why."""
        now = self._clock.monotonic()
        return {name: entry.state.cause for name, entry in self._entries.items() if entry.state.breaker.wait(now)}

    def key_states(self) -> dict[str, list[KeyState]]:
        """The states of the keys of each tool that has several."""
        tools = [entry.tool for entry in self._entries.values()]
        return {tool.name: tool.keys.states() for tool in tools if tool.keys is not None}

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
        self.serving = {hosted: name for hosted, name in self.serving.items() if name not in gone}
        self._groups[group] = added = []
        refused = []
        specs, names = {**self.specs}, {*self.names}
        for tool in tools:
            try:
                specs[tool.name] = self._made(tool, names, group)
            except ValueError as exc:
                refused.append(str(exc))
            else:
                added.append(tool.name)
                names.update(tool.names)
        self.specs, self.names = specs, frozenset(names)
        return refused

    def for_user(self, group: str, tools: Iterable[Tool], states: dict[str, ToolState]) -> "Registry":
        """These tools, and with them those that a server lists for one user.

        Args:
            group: the name of the server's group.
            tools: its tools.
            states: the states of its tools by name, which all of its users share; those of new tools are added.
        """
        own = copy(self)
        own._entries, own._groups, own._states = {**self._entries}, {}, {**states}  # noqa: SLF001 - of this class
        own._index, own._indexing = None, asyncio.Lock()  # noqa: SLF001 - likewise
        own.serving = {**self.serving}
        own.unlisted = {server: spec for server, spec in self.unlisted.items() if server != group}
        for why in own.put_group(group, tools):
            self._observe("mcp.tool_refused", server=group, why=why)
        states |= {name: own.tool_states[name] for name in own.specs.keys() - self.specs.keys()}
        return own

    def _made(self, tool: Tool, names: Collection[str], group: str | None = None) -> Tool:
        """Take a tool in beside those with the `names`; returns it as a model sees it. Raises `ValueError`."""
        if taken := [name for name in tool.names if name in names]:
            raise ValueError(f"there are two tools named {min(taken)!r}")
        if reserved := NAMES.intersection(tool.names):
            raise ValueError(f"{min(reserved)!r} is the name of one of the proxy's own tools")
        if fault := schema_fault(tool.parameters):
            raise ValueError(f"the parameters of {tool.name!r}: {fault}")
        state = self._states.pop(tool.name, None) or ToolState(tool, self._caches)
        own = {alias: PARAMETERS[alias] for alias in tool.aliases if alias in PARAMETERS}
        is_search = tool.searches or tool.name == SEARCH
        tool = replace(tool, group=group, searches=is_search, alias_parameters=own)
        self._entries[tool.name] = _Entry(tool, state)
        if tool.serves is not None:
            self.serving.setdefault(tool.serves, tool.name)
        return tool

    def arguments_of(self, call: ToolCall) -> Json | None:
        """See `ports.Toolset.arguments_of`."""
        entry = self._entries.get(call.name)
        try:
            return parse_arguments(call.arguments, entry.schema, repair=entry.tool.repair)[0] if entry else None
        except InvalidArguments:
            return None

    def history_arguments(self, call: ToolCall) -> str | None:
        """See `ports.Toolset.history_arguments`."""
        entry = self._entries.get(call.name)
        if entry is None:
            return history_of(call.arguments)
        written, history = entry.last_read
        if written == call.arguments:
            return history
        if len(call.arguments) > _LONG_ARGUMENTS and is_object(call.arguments):
            return call.arguments  # types in it may have been repaired for the tool, which is not worth another reading
        try:
            return parse_arguments(call.arguments, entry.schema, repair=entry.tool.repair)[1]
        except InvalidArguments:
            return call.arguments if is_object(call.arguments) else None

    def mended(self, text: str) -> Json | None:
        """See `ports.Toolset.mended`."""
        return mended(text)

    async def find(self, query: str, among: Collection[str]) -> Sequence[str]:
        """See `ports.Toolset.find`. The index is made when tools have changed since the last search."""
        async with self._indexing:
            specs = self.specs
            if self._index is None or self._index[0] is not specs:
                make = partial(ToolIndex, specs.values())
                self._index = specs, await beside(len(specs) * SIZE_OF_TOOL, make)
            index = self._index[1]
        return index.best(query, among, most=MOST_FOUND)

    async def execute(self, call: ToolCall, context: CallContext) -> ToolOutput:
        """Run one call; see `ports.Toolset.execute`.

        Raises:
            ToolError: the call could not be carried out; the message is for the model.
        """
        entry = self._entries.get(call.name)
        if entry is None:
            raise ToolError(NO_SUCH_TOOL.format(name=call.name))
        CONTEXT.set(context)
        filters = context.filters
        if block := entry.tool.block:
            filters = replace(filters, block=tuple(dict.fromkeys((*filters.block, *block))))
        # A fallback's own fallbacks are not called, because there could be a cycle.
        chain = [entry, *filter(None, map(self._entries.get, entry.fallbacks))]
        for tried, following in zip_longest(chain, chain[1:]):
            is_search = tried.tool.searches or entry.tool.searches
            seconds = min(tried.tool.timeout or context.default_timeout, context.max_timeout)
            # A fallback is checked as the tool that it stands in for, unless it has a check of its own.
            check = tried.tool.check or entry.tool.check or self._check
            attempt = _Attempt(tried, context.scope, filters, check, seconds, following is not None)
            reading = entry.tool.reading if tried.tool.reading is None else tried.tool.reading
            if reading is not None and reading.pages:
                attempt.filters = replace(filters, reading=self._permitted(reading, context))
                CONTEXT.set(replace(context, ends=min(context.ends, self._clock.monotonic() + seconds)))
            try:
                if tried.tool.needs:
                    attempt.scope += _by_user(tried.tool, context.credentials)
                return await self._answer(attempt, call, is_search=is_search)
            except ToolError as exc:
                if following is None or isinstance(exc, (InvalidArguments, NotUnderstood, ResultRefused)):
                    raise
                if not isinstance(exc, NotConfigured):  # known since the start, so there is no event
                    names = {"tool": tried.tool.name, "to": following.tool.name}
                    self._observe("tool.fell_back", **names, outcome=exc.outcome, why=exc.why)
        raise AssertionError("the last tool of a chain returns or raises")

    def _permitted(self, reading: Reading, context: CallContext) -> Reading:
        """How a call reads pages: as a tool has it, but public ones only if the caller may not use `web_fetch`."""
        fetch = next((tool for tool in self.specs.values() if tool.fetches), None)
        may_fetch = fetch is None or context.tools is None or fetch.is_among(context.tools)
        return replace(reading, everywhere=may_fetch)

    async def _answer(self, attempt: "_Attempt", call: ToolCall, *, is_search: bool) -> ToolOutput:
        """The part of one tool's output that the filters of request and call permit."""
        tool = attempt.entry.tool
        if len(call.arguments) > _LONG_ARGUMENTS:
            async with self._reading:  # one after the other, and others have a turn in between
                await asyncio.sleep(0)
        arguments, history = parse_arguments(call.arguments, attempt.entry.schema, repair=tool.repair)
        if len(call.arguments) <= _LONG_ARGUMENTS:
            attempt.entry.last_read = call.arguments, history
        if is_search:
            attempt.filters = filters_of_call(attempt.filters, arguments, tool.parameters)
        answer, recording = self._timed(attempt, arguments), CURRENT.get()
        output = await (answer if recording is None else recording.run(tool.name, arguments, answer))
        if tool.name != call.name:
            output = replace(output, answered_by=tool.name)
        if attempt.filters is not NO_FILTERS and attempt.filters.has_rules:
            filtered = tool.run_filtered is not None
            output = permitted(output, attempt.filters, is_filtered=filtered, is_search=is_search)
        return output if tool.serves is None else replace(output, code=CodeResult.read(output.text))

    async def _timed(self, attempt: "_Attempt", arguments: Json) -> ToolOutput:
        """The tool's output, from the cache or from the tool, checked, and in time."""
        try:
            if (cache := attempt.entry.state.cache) is not None:
                async with asyncio.timeout(attempt.seconds_with_check):
                    return await self._cached(attempt, cache, arguments)
            if attempt.check is None:
                return await within(attempt.seconds, self._run(attempt, arguments))
            return await self._checked(attempt, attempt.check, arguments)
        except TimeoutError as exc:
            if attempt.was_begun:  # not if it has only waited for a slot, or for an equal call
                self._failed(attempt, None)
            raise ToolTimeout(f"The tool gave no answer within {counted(attempt.seconds, 'second')}.") from exc

    async def _cached(self, attempt: "_Attempt", cache: Results, arguments: Json) -> ToolOutput:
        """The output for a call, from the cache or from the tool."""
        tool, was_run = attempt.entry.tool, False

        async def run() -> ToolOutput:
            nonlocal was_run
            was_run = True
            if attempt.check is None:
                return await self._run(attempt, arguments)
            return await self._checked(attempt, attempt.check, arguments)

        asked = [arguments, attempt.filters] if tool.run_filtered and attempt.filters != NO_FILTERS else arguments
        key = orjson.dumps(asked, option=orjson.OPT_SORT_KEYS, default=to_builtins).decode()
        version = tool.version if attempt.check is None else f"{tool.version} {attempt.check.version}"
        output = await cache.get_or_run(f"{attempt.scope}\n{version}\n{key}", run)
        if was_run:
            return output
        self._observe("tool.cache_hit", tool=tool.name)
        if output.cost is None and not output.pages:
            return output
        return replace(output, cost=None if output.cost is None else 0, pages={})

    async def _checked(self, attempt: "_Attempt", check: Check, arguments: Json) -> ToolOutput:
        """The output of the tool as its check lets it pass. What a tool says of its failure is checked as well."""
        try:
            output = await within(attempt.seconds, self._run(attempt, arguments))
        except ToolError as exc:
            if not attempt.was_begun or isinstance(exc, InvalidArguments):  # in our own words
                raise
            exc.args = (await self._passed(attempt, check, arguments, str(exc)),)
            raise
        text = await self._passed(attempt, check, arguments, output.text)
        return output if text == output.text else replaced(output, text)

    async def _passed(self, attempt: "_Attempt", check: Check, arguments: Json, text: str) -> str:
        """The text of a tool, or the text that its check puts in its place. Raises `ResultRefused`."""
        began, tool = self._clock.monotonic(), attempt.entry.tool.name
        verdict = await check.verdict(tool, arguments, text)
        fields = {"outcome": verdict.outcome, "why": verdict.why, "seconds": elapsed(began, self._clock.monotonic())}
        self._observe("tool.checked", tool=tool, **fields)
        if verdict.passed is None:
            raise ResultRefused(verdict.told, why=verdict.why)
        return verdict.passed

    async def _run(self, attempt: "_Attempt", arguments: Json) -> ToolOutput:
        """Call the tool once it has a slot, unless its circuit breaker is open, for which the outcome counts once."""
        state = attempt.entry.state
        async with state.slots:
            now = self._clock.monotonic()
            if not state.breaker.allows(now, client=attempt.scope, spare=attempt.has_fallback):
                raise state.refusal(now)
            attempt.was_begun = True
            try:
                if attempt.entry.tool.retries:
                    output = await self._with_retries(attempt.entry.tool, arguments, attempt.filters)
                else:
                    output = await _call_once(attempt.entry.tool, arguments, attempt.filters)
            except ToolUnavailable as exc:
                self._failed(attempt, exc)
                raise
        if state.succeeded():
            self._observe("tool.breaker_closed", tool=attempt.entry.tool.name)
        return output

    async def _with_retries(self, tool: Tool, arguments: Json, filters: SearchFilters) -> ToolOutput:
        """Call the tool, and again if that may succeed and does no harm."""
        for attempt in range(tool.retries):
            try:
                return await _call_once(tool, arguments, filters)
            except ToolUnavailable as exc:
                wait = exc.wait or _FIRST_WAIT * 2**attempt
                if exc.cause in ("key", "quota") or wait > LONGEST_WAIT:
                    raise
                self._observe("tool.retried", tool=tool.name, attempt=attempt + 1, outcome=exc.outcome, why=exc.why)
                await self._clock.sleep(wait)
        return await _call_once(tool, arguments, filters)

    def _failed(self, attempt: "_Attempt", error: ToolUnavailable | None) -> None:
        """Count a failed call for the circuit breaker of its tool; None: it has timed out."""
        state, now = attempt.entry.state, self._clock.monotonic()
        if state.failed(now, error, client=attempt.scope, spare=attempt.has_fallback):
            name, seconds = attempt.entry.tool.name, state.breaker.wait(now)
            self._observe("tool.breaker_opened", tool=name, seconds=seconds, cause=state.cause)


async def _call_once(tool: Tool, arguments: Json, filters: SearchFilters) -> ToolOutput:
    output = await (tool.run_filtered(arguments, filters) if tool.run_filtered else tool.run(arguments))
    if isinstance(output, str):
        output = ToolOutput(output)
    elif not isinstance(output, ToolOutput):
        raise ToolError("The tool returned something that is not text.")
    return output if tool.price is None else replace(output, cost=tool.price * output.searches)


class _Entry:
    """A tool with its state, the schema of its arguments, and the fallbacks that are tried in order if it fails."""

    def __init__(self, tool: Tool, state: ToolState) -> None:
        self.tool = tool
        self.state = state
        self.schema = schema_of(tool.parameters)
        # The latest arguments as written, and for the history, which asks for them soon afterwards.
        self.last_read: tuple[str, str] = ("{}", "{}")
        self.fallbacks = (tool.fallback,) if isinstance(tool.fallback, str) else tool.fallback or ()


def _by_user(tool: Tool, credentials: Credentials) -> str:
    """The part of a cache key that keeps apart the results of users with different credentials for a tool.

    Raises:
        CredentialMissing: the request lacks one of them.
    """
    if missing := tool.needs - credentials.names:
        raise CredentialMissing(tool.name, missing)
    credentials.used |= tool.needs
    return f" {credentials.hash_of(tool.needs)}"


@dataclass(slots=True)
class _Attempt:
    """One tool's turn at a call; another tool may answer if it fails.

    Attributes:
        entry: the tool.
        scope: the caller, and what stands for the user's credentials that the tool gets.
        filters: those of the request and the call.
        check: the check of the result; None: there is none.
        seconds: how long the tool may take; its check has time of its own.
        has_fallback: whether another tool is tried next.
        was_begun: whether the tool itself was called.
    """

    entry: _Entry
    scope: str
    filters: SearchFilters
    check: Check | None
    seconds: float
    has_fallback: bool
    was_begun: bool = False

    @property
    def seconds_with_check(self) -> float:
        """How long the call may take, its check included."""
        return self.seconds if self.check is None else self.seconds + self.check.timeout
