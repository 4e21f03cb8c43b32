"""The tool loop as a protocol, the way h11 writes HTTP: turns and results in, actions out.

    start() --> CallUpstream --receive_turn--> Respond                    it answered, or called the client's tools
                    ^              |
                    |              +--> CallTools --receive_results--+    it called server tools, and then:
                    |              |                                 |
                    +--------------+---------------------------------+    next turn, or made to answer at a limit,
                                                                          or Respond where it called the client's too

The order of the history is the whole point: the assistant message as received, and straight after it one tool message
per call, in call order. A history without that assistant message makes GLM answer with nothing.

Made to answer: from the moment a limit permits no further round of tools, every turn has to be the answer (`forcing`),
in three attempts, which may take two upstream calls more than `max_turns`.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from proxy.loop import browser
from proxy.loop.actions import Action, Buffering, CallTools, CallUpstream, Respond, Stop, Tally
from proxy.loop.browser import Browser
from proxy.loop.chat import BROKEN_OFF, Json, ToolCall, ToolResult, ToolSpec, Turn, in_plain_text, name_of, text_of
from proxy.loop.citations import without_marks
from proxy.loop.continuation import Continuation
from proxy.loop.details import count_indices
from proxy.loop.errors import NoFinalAnswer, ToolError
from proxy.loop.forcing import ATTEMPTS, Forcing, is_answer
from proxy.loop.limits import Limits
from proxy.loop.offer import Offer, freed
from proxy.loop.prompts import ANSWER_NOW, BUDGET_USED, REPEATED, budget_left, guidance, with_guidance
from proxy.loop.results import failure, with_note, without_note
from proxy.loop.seams import separator_after

# Fields that are not for the upstream: it may refuse one that it does not know, and a run is one choice of `n`.
_SAID_TO_US = frozenset({"max_tool_calls", "n"})
_ASKING = frozenset({"system", "developer", "user"})  # the roles of those who say what the answer is to be like
_SAID_OTHERWISE = ("refusal", "audio", "images", "tool_calls")  # fields of a message that are an answer without text


class _Verdict(Struct, frozen=True):
    """What becomes of one call of a turn: `run` it, or answer it with `result` without running anything."""

    call: ToolCall
    key: tuple[str, str]
    run: ToolCall | None = None
    result: ToolResult | None = None


class Run:
    """One client request with server tools in play.

    Args:
        request: the client's body; it is not changed.
        offer: which tools are in play.
        limits: how far the run may go.
        run_id: 32 hexadecimal digits, unique: the ids of the client's own calls are made of it.

    Attributes:
        id: the run's.
        limits: as given.
        tally: what it has used so far, whatever becomes of it.
    """

    def __init__(
        self,
        request: Json,
        offer: Offer,
        limits: Limits,
        run_id: str = "0" * 32,
    ) -> None:
        said_to_us = _SAID_TO_US | offer.dropped if offer.dropped else _SAID_TO_US
        if not said_to_us.isdisjoint(request):
            request = {key: value for key, value in request.items() if key not in said_to_us}
        self.limits = limits
        self._request = request
        messages: Sequence[Json] = request["messages"]
        if limits.guidance:
            told = guidance(offer.shown, limits.max_tool_calls, limits.max_turns - 1)
            messages = with_guidance(messages, told)
        self._messages: list[Json] = list(messages)
        self._given = len(self._messages)
        self.id = run_id
        self._offer = offer
        self._schemas = offer.schemas()
        self._json_only = _asks_for_json(request.get("response_format"))
        self._speaks_of_json: bool | None = None  # nobody has asked
        self.tally = Tally()
        self._tool_choice: Any = offer.tool_choice
        self._attempts = 0  # turns that had to be the answer
        self._stop: Stop | None = None
        self._expired = False
        self._turn: Turn | None = None
        self._verdicts: list[_Verdict] = []
        self._results: dict[tuple[str, str], ToolResult] = {}
        self._repeats: set[tuple[str, str]] = set()
        self._earlier_turns: list[Turn] = []
        self._shown_text = ""
        self._details = 0
        self._sources: dict[str, str] = {}
        reader = offer.owned.get(browser.OPEN)
        self._browser = Browser(reader.name if reader else None)
        self._cite = self._browser.cited if offer.in_play else None

    def start(self) -> CallUpstream:
        """The first action."""
        return self._ask()

    def expire(self) -> None:
        """The deadline has passed: no tool and no further round is begun; the model answers from what it has."""
        self._expired = True

    def receive_turn(self, turn: Turn) -> Action:
        """Take the upstream's answer to the last `CallUpstream`.

        Raises:
            NoFinalAnswer: the last means of making the model answer has failed.
        """
        self.tally.count_turn(turn.usage)
        self._details += count_indices(turn.message)
        if self._is_out_of_tokens(turn):
            turn = replace(turn, finish_reason="length")
        if turn.finish_reason in BROKEN_OFF and not self._worth_another_try(turn):
            return self._respond(turn, self._stop or Stop.ANSWER)
        if any(turn.client_ids):
            return self._judge(turn, self._servers(turn.calls))
        is_blank = _is_blank(turn)
        if not turn.buffered and turn.text.strip():
            self._shown_text, _ = without_marks(turn.text, self._cite)
        if self._attempts:
            return self._receive_forced(turn)
        if turn.calls:
            return self._judge(turn, turn.calls)
        if is_blank and (self._offer.in_play or turn.garbled):
            return self._ask() if self._may_ask_again(turn) else self._force()
        return self._respond(turn, Stop.ANSWER)

    def _may_ask_again(self, turn: Turn) -> bool:
        """Whether a blank turn may be asked for as it was: the first one may, within the limits."""
        return self.tally.turns == 1 and not turn.garbled and not self._limit_reached()

    def _servers(self, calls: Sequence[ToolCall]) -> Sequence[ToolCall]:
        return [call for call in calls if call.name not in self._offer.client_tools]

    def _is_out_of_tokens(self, turn: Turn) -> bool:
        """Whether a turn calls for another one although the model may write no more."""
        if self._attempts or any(turn.client_ids) or self.limits.output_left(self.tally) != 0:
            return False
        return not is_answer(turn)

    def _worth_another_try(self, turn: Turn) -> bool:
        """A forced answer that ran out of tokens before it said anything may be shorter when asked for otherwise."""
        return turn.finish_reason == "length" and 0 < self._attempts < ATTEMPTS and not turn.text.strip()

    def receive_results(self, results: Sequence[ToolResult]) -> Action:
        """Take the results of the last `CallTools`, in the order of its calls."""
        arrived = iter(results)
        answers: list[ToolResult] = []
        fresh: dict[tuple[str, str], ToolResult] = {}
        for verdict in self._verdicts:
            if verdict.run is not None:
                fresh[verdict.key] = self._browser.record(verdict.run, verdict.call.name, next(arrived))
            answers.append(verdict.result or fresh[verdict.key])
        for key, result in fresh.items():
            if result.sources:
                self._sources.update(result.sources)
            if not result.failed:  # what failed may succeed when it is tried again
                self._results[key] = result
        turn = self._judged_turn()
        if any(turn.client_ids):
            return self._respond(turn, Stop.CLIENT_TOOL_CALLS, self._continuation(turn, answers))
        self._earlier_turns.append(turn)
        self._stop = self._stop or self._limit_reached()
        self._remember(turn, answers)
        self._free_choice()
        return self._force() if self._stop else self._ask()

    def may_start(self, call: ToolCall, started: Collection[ToolCall]) -> ToolCall | None:
        """A call of a turn that is still being written, under its tool's own name, if it would be run.

        Args:
            call: as the model wrote it.
            started: the calls of this turn that have been started already.
        """
        try:
            tool, canonical = self._canonical(call)
        except ToolError:
            return None
        if not tool.eager or self._attempts or self._stop or self._expired:
            return None
        key = canonical.fingerprint
        if key in self._results or key in self._repeats or any(other.fingerprint == key for other in started):
            return None
        used = self.tally.total_tool_calls + len(started)
        of_tool = self.tally.tool_calls.get(tool.name, 0) + sum(other.name == tool.name for other in started)
        within = used < self.limits.max_tool_calls and (tool.max_calls is None or of_tool < tool.max_calls)
        return canonical if within else None

    # -- deciding what becomes of the calls of a turn --

    def _judge(self, turn: Turn, calls: Sequence[ToolCall]) -> Action:
        """Decide what becomes of the server's calls of a turn."""
        self._turn = turn
        if self._expired:
            self._stop = Stop.DEADLINE
        judged: dict[tuple[str, str], _Verdict] = {}
        self._verdicts = []
        runnable: list[ToolCall] = []
        for call in calls:
            verdict = self._verdict(call, judged)
            judged.setdefault(verdict.key, verdict)
            self._verdicts.append(verdict)
            if verdict.run is not None:
                runnable.append(verdict.run)
        return CallTools(tuple(runnable), self.tally.turns) if runnable else self.receive_results(())

    def _verdict(self, call: ToolCall, judged: Mapping[tuple[str, str], _Verdict]) -> _Verdict:
        """What becomes of one call, after the others of its turn have been `judged`."""
        try:
            tool, canonical = self._canonical(call)
        except ToolError as exc:
            return _Verdict(call, call.fingerprint, result=failure(str(exc)))
        key = canonical.fingerprint
        if key in judged:  # the same call twice in one turn: run once, answered twice
            return _Verdict(call, key, result=judged[key].result)
        if key in self._repeats:
            self._stop = self._stop or Stop.REPEATED_CALL
            return _Verdict(call, key, result=failure(REPEATED))
        if key in self._results:
            self._repeats.add(key)
            return _Verdict(call, key, result=_again(self._results[key]))
        if self._stop or not self._affordable(tool.name, tool.max_calls):
            return _Verdict(call, key, result=failure(BUDGET_USED))
        self.tally.count_call(tool)
        return _Verdict(call, key, run=canonical)

    def _canonical(self, call: ToolCall) -> tuple[ToolSpec, ToolCall]:
        """The tool that a call is for, and the call in its words. Raises `ToolError`."""
        tool = self._offer.owned.get(call.name)
        if tool is None:
            raise ToolError(f"There is no tool named {call.name!r}.")
        own = call if call.name == tool.name else replace(call, name=tool.name)
        return tool, self._browser.translated(own, call.name)

    def _affordable(self, tool: str, max_calls: int | None) -> bool:
        """Whether one more call is within the budget; a call that is not makes the run stop."""
        if self.tally.total_tool_calls >= self.limits.max_tool_calls:
            self._stop = Stop.MAX_TOOL_CALLS
            return False
        return max_calls is None or self.tally.tool_calls.get(tool, 0) < max_calls

    def _limit_reached(self) -> Stop | None:
        return Stop.DEADLINE if self._expired else self.limits.spent(self.tally)

    def _judged_turn(self) -> Turn:
        assert self._turn is not None  # noqa: S101 - results come after a turn
        return self._turn

    def _continuation(self, turn: Turn, answers: Sequence[ToolResult]) -> Continuation:
        """What the client does not see of this run, for when it comes back with the results of its own calls."""
        client_ids = {client_id: at for at, client_id in enumerate(turn.client_ids) if client_id}
        hidden = (at for at, entry in enumerate(turn.message["tool_calls"]) if self._is_servers(entry))
        results = {at: answer.content for at, answer in zip(hidden, answers, strict=True)}
        return Continuation(self._added(), turn.message, results, client_ids)

    def _added(self) -> tuple[Json, ...]:
        """The model's messages and the results of its calls so far, as they may stand in a later run's history."""
        messages = self._messages[self._given :]
        return tuple(_without_demand(message) for message in messages if message["role"] != "user")

    def _is_servers(self, entry: Json) -> bool:
        return entry.get("type", "function") == "function" and name_of(entry) not in self._offer.client_tools

    def _remember(self, turn: Turn, answers: Sequence[ToolResult]) -> None:
        """Put the turn and its results into the history, together."""
        self._messages.append(turn.message)
        for call, answer in zip(turn.calls, answers, strict=True):
            self._messages.append({"role": "tool", "tool_call_id": call.id, "content": answer.content})
        if note := self._note():
            self._messages[-1]["content"] = with_note(answers[-1], note)

    def _note(self) -> str | None:
        """What the model is told beside its results."""
        if self._stop or self._attempts:
            return ANSWER_NOW
        if not self.limits.guidance:
            return None
        calls = self.limits.max_tool_calls - self.tally.total_tool_calls
        return budget_left(calls, self.limits.max_turns - 1 - self.tally.turns)

    # -- asking --

    def _free_choice(self) -> None:
        """A demand to call one of the server's tools has been met."""
        if self._tool_choice is None:  # as nearly always
            return
        self._tool_choice = freed(self._tool_choice, self._offer)

    def _ask(self) -> CallUpstream:
        return CallUpstream(
            _body(self._bounded_request(), self._messages, self._offer.tools, self._tool_choice),
            number=self.tally.turns + 1,
            client_tools=self._offer.client_tools,
            run_id=self.id,
            separator=separator_after(self._shown_text),
            first_detail=self._details,
            forcing=self._forcing(),
            buffering=self._hold(),
            tools=self._schemas,
            json_expected=self._json_expected,
            cite=self._cite,
        )

    def _bounded_request(self) -> Json:
        """The request with what is left of the tokens that the model may write."""
        left = self.limits.output_left(self.tally)
        if left is None:
            return self._request
        return {**self._request, "max_tokens": max(1, left)}

    def _json_expected(self) -> bool:
        """Whether the client asks for JSON, by its `response_format` or in words."""
        if self._speaks_of_json is None:
            self._speaks_of_json = self._json_only or _speaks_of_json(self._request["messages"])
        return self._speaks_of_json

    def _hold(self) -> Buffering:
        """Text that only the last turn may show is held until the turn proves to be the last."""
        if self._json_only and self._offer.in_play:
            return Buffering.ALL
        return Buffering.START if self._attempts else Buffering.NONE

    # -- making the model answer --

    def _receive_forced(self, turn: Turn) -> Action:
        if is_answer(turn):
            return self._respond(turn, self._stop or Stop.ANSWER)
        if turn.calls:
            self._remember(turn, [failure(BUDGET_USED) for _ in turn.calls])
        return self._force()

    def _force(self) -> CallUpstream:
        """The next attempt at making the model answer."""
        if self._attempts == ATTEMPTS:
            raise NoFinalAnswer("The model did not give an answer in words, although it was asked in every known way.")
        self._attempts += 1
        self._free_choice()
        if ANSWER_NOW not in str(self._messages[-1].get("content")):
            self._messages.append({"role": "user", "content": ANSWER_NOW})
        return self._ask()

    def _forcing(self) -> Forcing | None:
        if not self._attempts:
            return None
        return Forcing(self._attempts - 1, self._offer.without_server_tools(), asked=self._given)

    # -- the end --

    def _respond(self, turn: Turn, stop: Stop, continuation: Continuation | None = None) -> Respond:
        message, finish_reason = visible_message(turn)
        return Respond(
            turn,
            message,
            finish_reason,
            stop,
            self.tally,
            self._sources,
            self._cite,
            continuation,
            turn.step,
            earlier_turns=tuple(self._earlier_turns),
            added=self._added(),
        )


def visible_message(turn: Turn) -> tuple[Json, str]:
    """A turn's message with the client's calls only, under the client's ids, and the finish_reason that fits it."""
    message = {**in_plain_text(turn.message)}
    calls, entries = message.pop("tool_calls", None), None
    if calls:
        pairs = zip(calls, turn.client_ids, strict=False)
        entries = [{**entry, "id": client_id} for entry, client_id in pairs if client_id]
    if entries:
        message["tool_calls"] = entries
    message.setdefault("content", None)
    if turn.finish_reason in BROKEN_OFF:
        return message, turn.finish_reason
    return message, "tool_calls" if entries else "stop"


def _is_blank(turn: Turn) -> bool:
    """Whether a turn says nothing at all; thoughts are not for the user."""
    return not turn.text.strip() and not any(turn.message.get(field) for field in _SAID_OTHERWISE)


def _without_demand(message: Json) -> Json:
    """A message of this run for a later one, whose budget is a new one."""
    if message["role"] != "tool":
        return message
    return {**message, "content": without_note(message["content"], ANSWER_NOW)}


def _again(result: ToolResult) -> ToolResult:
    return replace(result, content=f"{REPEATED}\n\n{result.content}")


def _asks_for_json(response_format: object) -> bool:
    return isinstance(response_format, dict) and response_format.get("type") in ("json_object", "json_schema")


def _speaks_of_json(messages: Sequence[Json]) -> bool:
    """Whether the client asks for JSON in words. OpenAI's own JSON mode demands that messages say so."""
    return any(message.get("role") in _ASKING and "json" in text_of(message).lower() for message in messages)


def _body(request: Json, messages: Sequence[Json], tools: Sequence[Json], choice: Any) -> Json:
    """The client's body with this turn's messages and tools; never an empty `tools`, which vLLM refuses."""
    body = {**request, "messages": list(messages)}
    if tools:
        body["tools"] = tools
    else:
        body.pop("tools", None)
        body.pop("parallel_tool_calls", None)
    if tools and choice:
        body["tool_choice"] = choice
    else:
        body.pop("tool_choice", None)
    return body
