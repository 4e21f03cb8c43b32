"""The whitelist: every tool that may be run, by name; a call in, text out.

One door for all: a tool is a name, a description, a JSON Schema and one async call. Arguments are parsed strictly and
checked against the schema before anything runs; what is wrong with them is told to the model, which can mend it.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jsonschema_rs
import orjson

from proxy.core.chat import Json, ToolCall, ToolOutput, ToolSpec
from proxy.core.errors import InvalidArguments, ToolError, ToolTimeout
from proxy.ports import Observer
from proxy.tools.result_cache import ResultCache


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """One tool.

    Attributes:
        spec: how a model sees it.
        run: does the work: arguments in, text for the model out, or a `ToolOutput` where pages can be cited. Raises
            `ToolError` for what the model should know.
        repair: makes arguments that mean the same thing in other words fit the schema, before they are checked.
        timeout: seconds for one call; None: the request's `tool_timeout`.
        cache_seconds: how long a result serves equal calls of the same caller; 0: every call is run.
        fallback: the tool that is tried with the same arguments when this one fails.
    """

    spec: ToolSpec
    run: Callable[[Json], Awaitable[str | ToolOutput]]
    repair: Callable[[Json], Json] = field(default=lambda arguments: arguments)
    timeout: float | None = None
    cache_seconds: float = 0
    fallback: str | None = None


def _nobody_listens(_: str, /, **__: object) -> None:
    """For a registry of its own."""


class Registry:
    """All usable tools. Implements `ports.Toolset`.

    Raises:
        ValueError: two tools have the same name, or a schema is none.
    """

    def __init__(
        self,
        tools: Iterable[Tool],
        *,
        observe: Observer = _nobody_listens,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self._observe = observe
        self._caches: dict[str, ResultCache] = {}
        self._tools: dict[str, Tool] = {}
        self._validators: dict[str, jsonschema_rs.Validator] = {}
        for tool in tools:
            name = tool.spec.name
            if name in self._tools:
                raise ValueError(f"there are two tools named {name!r}")
            self._tools[name] = tool
            if tool.cache_seconds:
                self._caches[name] = ResultCache(tool.cache_seconds, timer=timer)
            # The library fetches remote references unless told otherwise; no tool's schema makes us call anyone.
            self._validators[name] = jsonschema_rs.validator_for(tool.spec.parameters, retriever=_refuse_reference)

    @property
    def specs(self) -> Mapping[str, ToolSpec]:
        """Every tool as a model sees it, by name."""
        return {name: tool.spec for name, tool in self._tools.items()}

    async def execute(self, call: ToolCall, *, patience: float, scope: str) -> ToolOutput:
        """Run one call.

        Raises:
            ToolError: it could not be carried out; the message is for the model.
        """
        tool = self._tools.get(call.name)
        if tool is None:
            raise ToolError(f"There is no tool named {call.name!r}.")
        try:
            return await self._run(tool, call, patience, scope)
        except InvalidArguments:
            raise
        except ToolError as exc:
            # One step only: a fallback's own fallback would make chains, and circles.
            other = self._tools.get(tool.fallback or "")
            if other is None:
                raise
            self._observe("tool.fell_back", tool=call.name, to=other.spec.name, outcome=exc.outcome)
            return await self._run(other, call, patience, scope)

    async def _run(self, tool: Tool, call: ToolCall, patience: float, scope: str) -> ToolOutput:
        arguments = tool.repair(parse_arguments(call.arguments))
        if faults := [_describe(error) for error in self._validators[tool.spec.name].iter_errors(arguments)]:
            raise InvalidArguments(f"The arguments do not fit the tool's schema: {'; '.join(faults)}.")
        seconds = tool.timeout or patience
        try:
            async with asyncio.timeout(seconds):
                cache = self._caches.get(tool.spec.name)
                if cache is None:
                    return await _run_once(tool, arguments)
                key = f"{scope}\n{orjson.dumps(arguments, option=orjson.OPT_SORT_KEYS).decode()}"
                hit = partial(self._observe, "tool.cache_hit", tool=tool.spec.name)
                return await cache.get_or_run(key, lambda: _run_once(tool, arguments), on_hit=hit)
        except TimeoutError as exc:
            raise ToolTimeout(f"The tool gave no answer within {seconds:g} seconds.") from exc


async def _run_once(tool: Tool, arguments: Json) -> ToolOutput:
    output = await tool.run(arguments)
    return output if isinstance(output, ToolOutput) else ToolOutput(output)


def parse_arguments(text: str) -> Json:
    """A call's arguments as an object; no text at all stands for no arguments.

    Raises:
        InvalidArguments: not JSON, or not an object.
    """
    try:
        arguments = orjson.loads(text) if text.strip() else {}
    except orjson.JSONDecodeError as exc:
        raise InvalidArguments(f"The arguments are not valid JSON: {exc.msg}.") from exc
    if not isinstance(arguments, dict):
        raise InvalidArguments("The arguments must be one JSON object.")
    return arguments


def _describe(error: jsonschema_rs.ValidationError) -> str:
    where = ".".join(str(part) for part in error.instance_path)
    return f"{where}: {error.message}" if where else str(error.message)


def _refuse_reference(uri: str) -> Any:
    raise ValueError(f"remote references are not followed: {uri}")
