"""The whitelist of tools: every tool that may be run, by name.

`Registry.execute` has the steps of a call: its arguments are parsed, repaired and validated; the tool is called within
everything that `guarded.GuardedTool` puts around it; the filters are applied to its output; where it fails, the
fallbacks are called with the same arguments.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import copy
from functools import partial
from itertools import zip_longest
from types import MappingProxyType
from typing import Any

from msgspec.structs import replace

from proxy.kit.beside import beside
from proxy.kit.readiness import KeyState
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
)
from proxy.ports import Caches, Clock, NoObserver, Observer
from proxy.recording.recording import CURRENT
from proxy.tools.arguments import MOST_REPAIRED_CHARACTERS, history_of, mended
from proxy.tools.browser import PARAMETERS
from proxy.tools.check import Check
from proxy.tools.finder import SIZE_OF_TOOL, ToolIndex
from proxy.tools.guarded import GuardedTool, ToolAttempt
from proxy.tools.result_cache import local_caches
from proxy.tools.result_filter import DOMAIN_LISTS, filtered, filters_of_call
from proxy.tools.schema import schema_fault
from proxy.tools.state import ToolState
from proxy.tools.tool import Tool
from proxy.wire.chat import Json, ToolCall, ToolSpec
from proxy.wire.code import CodeResult
from proxy.wire.credentials import Credentials
from proxy.wire.json_text import is_object
from proxy.wire.search import NO_FILTERS, Reading

# Bytes of a request that take as long to read as a character of arguments, which are repaired and validated as well.
_COST_OF_ARGUMENTS = 4


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
        self._entries: dict[str, GuardedTool] = {}
        self._indexing = asyncio.Lock()
        self._index: tuple[Mapping[str, ToolSpec], ToolIndex] | None = None
        if refused := self.put_group(None, tools):
            raise ValueError(refused[0])

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

    @property
    def origins(self) -> dict[str, str]:
        """Tool name -> where the tool comes from."""
        return {name: entry.tool.origin for name, entry in self._entries.items()}

    def put_group(self, group: str | None, tools: Iterable[Tool]) -> list[str]:
        """Replace the tools of a group, such as those of an MCP server; return the reasons why any were refused.

        The tools that are known from the start belong to no group.

        A tool is refused, and the others are accepted, if its name or an alias is taken or its schema is not valid.
        """
        specs = {name: spec for name, spec in self.specs.items() if spec.group != group}
        for name in self.specs.keys() - specs.keys():
            del self._entries[name]
        names = {name for spec in specs.values() for name in spec.names}
        refused = []
        for tool in tools:
            try:
                specs[tool.name] = self._made(tool, names, group)
            except ValueError as exc:
                refused.append(str(exc))
            else:
                names.update(tool.names)
        self.specs, self.names = specs, frozenset(names)
        self.serving = {spec.serves: name for name, spec in reversed(specs.items()) if spec.serves is not None}
        return refused

    def for_user(self, group: str, tools: Iterable[Tool], states: dict[str, ToolState]) -> "Registry":
        """These tools, and with them those that a server lists for one user.

        Args:
            group: the name of the server's group.
            tools: its tools.
            states: the states of its tools by name, which all of its users share; those of new tools are added.
        """
        own = copy(self)
        own._entries, own._states = {**self._entries}, {**states}  # noqa: SLF001 - of this class
        own._index, own._indexing = None, asyncio.Lock()  # noqa: SLF001 - likewise
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
        self._entries[tool.name] = GuardedTool(tool, state, clock=self._clock, observe=self._observe)
        return tool

    def arguments_of(self, call: ToolCall) -> Json | None:
        """See `ports.Toolset.arguments_of`."""
        entry = self._entries.get(call.name)
        try:
            return entry.parse(call.arguments)[0] if entry else None
        except InvalidArguments:
            return None

    def history_arguments(self, call: ToolCall) -> str | None:
        """See `ports.Toolset.history_arguments`."""
        entry = self._entries.get(call.name)
        if entry is None:
            return history_of(call.arguments)
        written, history = entry.last_parsed_arguments
        if written == call.arguments:
            return history
        if len(call.arguments) > MOST_REPAIRED_CHARACTERS and is_object(call.arguments):
            return call.arguments  # types in it might be repaired, which is not worth a reading on the event loop
        try:
            return entry.parse(call.arguments)[1]
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
        # A fallback's own fallbacks are not called, because there could be a cycle.
        chain = [entry, *filter(None, map(self._entries.get, entry.fallbacks))]
        for tried, following in zip_longest(chain, chain[1:]):
            try:
                return await self._answer(tried, entry.tool, call, context, has_fallback=following is not None)
            except ToolError as exc:
                if following is None or isinstance(exc, (InvalidArguments, NotUnderstood, ResultRefused)):
                    raise
                if not isinstance(exc, NotConfigured):  # known since the start, so there is no event
                    names = {"tool": tried.tool.name, "to": following.tool.name}
                    self._observe("tool.fell_back", **names, outcome=exc.outcome, why=exc.why)
        raise AssertionError("the last tool of a chain returns or raises")

    async def _answer(
        self, entry: GuardedTool, called: Tool, call: ToolCall, context: CallContext, *, has_fallback: bool
    ) -> ToolOutput:
        """The part of one tool's output that the filters of request and call permit; `called`: the tool of the call."""
        tool, filters = entry.tool, context.filters
        seconds = min(tool.timeout or context.default_timeout, context.max_timeout)
        changes: dict[str, Any] = {}
        if tool.needs:
            changes["scope"] = context.scope + _by_user(tool, context.credentials)
        if block := (*called.block, *tool.block):
            filters = replace(filters, block=tuple(dict.fromkeys((*filters.block, *block))))
        reading = called.reading if tool.reading is None else tool.reading
        if reading is not None and reading.pages:
            filters = replace(filters, reading=self._permitted(reading, context))
            changes["ends"] = min(context.ends, self._clock.monotonic() + seconds)
        size = len(call.arguments) * _COST_OF_ARGUMENTS
        arguments, history = await beside(size, partial(entry.parse, call.arguments))
        entry.last_parsed_arguments = call.arguments, history
        is_search = tool.searches or called.searches
        if is_search and not arguments.keys().isdisjoint(DOMAIN_LISTS):
            filters = filters_of_call(filters, arguments, tool.parameters)
        if changes or filters is not context.filters:
            context = replace(context, filters=filters, **changes)
        # A fallback is checked as the tool that it stands in for, unless it has a check of its own.
        check = tool.check or called.check or self._check
        work = entry.output(ToolAttempt(arguments, context, check, seconds, has_fallback))
        recording = CURRENT.get()
        output = await (work if recording is None else recording.run(tool.name, arguments, work))
        if tool.name != call.name:
            output = replace(output, answered_by=tool.name)
        if filters is not NO_FILTERS and filters.has_rules:
            is_filtered = tool.run_filtered is not None
            output = filtered(output, filters, is_filtered=is_filtered, is_search=is_search)
        return output if tool.serves is None else replace(output, code=CodeResult.read(output.text))

    def _permitted(self, reading: Reading, context: CallContext) -> Reading:
        """How a call reads pages: as a tool has it, but public ones only if the caller may not use `web_fetch`."""
        fetch = next((tool for tool in self.specs.values() if tool.fetches), None)
        may_fetch = fetch is None or context.tools is None or fetch.is_among(context.tools)
        return replace(reading, everywhere=may_fetch)


def _by_user(tool: Tool, credentials: Credentials) -> str:
    """The part of a cache key that keeps apart the results of users with different credentials for a tool.

    Raises:
        CredentialMissing: the request lacks one of them.
    """
    if missing := tool.needs - credentials.names:
        raise CredentialMissing(tool.name, missing)
    credentials.used |= tool.needs
    return f" {credentials.hash_of(tool.needs)}"
