"""Tools that give the results of a case, whatever their type: nothing of them is imported, started or called."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

import msgspec
import orjson

from proxy.cases.comparison import is_same
from proxy.loop.results import (
    NotConfigured,
    NotUnderstood,
    ResultRefused,
    ToolError,
    ToolOutput,
    ToolTimeout,
    ToolUnavailable,
    UnsupportedContent,
    UrlNotAllowed,
)
from proxy.tools.search import query
from proxy.tools.tool import Tool
from proxy.tools.web import page
from proxy.wire.chat import Json, ToolSpec
from proxy.wire.errors import ConfigurationError
from proxy.wire.search import SearchFilters

ADAPTED: Final = frozenset({"serper", "http", "mcp", "clock"})
"""The types that a case may leave to the proxy's own code, which then calls the fake servers."""

# The repairs of arguments that belong to a type.
_REPAIRS: Final[Mapping[str, Callable[[Json], Json]]] = {
    "search": query.repair, "serper": query.repair, "zai_search": query.repair,
    "web_fetch": page.repair,
}  # fmt: skip
_FAILURES: Final[Mapping[str, type[ToolError]]] = {
    kind.outcome: kind
    for kind in (ToolError, ToolTimeout, NotUnderstood, NotConfigured, UrlNotAllowed, UnsupportedContent, ResultRefused)
}


# What is data of a tool: all of it but its name and what it does.
_OF_TOOLS: Final = frozenset(ToolSpec.__struct_fields__) - {"name"} | {"timeout", "fallback", "block", "price"}


class PlayedResults:
    """The results of one exchange, each of which is given once; the last one of a tool again and again."""

    def __init__(self) -> None:
        self._left: list[Json] = []
        self._last: dict[str, Json] = {}

    def begin(self, exchange: Json) -> None:
        """Take the results of an exchange."""
        self._left, self._last = [*exchange.get("tools", ())], {}

    async def give(self, name: str, arguments: Json) -> ToolOutput:
        """The result of a call: the one that was recorded for these arguments, or else the next of the tool.

        Raises:
            ToolError: the call failed when it was recorded, or the case has no result of the tool.
        """
        mine = [result for result in self._left if result["name"] == name]
        if mine:
            result = next((one for one in mine if is_same(one.get("arguments"), arguments)), mine[0])
            self._left.remove(result)
            self._last[name] = result
        elif name in self._last:
            result = self._last[name]
        else:
            raise ToolError(f"The case has no result of {name!r}.")
        if result.get("left"):
            await asyncio.Event().wait()
        return _output_of(result)


def played_tools(tools: Mapping[str, Json], results: PlayedResults) -> Iterator[Tool]:
    """The tools of a case, but for those that the proxy's own code plays.

    Raises:
        ConfigurationError: a tool cannot be made from what the case says of it.
    """
    for name, told in tools.items():
        if told.get("recorded") or told["type"] not in ADAPTED:
            yield _tool(name, told, results)


def _tool(name: str, told: Json, results: PlayedResults) -> Tool:
    run = partial(results.give, name)

    async def run_filtered(arguments: Json, _: SearchFilters) -> ToolOutput:
        return await run(arguments)

    spec = told.get("recorded") or told
    given: dict[str, Any] = {
        "description": name,
        "parameters": {"type": "object"},
        "searches": told["type"] in ("search", "serper", "zai_search"),
        **{key: tuple(held) if isinstance(held, list) else held for key, held in spec.items() if key in _OF_TOOLS},
        "needs": frozenset(spec.get("needs", ())),
    }
    filtered = run_filtered if spec.get("applies_filters") else None
    try:
        repair = _REPAIRS.get(told["type"])
        return Tool(name=name, run=run, run_filtered=filtered, repair=repair, one_service=False, **given)
    except (TypeError, ValueError) as exc:
        raise ConfigurationError([f"tools.{name}: {exc}"]) from exc


def _output_of(result: Json) -> ToolOutput:
    if (message := result.get("error")) is not None:
        outcome = result.get("outcome", "error")
        if outcome == ToolUnavailable.outcome:
            told = {key: result[key] for key in ("why", "cause", "wait", "blame") if key in result}
            raise ToolUnavailable(message, **told)
        raise _FAILURES.get(outcome, ToolError)(message, why=result.get("why"))
    text = result.get("text", "") * result.get("times", 1)
    if "body" in result:
        text = orjson.dumps(result["body"]).decode()
    try:
        return msgspec.convert({**result.get("output", {}), "text": text}, ToolOutput)
    except msgspec.ValidationError as exc:
        raise ToolError(f"The result of the case cannot be given: {exc}") from exc
