"""Every event, its level in the log and its meaning; and the observer that passes events on to their subscribers.

The table of `docs/observability.md` is made from `EVENTS`.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

import orjson


@dataclass(frozen=True, slots=True)
class Event:
    """A kind of event.

    Attributes:
        level: of its line in the log.
        meaning: a sentence or two.
        fields: the names of the fields that its line may have, in addition to the request's fields and content.
    """

    level: int
    meaning: str
    fields: str = ""


_DEBUG, _INFO, _WARNING, _ERROR = logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR

EVENTS: Final[Mapping[str, Event]] = {
    "configuration.disabled": Event(
        _WARNING,
        "An upstream, tool or client has no key and is disabled; `fallback` names the tool that replaces it.",
        "where why fallback",
    ),
    "configuration.doubtful": Event(_WARNING, "A setting is valid but probably a mistake.", "why"),
    "configuration.reloaded": Event(
        _INFO, "The configuration was reloaded; it applies to requests that begin after this."
    ),
    "configuration.refused": Event(
        _ERROR, "The changed configuration is faulty (`faults`); the previous one remains in force.", "faults pid"
    ),
    "configuration.gone": Event(
        _WARNING, "The watched configuration file was removed or cannot be read; its last content remains in force."
    ),
    "configuration.needs_restart": Event(
        _WARNING, "A setting was changed that takes effect only after a restart; its old value remains.", "where"
    ),
    "server.started": Event(
        _INFO, "The process has read its configuration and is about to serve.", "version pid workers"
    ),
    "server.ready": Event(_INFO, "All workers accept connections, at `url`.", "url"),
    "server.draining": Event(_INFO, "A signal arrived: open requests may finish, and new ones are refused.", "grace"),
    "server.stopped": Event(_INFO, "All requests have ended, and the process is about to end."),
    "state.unavailable": Event(
        _WARNING, "Redis or the file of `state.url` cannot be used; each process keeps its own state.", "at why"
    ),
    # As loud as `state.unavailable`, so that an alarm about that is followed by its end.
    "state.recovered": Event(_WARNING, "Redis or the file of `state.url` can be used again.", "at"),
    "answer.unfit": Event(_INFO, "An answer does not match the required JSON Schema; the model is asked again."),
    "state.not_shared": Event(_WARNING, "Several workers run without shared state; each keeps its own.", "workers why"),
    "observer.failed": Event(
        _ERROR,
        "A log, metrics or trace handler raised an exception; logged once per kind of event.",
        "on exception",
    ),
    "worker.died": Event(_ERROR, "A worker process ended unexpectedly; another one is started.", "pid exit_code"),
    "request.refused": Event(
        _INFO,
        "The server refused data of a connection: not valid HTTP, too large or too slow.",
        "request_id status error",
    ),
    "probe.completed": Event(
        _DEBUG, "A health check or a scrape was answered.", "method path status seconds first_byte"
    ),
    "limit.reached": Event(_DEBUG, "A request reached a limit of the proxy, `kind`, and gets an error.", "kind"),
    "use.not_counted": Event(
        _ERROR, "A bug: the use of a request could not be counted; its answer is complete.", "exception"
    ),
    "case.failed": Event(
        _ERROR,
        "The file for `toolproxy replay` could not be written; the request's answer is complete.",
        "request_id exception",
    ),
    "request.started": Event(_DEBUG, "A request arrived.", "method path"),
    "response.started": Event(_DEBUG, "The first byte of a response was sent.", "status event_stream seconds"),
    "budget.checked": Event(
        _DEBUG, "A client with a budget sent a request; `kinds` has each limit and its use.", "client kinds"
    ),
    "request.completed": Event(
        _INFO,
        "A response is complete, or the client disconnected before that (status 499).",
        "method path status seconds first_byte event_stream",
    ),
    "request.crashed": Event(_ERROR, "A bug in the proxy, with its traceback.", "exception"),
    "continuation.sought": Event(
        _DEBUG,
        "The request continues earlier runs: `sought` is how many, `found` how many are still stored.",
        "sought found",
    ),
    "continuation.kept": Event(
        _DEBUG,
        "A continuation or a response was stored in this process; `entries` and `bytes` are the totals.",
        "entries bytes",
    ),
    "turn.started": Event(_DEBUG, "An upstream call of the tool loop started.", "turn upstream upstream_model rung"),
    "turn.completed": Event(
        _INFO,
        "An upstream call of the tool loop gave a complete turn.",
        "turn upstream upstream_model response_model seconds finish_reason calls usage rung",
    ),
    "turn.failed": Event(
        _WARNING,
        "An upstream call of the tool loop failed, after all retries and fallbacks.",
        "turn upstream rung seconds code status why upstream_status upstream_code",
    ),
    "turn.abandoned": Event(
        _INFO,
        "An upstream call of the tool loop was cancelled: the client disconnected, or the request's time was up.",
        "turn upstream rung seconds",
    ),
    "results.cut": Event(
        _INFO,
        "The conversation exceeds the model's context; tool results are cut, and the turn is repeated.",
        "turn",
    ),
    "relay.started": Event(
        _DEBUG, "A request that needs no tool loop was passed to its upstream.", "upstream upstream_model path"
    ),
    "relay.completed": Event(
        _DEBUG, "The upstream's response was passed to the client.", "upstream upstream_model seconds"
    ),
    "relay.failed": Event(
        _WARNING,
        "A relayed request got no complete response, after all retries and fallbacks.",
        "upstream upstream_model seconds code status why upstream_status upstream_code",
    ),
    "relay.abandoned": Event(
        _DEBUG,
        "A relayed request was cancelled: the client disconnected, or the request's time was up.",
        "upstream upstream_model seconds",
    ),
    "upstream.answered": Event(_DEBUG, "One attempt at an upstream succeeded.", "upstream seconds first"),
    "upstream.retried": Event(
        _WARNING,
        "One attempt at an upstream failed; it is repeated after `wait` seconds.",
        "upstream code status why upstream_status upstream_code seconds wait",
    ),
    "upstream.fell_back": Event(
        _WARNING,
        "One attempt at an upstream failed; the next model of `fallbacks` is tried.",
        "upstream code status why upstream_status upstream_code seconds to upstream_model",
    ),
    "upstream.key_used": Event(_DEBUG, "An upstream with several keys is called with number `key`.", "upstream key"),
    "upstream.key_rests": Event(
        _WARNING,
        "A key was refused (`cause`: refused, credit, window, rate or model) and rests for `seconds`; the request "
        "continues with another key.",
        "upstream key cause seconds why upstream_model",
    ),
    "upstream.key_works": Event(_INFO, "A key that had been refused was accepted again.", "upstream key"),
    "upstream.breaker_opened": Event(
        _WARNING, "An upstream failed repeatedly; calls are suspended for `seconds`.", "upstream code seconds"
    ),
    "upstream.breaker_closed": Event(_INFO, "An upstream has recovered; calls are no longer suspended.", "upstream"),
    "tool.started": Event(_DEBUG, "A tool call started.", "turn tool call_id argument_bytes"),
    "tool.completed": Event(
        _INFO,
        "A tool call gave a result. `results`: how many pages a search found; `note`: why it may have found none; "
        "`pages`: how many of them were fetched, by outcome; `answered_by`: the fallback that answered.",
        "turn tool call_id seconds characters results note pages answered_by",
    ),
    "tool.failed": Event(
        _WARNING, "A tool call failed; the model reads the reason.", "turn tool call_id seconds outcome why"
    ),
    "tool.crashed": Event(
        _ERROR,
        "A bug in a tool, with its traceback; the model reads an error message.",
        "turn tool call_id seconds exception",
    ),
    "tool.abandoned": Event(
        _INFO, "A tool call was cancelled because its result is no longer needed.", "turn tool call_id seconds"
    ),
    "tools.searched": Event(
        _DEBUG,
        "A model searched for tools (`find_tools`). `outcome`: `found`, `none` or `invalid_arguments`.",
        "turn tool outcome found",
    ),
    "tool.checked": Event(
        _INFO,
        "A tool's `check` has judged a result. `outcome`: `passed`, `replaced`, `refused`, or `failed`, which also "
        "refuses the result (`why` has the reason).",
        "tool outcome why seconds",
    ),
    "page.started": Event(
        _DEBUG, "A search began to read a page that it found, number `page` of its call.", "tool page"
    ),
    "page.completed": Event(
        _DEBUG,
        "A search has read a page that it found. `outcome`: `empty` if nothing in it fits the query.",
        "tool page seconds outcome characters",
    ),
    "page.failed": Event(
        _INFO,
        "A search could not read a page that it found; the snippet stays. `outcome`: `failed`, `late`, or `refused` by "
        "the address rules, the filters of the call or the site.",
        "tool page seconds outcome why",
    ),
    "page.crashed": Event(
        _ERROR,
        "A bug in reading a page, with its traceback; the snippet stays.",
        "tool page seconds exception",
    ),
    "page.abandoned": Event(_DEBUG, "A search that was reading a page was cancelled.", "tool page seconds"),
    "tool.fell_back": Event(_WARNING, "A tool call failed; the tool's `fallback` is called.", "tool to outcome why"),
    "tool.retried": Event(
        _WARNING, "A tool call failed for a temporary reason; it is repeated.", "tool attempt outcome why"
    ),
    "tool.key_used": Event(_DEBUG, "A tool with several keys makes a request with number `key`.", "tool key"),
    "tool.key_rests": Event(
        _WARNING,
        "A key was refused (`cause`: refused, credit, window or rate) and rests for `seconds`; the call continues with "
        "another key.",
        "tool key cause seconds why",
    ),
    "tool.key_works": Event(_INFO, "A key that had been refused was accepted again.", "tool key"),
    "tool.breaker_opened": Event(
        _WARNING,
        "A tool failed repeatedly, or its service refuses calls (`cause`); calls are suspended for `seconds`.",
        "tool seconds cause",
    ),
    "tool.breaker_closed": Event(_INFO, "A tool's service works again; calls are no longer suspended.", "tool"),
    "mcp.connected": Event(_INFO, "A session with an MCP server began, and its tools are known.", "server tools"),
    "mcp.lost": Event(_WARNING, "An MCP server cannot be reached; connecting is retried.", "server why wait"),
    "mcp.tool_refused": Event(
        _WARNING,
        "A tool of an MCP server, or a part of its list, cannot be offered; `why` has the reason.",
        "server why",
    ),
    "tool.changed": Event(
        _WARNING,
        "An MCP server has changed a tool's description or schema; the new one is offered. `before` and `after` are "
        "hashes; `change` has 200 characters of each from the first difference, unless lists differ by user.",
        "server tool before after change",
    ),
    "tool.cache_hit": Event(_DEBUG, "A tool call was answered with the cached result of an equal call.", "tool"),
}


def level_of(event: str) -> int:
    """The level of an event's line."""
    known = EVENTS.get(event)
    return known.level if known else logging.INFO


Handler: TypeAlias = Callable[[dict[str, Any]], None]
"""What one subscriber does about one kind of event, given its fields.

All handlers are given the same dict, which is of this event alone: a handler may keep it, but not change it before all
of them have returned.
"""


class Subscriber(Protocol):
    """Chooses the events that it handles."""

    def handler(self, event: str) -> Handler | None:
        """The handler for events of that name; None: they are ignored. It is asked once for each name."""
        ...


class Content:
    """Messages, arguments or results as a field of an event, where `telemetry.log_content` is set.

    It is not a struct, so that an encoder asks for its text instead of writing the whole value.
    """

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def text(self, most: int = 16384) -> str:
        """The value as text, cut to `most` characters: pictures have megabytes."""
        text = self.value if isinstance(self.value, str) else orjson.dumps(self.value, default=str).decode()
        return text if len(text) <= most else f"{text[:most]}..."


class FanOut:
    """Gives each event to those subscribers that handle it, in order. Implements `ports.Observer`.

    Args:
        subscribers: the log first: `observer.failed` is written there when a handler raises an exception.
        content: whether `content` is passed on too (`telemetry.log_content`), each of its values as a `Content`.
    """

    def __init__(self, subscribers: Sequence[Subscriber], *, content: bool) -> None:
        self._subscribers = [*subscribers]
        self._content = content
        self._handlers: dict[str, list[Handler]] = {}
        self._failed: set[tuple[int, str]] = set()

    def __call__(self, event: str, /, **fields: Any) -> None:
        """Pass an event on."""
        handlers = self._handlers.get(event)
        if handlers is None:
            handlers = self._handlers_of(event)
        if not handlers:
            return
        if "content" in fields:
            content = fields.pop("content")
            if content and self._content:
                fields.update((name, Content(value)) for name, value in content.items())
        for handler in handlers:
            try:
                handler(fields)
            except Exception:  # noqa: BLE001 - a fault of an observer must not end the request
                self._report(handler, event)

    def add(self, subscriber: Subscriber) -> None:
        """Give events to one more subscriber."""
        self._subscribers.append(subscriber)
        self._handlers.clear()

    def change(self, *, content: bool) -> None:
        """Take another setting, and ask all subscribers again which events they handle."""
        self._content = content
        self._handlers.clear()

    def handles(self, event: str) -> bool:
        """Whether any subscriber handles events of that name."""
        handlers = self._handlers.get(event)
        return bool(self._handlers_of(event) if handlers is None else handlers)

    def _handlers_of(self, event: str) -> list[Handler]:
        """Ask every subscriber, once for each name of an event."""
        found = [subscriber.handler(event) for subscriber in self._subscribers]
        handlers = self._handlers[event] = [handler for handler in found if handler is not None]
        return handlers

    def _report(self, handler: Handler, event: str) -> None:
        """Log the exception that is being handled, once for each handler and event."""
        key = id(handler), event
        if key not in self._failed:
            self._failed.add(key)
            write = self._subscribers[0].handler("observer.failed")
            if write is not None:
                write({"on": event, "exc_info": True})
