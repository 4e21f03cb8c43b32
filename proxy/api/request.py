"""One chat request on its way: whose it is, which model answers it, with which tools, and how far it may go.

What every surface shares. A surface reads a client's request into the words of Chat Completions, opens an exchange for
it, runs its loops, and tells the client in its own shape what came of them.
"""

import functools
import re
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import orjson
from msgspec import Struct
from msgspec.structs import replace
from starlette.types import Receive, Scope

from proxy import request_context
from proxy.api.body import header, written
from proxy.api.body_memory import share_of
from proxy.api.caller import Caller, caller_of
from proxy.api.race import Work, together, while_wanted
from proxy.api.replies import Headers
from proxy.loop import sse
from proxy.loop.actions import Respond, Tally, sum_of
from proxy.loop.chat import Json, ToolSpec
from proxy.loop.continuation import Continuation, put_back, runs_in
from proxy.loop.driver import Runner
from proxy.loop.errors import ModelNotAllowed
from proxy.loop.limits import Limits
from proxy.loop.offer import EVERY_TOOL, NO_SELECTION, TOOL_FIELDS, Offer, ToolSelection, make_offer, take_prefix
from proxy.loop.run import Run
from proxy.ports import MakeDialect, Model, Ports, Show, Tell, Toolset

T = TypeVar("T")

_OURS = "max_tool_calls"  # an upstream may refuse a field that it does not know
_MOST_TERMS = 10_000
_MOST_OFFERS = 100
_SHORT = 256  # characters of a header; a longer one is not remembered
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")  # what may stand in a header
_MOST_IGNORED = 32  # names in one


class Exchange(Struct, frozen=True):
    """One request, resolved.

    Attributes:
        request: in the words of Chat Completions, what was hidden from this client in its history again.
        caller: whose request it is.
        model: that answers it.
        limits: that hold for it.
        usable: the server tools that this client may use, with this model, in this request.
        asked: how it asks for server tools, beside what it declares.
        tell_events: whether the client wants to hear of the progress.
        body: `request` as the client sent it, byte for byte; None where it is not the same any more.
        ignored: tools that the client wants by name and cannot have.
        standing: what is offered to requests that say nothing of tools themselves, by how they ask; None: not kept.
    """

    request: Json
    caller: Caller
    model: Model
    limits: Limits
    usable: tuple[ToolSpec, ...] = ()
    asked: ToolSelection = NO_SELECTION
    tell_events: bool = False
    body: bytes | None = None
    ignored: tuple[str, ...] = ()
    standing: "dict[ToolSelection, Offer] | None" = None

    def offer(self) -> Offer:
        """The tools of this request. Where it says nothing of tools itself, they are what they were the last time."""
        standing = self.standing
        if standing is None or not TOOL_FIELDS.isdisjoint(self.request):
            return make_offer(self.request, self.usable, self.asked)
        offer = standing.get(self.asked)
        if offer is None:
            if len(standing) >= _MOST_OFFERS:
                standing.clear()
            offer = standing[self.asked] = make_offer(self.request, self.usable, self.asked)
        return offer

    def for_upstream(self) -> tuple[bytes, Json]:
        """The body as the client sent it, but for the field that is said to us alone."""
        if _OURS not in self.request:
            return self.body or written(self.request), self.request
        request = {key: value for key, value in self.request.items() if key != _OURS}
        return written(request), request

    def runs(self, offer: Offer, run_ids: Iterable[str], dialect: MakeDialect) -> list[Run]:
        """One loop for each choice."""
        limits = self.limits if offer.in_play else replace(self.limits, guidance=False)
        if self.request.get("parallel_tool_calls") is False:
            limits = replace(limits, max_parallel_tools=1)
        runs = []
        for run_id in run_ids:
            own = dialect(offer.owned) if offer.in_play else None
            runs.append(Run(self.request, offer, limits, run_id, dialect=own))
        return runs

    def bounded(
        self, scope: Scope, receive: Receive, work: Work[T], *, beside: Work[None] | None = None
    ) -> Coroutine[Any, Any, T]:
        """The result of `work`, within `max_duration` and while the client is there; `beside` runs along.

        Raises:
            MaxDurationExceeded: it took longer.
            ClientLeft: the client was gone first.
        """
        return while_wanted(scope, receive, work, seconds=self.limits.max_duration, beside=beside)


class Exchanges:
    """Opens exchanges and runs their loops."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._runner = self._runner_with(ports.toolset)
        self._terms: dict[tuple[str | None, str], _Terms] = {}

    async def open(
        self,
        scope: Scope,
        request: Json,
        *,
        body: bytes | None = None,
        hidden: Mapping[str, Continuation] | None = None,
    ) -> Exchange:
        """Resolve a chat request.

        Args:
            scope: tells the caller, and what its headers ask for.
            request: checked by `parse_chat_request`, or made by us.
            body: the bytes that it was read from.
            hidden: by run, what this client was not shown of earlier runs and has brought back itself.

        Raises:
            ModelNotFound: there is no such model here.
            ModelNotAllowed: it is not for this client.
        """
        caller = caller_of(scope)
        given = request
        if runs := runs_in(request["messages"]):
            request = await self._with_hidden(scope, request, runs, hidden or {})
        name, asked_by_name = self._without_suffix(request["model"])
        request, asked_by_prefix = self._without_prefix(request)
        messages = request["messages"]
        model = self._ports.router.resolve(
            name, client_key=caller.upstream_key, messages=messages, headers=scope["headers"]
        )
        terms = self._terms_of(caller, model)
        if not terms.permitted:
            raise ModelNotAllowed(model.name)
        request_context.add(
            {"model": model.name, "upstream": model.upstream.name, "stream": bool(request.get("stream"))}
        )
        limits = terms.limits
        if (most := request.get(_OURS)) is not None:
            limits = replace(limits, max_tool_calls=min(limits.max_tool_calls, most))
        allow_tools = limits.allow_tools
        said = header(scope, b"x-server-tools")
        is_short = said is None or len(said) <= _SHORT
        chosen = _known_choice(said) if is_short else _chosen_tools(said)
        usable = terms.usable(self._ports.toolset.specs, chosen)
        ignored = terms.missing(chosen) if chosen else ()
        if ignored:
            request_context.add({"tools_ignored": ignored})
        return Exchange(
            request,
            caller,
            model,
            limits,
            usable=usable if allow_tools else (),
            asked=ToolSelection(asked_by_name or asked_by_prefix, chosen, model.upstream.native_search),
            tell_events=(header(scope, b"x-tool-events") or "").lower() == "true",
            body=body if request is given else None,
            ignored=ignored,
            standing=terms.standing if allow_tools and is_short else None,
        )

    async def loops(
        self,
        exchange: Exchange,
        offer: Offer,
        run_ids: Sequence[str],
        *,
        show: Callable[[int], Show],
        tell: Tell | None,
        toolset: Toolset | None = None,
        keep: bool = True,
    ) -> list[Respond]:
        """One loop for each of the `run_ids`, independent of each other.

        Args:
            exchange: what was asked.
            offer: its tools.
            run_ids: 32 hexadecimal digits each; the ids of the client's own calls are made of them.
            show: for each loop, by its index, takes what the client may see.
            tell: hears of the progress; None: nobody does.
            toolset: runs the calls; None: the server tools as they are.
            keep: whether what stays hidden from the client is kept for when it comes back.
        """
        runner = self._runner if toolset is None else self._runner_with(toolset)
        runs = exchange.runs(offer, run_ids, self._ports.dialect)
        upstream, scope = exchange.model.upstream, exchange.caller.scope
        works: list[Coroutine[Any, Any, Respond]] = []
        for index, run in enumerate(runs):
            work = runner.drive(run, upstream=upstream, scope=scope, show=show(index), tell=tell)
            # A client without tools of its own has nothing to come back with.
            works.append(self._kept(work, exchange.caller, run.id) if keep and offer.client_tools else work)
        answers: Sequence[Respond] = ()
        try:
            # One, as nearly always, needs no task of its own, which would keep a failure and all that has led to it.
            answers = await together(works) if len(works) > 1 else [await works[0]]
        finally:  # what was used is paid for, also where there is no answer
            note_use(
                runs[0].tally if len(runs) == 1 else sum_of([run.tally for run in runs]),
                answers[0] if answers else None,
            )
        return answers

    async def _kept(self, work: Coroutine[Any, Any, Respond], caller: Caller, run_id: str) -> Respond:
        """An answer, and what of it the client is not shown kept for when it comes back."""
        answer = await work
        # At once, not after all choices: a client that streams knows the calls, whatever becomes of the others.
        if answer.continuation is not None:
            await self._ports.store.put(caller.scope, run_id, sse.dumps(answer.continuation.as_json()))
        return answer

    def _runner_with(self, toolset: Toolset) -> Runner:
        return Runner(toolset, observe=self._ports.observe, clock=self._ports.clock)

    async def forget(self, caller: Caller, run_id: str) -> None:
        """Delete what was kept of a run."""
        await self._ports.store.delete(caller.scope, run_id)

    async def _with_hidden(
        self, scope: Scope, request: Json, runs: Sequence[str], brought: Mapping[str, Continuation]
    ) -> Json:
        """The request with what this client was not shown of earlier `runs` in its history again."""
        owner, share = caller_of(scope).scope, share_of(scope)
        found = {run: brought[run] for run in runs if run in brought}
        for run in (run for run in runs if run not in found):
            stored = await self._ports.store.get(owner, run)
            if stored is not None:
                if share is not None:
                    share.count_parsed(stored)
                found[run] = Continuation.from_json(orjson.loads(stored))
        self._ports.observe("continuation.sought", sought=len(runs), found=len(found))
        return {**request, "messages": put_back(request["messages"], found)} if found else request

    def _without_suffix(self, name: str) -> tuple[str, bool]:
        """The model's name without the suffix that asks for tools, and whether it was there."""
        suffix = self._ports.config.offer.model_suffix
        return (name.removesuffix(suffix), True) if suffix and name.endswith(suffix) else (name, False)

    def _without_prefix(self, request: Json) -> tuple[Json, bool]:
        """The request without the prefix that asks for tools, and whether it was there."""
        prefix = self._ports.config.offer.prefix
        messages = take_prefix(request["messages"], prefix) if prefix else None
        return (request, False) if messages is None else ({**request, "messages": messages}, True)

    def _terms_of(self, caller: Caller, model: Model) -> "_Terms":
        """What holds between a client and a model, worked out once; the names of models are a stranger's to choose."""
        known = self._terms.get((caller.name, model.name))
        if known is None:
            if len(self._terms) >= _MOST_TERMS:
                self._terms.clear()
            known = _Terms(
                self._ports.config.limits.overlaid(model.limits, caller.limits),
                (caller.tools, model.tools),
                permitted=caller.may_use(model.name),
            )
            self._terms[caller.name, model.name] = known
        return known


class _Terms:
    """What holds between one client and one model, whatever a request says.

    Attributes:
        permitted: whether the client may use the model.
        limits: of the configuration, the model's and the client's own put over them.
        standing: as in `Exchange`; begun anew whenever there are other tools.
    """

    __slots__ = ("_allowed", "_specs", "_usable", "limits", "permitted", "standing")

    def __init__(self, limits: Limits, allowed: tuple[frozenset[str] | None, ...], *, permitted: bool) -> None:
        self.permitted = permitted
        self.limits = limits
        self._allowed = allowed
        self._specs: Mapping[str, ToolSpec] = {}
        self._usable: tuple[ToolSpec, ...] = ()
        self.standing: dict[ToolSelection, Offer] = {}

    def usable(self, specs: Mapping[str, ToolSpec], chosen: frozenset[str] | None) -> tuple[ToolSpec, ...]:
        """The tools that client and model both may use, among those that the request has `chosen`; None: all."""
        if specs is not self._specs:  # tools of MCP servers come and go
            self._specs, self._usable = specs, tuple(_among(specs.values(), *self._allowed))
            self.standing = {}
        return self._usable if chosen is None or EVERY_TOOL in chosen else tuple(_among(self._usable, chosen))

    def missing(self, chosen: frozenset[str]) -> tuple[str, ...]:
        """The names among `chosen` that no tool has which may be chosen, as they may stand in a header."""
        choosable = [spec for spec in self._usable if spec.offer != "never"]
        missing = sorted(name for name in chosen - {EVERY_TOOL} if not _among(choosable, frozenset({name})))
        return named_ignored(missing)


def _among(specs: Iterable[ToolSpec], *allowed: frozenset[str] | None) -> list[ToolSpec]:
    """The tools that all of `allowed` permit; None permits every one."""
    for names in allowed:
        if names is not None:
            specs = [spec for spec in specs if spec.is_among(names)]
    return list(specs)


def named_ignored(names: Iterable[str]) -> tuple[str, ...]:
    """The names of tools that are left out, each once, as they may stand in a header and in the log."""
    return tuple(dict.fromkeys(name if _NAME.fullmatch(name) else "unknown" for name in names))[:_MOST_IGNORED]


def ignored_header(names: Sequence[str]) -> Headers:
    """`x-tools-ignored`; no header where nothing was left out."""
    return ((b"x-tools-ignored", ",".join(names).encode()),) if names else ()


def _chosen_tools(header_value: str | None) -> frozenset[str] | None:
    """The names in `x-server-tools`, `EVERY_TOOL` perhaps among them; None where there is no such header."""
    if header_value is None:
        return None
    return frozenset(name.strip() for name in header_value.split(",")) - {"none", ""}


_known_choice = functools.lru_cache(256)(_chosen_tools)


def collect(events: list[Json]) -> Tell:
    """Progress for a client that does not stream: told at the end."""

    async def tell(event: Json) -> None:
        events.append(event)

    return tell


async def show_nothing(_: Json) -> None:
    """A client that does not stream sees nothing before the end."""


def note_use(tally: Tally, answer: Respond | None = None) -> None:
    """What a loop has used, why it ended, and what it took to make the model answer, for the request's log line."""
    said: Json = {"turns": tally.turns, "tool_calls": tally.total_tool_calls}
    if tally.usage:
        _add_tokens(said, tally.usage)
    if answer is not None:
        said["stop"] = answer.stop
        if answer.step is not None:
            said["rung"] = answer.step
    request_context.add(said)


def note_usage(usage: Json | None) -> None:
    """The tokens of a request, for its log line."""
    if usage:
        said: Json = {}
        _add_tokens(said, usage)
        request_context.add(said)


def _add_tokens(said: Json, usage: Json) -> None:
    for name in ("prompt_tokens", "completion_tokens"):
        count = usage.get(name)
        if isinstance(count, int):
            said[name] = count
