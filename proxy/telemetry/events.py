"""Every event: how loud it is in the log, and what it says. `docs/operations.md` shows this table."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Event:
    """One kind of event: the level of its line, and when it is told."""

    level: int
    says: str


_DEBUG, _INFO, _WARNING, _ERROR = logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR

EVENTS: Final[Mapping[str, Event]] = {
    "configuration.disabled": Event(
        _WARNING,
        "an upstream, tool or client has no key, and is left out; of a tool, its `fallback` where that answers",
    ),
    "configuration.doubtful": Event(_WARNING, "something in the configuration is hardly what was meant"),
    "state.unavailable": Event(_WARNING, "Redis cannot be reached: each process goes on with a state of its own"),
    "state.recovered": Event(_WARNING, "Redis is there again"),  # whoever saw that it was lost wants to know
    "answer.unfit": Event(_INFO, "an answer does not fit the JSON Schema that it was to fit; it is asked for again"),
    "state.not_shared": Event(_WARNING, "several workers, and each keeps its own state"),
    "observer.failed": Event(_ERROR, "an observer of ours has a bug; told once for each event that it fails on"),
    "worker.died": Event(_ERROR, "a worker has ended by itself, and another takes its place"),
    "request.refused": Event(_INFO, "what came was no HTTP that is spoken here, or too much or too slow"),
    "probe.completed": Event(_DEBUG, "an answer to a health check or a scrape"),
    "request.started": Event(_DEBUG, "a request has come"),
    "response.started": Event(_DEBUG, "the first byte of its answer has left"),
    "request.completed": Event(_INFO, "its answer is complete, or nobody waits for it any more (status 499)"),
    "request.crashed": Event(_ERROR, "a bug of ours, with its traceback"),
    "continuation.sought": Event(_DEBUG, "a history names earlier runs: how many, and how many are still kept"),
    "continuation.kept": Event(_DEBUG, "what a client was not shown is kept until it returns"),
    "turn.started": Event(_DEBUG, "an upstream call of the loop begins"),
    "turn.completed": Event(_INFO, "it has given a whole turn"),
    "turn.failed": Event(_WARNING, "it has given none, after all retries and fallbacks"),
    "turn.abandoned": Event(_INFO, "it was stopped: the client has left, or the request's time is over"),
    "relay.started": Event(_DEBUG, "a request that needs no tool is handed to its upstream"),
    "relay.completed": Event(_DEBUG, "its answer was handed back"),
    "relay.failed": Event(_WARNING, "there is no whole answer, after all retries and fallbacks"),
    "relay.abandoned": Event(_DEBUG, "it was stopped: the client has left, or the request's time is over"),
    "upstream.answered": Event(_DEBUG, "one attempt at an upstream has succeeded"),
    "upstream.retried": Event(_WARNING, "one has failed, and the same is tried again after `wait` seconds"),
    "upstream.fell_back": Event(_WARNING, "one has failed, and the next model of `fallbacks` is tried"),
    "upstream.breaker_opened": Event(_WARNING, "an upstream keeps failing, and is left alone for `seconds`"),
    "upstream.breaker_closed": Event(_INFO, "it answers again"),
    "tool.started": Event(_DEBUG, "a tool is called"),
    "tool.completed": Event(_INFO, "it has given a result"),
    "tool.failed": Event(_WARNING, "it could not do what it was asked; the model is told why"),
    "tool.crashed": Event(_ERROR, "a bug in a tool, with its traceback; the model is told that it failed"),
    "tool.abandoned": Event(_INFO, "it was stopped: nobody waits for its result any more"),
    "tool.fell_back": Event(_WARNING, "it has failed, and its `fallback` is tried"),
    "tool.retried": Event(_WARNING, "what it needs did not answer, and it is called again"),
    "tool.breaker_opened": Event(_WARNING, "it keeps failing, and is left alone for `seconds`"),
    "mcp.connected": Event(_INFO, "an MCP server has been reached, and says which tools it has"),
    "mcp.lost": Event(_WARNING, "an MCP server cannot be reached; it is tried again"),
    "mcp.tool_refused": Event(_WARNING, "an MCP server has a tool that cannot be offered, and why"),
    "tool.cache_hit": Event(_DEBUG, "an equal call was made before, and its result is used again"),
}


def level_of(event: str) -> int:
    """The level of an event's line."""
    known = EVENTS.get(event)
    return known.level if known else logging.INFO
