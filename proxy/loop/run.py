"""The tool loop as a protocol, the way h11 writes HTTP: turns and results in, actions out.

    start_turn()             -> CallUpstream
    receive_turn(turn)       -> CallTools      the turn calls server tools
                              | CallUpstream   another turn has to follow at once
                              | Respond        the turn is the answer, or calls the client's tools
    receive_results(results) -> CallUpstream   the next turn
                              | Respond        the turn called the client's tools as well
    receive_refusal(full)    -> CallUpstream   the same turn, with less of the tools' results

`receive_turn` asks for another turn at once if none of the turn's calls may run, or if the turn has to be the answer
and is not. The effect of a turn depends on the state of the run (`_stop`, `_forcing`):

    free        its server calls are run
      |         a limit is reached at one of the calls, or once they are answered
    stopping    its further server calls are refused
      |         all calls are answered; straight from `free`: a second blank turn, a garbled one, no room for results
    forced(0)   the turn has to be the answer, and server calls alone are refused
      |         the turn is not the answer
    forced(1) -> forced(2) -> NoFinalAnswer

In every state, an answer, a turn that was broken off, and a turn with calls of the client's end the run. `expire` is
permitted at any time, and counts as a limit from the next turn or results on. The three attempts to get an answer
(`forcing`) may take two upstream calls more than `max_turns`.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

from msgspec.structs import replace

from proxy.loop.actions import Action, AnsweredCall, CallTools, CallUpstream, Respond, Stop
from proxy.loop.continuation import Continuation, Transcript, visible_message
from proxy.loop.decisions import (
    CallDecision,
    CallHistory,
    HasEnded,
    ReadArguments,
    ToolDialect,
    TurnDecisions,
    as_object,
)
from proxy.loop.forcing import Forcing, is_answer, is_blank, is_worth_another_attempt
from proxy.loop.limits import Limits
from proxy.loop.many_tools import query_of
from proxy.loop.offer import Offer, choice_after_first_turn, upstream_request
from proxy.loop.prompts import (
    ANSWER_NOW,
    BROKEN_OFF_BEFORE,
    BUDGET_USED,
    budget_guidance,
    budget_left,
    with_system_text,
)
from proxy.loop.results import ToolResult, halved, left_out
from proxy.loop.tally import Tally
from proxy.turn.citations import without_marks
from proxy.turn.details import DETAILS, count_indices
from proxy.turn.json_mode import demands_json, json_mode, with_bare_json
from proxy.turn.request import Buffering, TurnView
from proxy.turn.shown_text import separator_after
from proxy.wire.chat import BROKEN_OFF, Json, ToolCall, ToolSpec, Turn
from proxy.wire.errors import ContextFull
from proxy.wire.usage import add_usage

# Each cut halves the results. After three cuts, the rest is not worth another call.
_MOST_CUTS = 3


class Run:
    """The run of one choice of a client request: its turns, its tool calls, its answer.

    Args:
        request: the client's body, which is not modified.
        offer: the tools in play.
        limits: the limits of the run.
        run_id: 32 hexadecimal digits, unique; part of the ids of the client's own calls.
        dialect: for models with their own calls and citation marks; None if such marks stay in the text.
        earlier_sources: URL -> title of the pages that earlier runs have found.
        read_arguments: reads the arguments of calls for the history.
        awaits_check: whether the answer is checked before its text may be shown.

    Attributes:
        id: the `run_id`.
        awaits_check: as given.
        limits: the limits of the run.
        tally: the calls and tokens used so far, even if the run fails.
        sources: URL -> title of the pages that the calls of this run have found.
    """

    def __init__(
        self,
        request: Json,
        offer: Offer,
        limits: Limits,
        run_id: str = "0" * 32,
        *,
        dialect: ToolDialect | None = None,
        earlier_sources: Mapping[str, str] = MappingProxyType({}),
        read_arguments: ReadArguments = as_object,
        awaits_check: bool = False,
    ) -> None:
        self.id, self.limits, self.tally, self.awaits_check = run_id, limits, Tally(), awaits_check
        self.sources: dict[str, str] = {}
        self._earlier_sources = earlier_sources
        self._offer = offer
        self._request = upstream_request(request, offer)
        messages: Sequence[Json] = request["messages"]
        self._json_mode = partial(json_mode, self._request, messages)
        self._transcript = Transcript(messages)
        if limits.guidance:
            guidance = budget_guidance(offer.offered, limits.max_tool_calls, limits.max_turns - 1)
            self._transcript.given = with_system_text(messages, guidance)
        self._calls = CallHistory(
            offer.server_tools,
            limits,
            dialect,
            self.tally,
            self.sources,
            read=read_arguments,
            searchable=offer.searchable,
            unlisted=offer.unlisted,
        )
        self._cite = dialect.cite if dialect else None  # without a dialect, marks have no meaning
        self._turn: Turn  # the latest turn with calls
        self._decisions: list[CallDecision] = []  # about that turn's server calls
        self._answers: Sequence[ToolResult] = ()
        self._early: TurnDecisions | None = None  # about the complete calls of a turn that is still being written
        self._earlier_turns: list[Turn] = []
        # If the client asks for JSON, only the text of the last turn is the answer, and only if that turn does not call
        # the client's tools. Without tools, the first turn is the last, and its text need not be held back.
        shows_last_only = awaits_check or (demands_json(request) and bool(offer.tools))
        self._buffering = Buffering.TEXT if shows_last_only else Buffering.NONE
        self._shown_text = ""  # of the latest turn with text that the client was shown
        self._detail_count = 0  # how many indices `reasoning_details` have used in the client's stream
        self._stop: Stop | None = None
        self._forcing: Forcing | None = None
        self._expired = False
        self._cuts = 0  # how often results were cut for the next turn

    def expire(self) -> None:
        """End the run at its deadline: no more tools and rounds start, and the model is made to answer."""
        self._expired = True

    def count_unfinished(self, used: Json | None) -> None:
        """Count the tokens of an upstream call that ended without a turn."""
        self.tally.usage = add_usage(self.tally.usage, used)

    def count_dropped(self, calls: Iterable[tuple[ToolCall, ToolResult | None]]) -> None:
        """Count early calls that were dropped, with their results if they have any."""
        self._early = None
        self._calls.count_dropped(calls)

    def start_turn(self) -> CallUpstream:
        """Ask for the next or the first turn: the client's request, with the messages of the run."""
        self._early = None
        body = {**self._request, "messages": [*self._transcript.given, *self._transcript.added]}
        if "tool_choice" in body and (self._transcript.added or self._forcing):
            body["tool_choice"] = choice_after_first_turn(body["tool_choice"], self._offer)
        if (left := self.limits.output_left(self.tally)) is not None:
            body["max_tokens"] = max(1, left)
        text = without_marks(self._shown_text, self._cite)[0] if self._shown_text else ""
        buffering = self._buffering
        if self._forcing:
            buffering = Buffering.START if buffering is Buffering.NONE else Buffering.ALL
        view = TurnView(
            self._offer.client_tools,
            self._offer.schemas,
            separator=separator_after(text) if text else None,
            first_detail=self._detail_count,
            buffering=buffering,
            cite=self._cite,
            json_mode=self._json_mode,
        )
        return CallUpstream(body, self.tally.turns + 1, self.id, view=view, forcing=self._forcing)

    def receive_turn(self, turn: Turn, has_ended: HasEnded | None = None) -> Action:
        """Take the upstream's answer to the last `CallUpstream`.

        Args:
            turn: the answer.
            has_ended: whether a call of the turn was started early and already has a result; None if none was started.

        Raises:
            NoFinalAnswer: after the last attempt.
        """
        self.tally.turns += 1
        self.tally.usage = add_usage(self.tally.usage, turn.usage)
        if DETAILS in turn.message:
            self._detail_count += count_indices(turn.message)
        calls_client = any(turn.client_ids)
        out_of_tokens = self.limits.output_left(self.tally) == 0
        if out_of_tokens and not (self._forcing or calls_client or self._is_answer(turn)):
            turn = replace(turn, finish_reason="length")  # another turn would have to follow, but no token is left
        if turn.finish_reason in BROKEN_OFF and (calls_client or not is_worth_another_attempt(turn, self._forcing)):
            return self._receive_broken_off(turn)
        if not turn.buffered and (text := turn.text).strip():
            self._shown_text = text
        if calls_client or (turn.calls and not self._forcing):
            return self._decide_calls(turn, has_ended)
        if self._forcing:
            if self._is_answer(turn):
                return self._respond(turn)
            if turn.calls:
                refusals = self._calls.refuse(turn.calls, BUDGET_USED)
                self._transcript.add(self._calls.in_history(turn), refusals, ANSWER_NOW)
            return self._force()
        if (self._offer.offered or turn.garbled) and is_blank(turn):
            return self._receive_blank(turn)
        return self._respond(turn)

    def receive_refusal(self, full: ContextFull) -> CallUpstream:
        """Take the upstream's refusal of the last `CallUpstream`: the conversation is longer than the model's context.

        Raises:
            ContextFull: `full` itself, if the run has added no results, or was already made to answer without them.
        """
        again = self._make_room()
        if again is None:
            raise full
        return again

    def _make_room(self) -> CallUpstream | None:
        """Ask for the turn again with shorter results, and finally for the answer without results.

        Cutting short results makes no room, but a request for the answer without tools may fit. None: nothing is left
        to try.
        """
        if self._cuts < _MOST_CUTS and self._transcript.shorten_results(halved):
            self._cuts += 1
            return self.start_turn()
        less = self._transcript.shorten_results(left_out)
        if self._forcing:
            return self.start_turn() if less else None
        return self._force() if any(message["role"] == "tool" for message in self._transcript.added) else None

    def _receive_broken_off(self, turn: Turn) -> CallUpstream | Respond:
        """End the run with a turn that was broken off, unless the turn is blank because the model's context is full."""
        if turn.fills_context and is_blank(turn) and (again := self._make_room()):
            if not turn.buffered:  # its thoughts were shown
                self._earlier_turns.append(turn)
            return again
        not_run = self._calls.refuse(turn.server_calls, BROKEN_OFF_BEFORE)
        return self._respond(turn, continuation=self._hidden_part(turn, not_run) if any(turn.client_ids) else None)

    def _receive_blank(self, turn: Turn) -> CallUpstream:
        """Ask once more after a blank first turn; force an answer after a later or garbled turn, or at a limit."""
        if not turn.buffered:  # its thoughts were shown
            self._earlier_turns.append(turn)
        is_first = self.tally.turns == 1 and not turn.garbled
        at_limit = self.limits.spent(self.tally, expired=self._expired)
        return self.start_turn() if is_first and not at_limit else self._force()

    def receive_results(self, results: Sequence[ToolResult]) -> Action:
        """Take the results of the last `CallTools`, in the order of its calls."""
        turn, self._answers = self._turn, self._calls.finish(self._decisions, results)
        self._cuts = 0
        if any(turn.client_ids):
            return self._respond(turn, Stop.CLIENT_TOOL_CALLS, self._hidden_part(turn, self._answers))
        self._earlier_turns.append(turn)
        self._turn = turn = self._calls.in_history(turn)
        self._stop = self._stop or self.limits.spent(self.tally, expired=self._expired)
        if self._stop:
            self._transcript.add(turn, self._answers, ANSWER_NOW)
            return self._force()
        note, limits, used = None, self.limits, self.tally
        if limits.guidance:
            note = budget_left(limits.max_tool_calls - used.calls, limits.max_turns - 1 - used.turns)
        self._transcript.add(turn, self._answers, note)
        return self.start_turn()

    def take_answered(self) -> list[AnsweredCall]:
        """The calls of the latest turn that the server has answered. Each call is returned once."""
        answers, self._answers = self._answers, ()
        if not answers:
            return []
        contents = self._transcript.contents_of(self._turn, answers)
        return [
            AnsweredCall(
                decision.to_run or decision.call,
                decision.tool.name if decision.tool else "",
                0 if decision.to_run is None else decision.counts,
                answer,
                content,
            )
            for decision, answer, content in zip(self._decisions, answers, contents, strict=True)
        ]

    def would_run(self, call: ToolCall) -> ToolCall | None:
        """The next call of a turn that is being written, resolved; None: the call would be answered without running.

        The call is as the model wrote it, with complete arguments.
        """
        self._early = self._early or TurnDecisions(self._calls, hints=0)  # only which calls are run matters yet
        resolved = self._early.decide(call).to_run
        if self._forcing or self._stop or self._expired:
            return None
        return resolved

    def may_start(self, resolved: ToolCall) -> bool:
        """Whether a resolved call that would be run may start before its turn is complete."""
        tool = self._offer.server_tools.get(resolved.name)  # None: the client has a tool of that name
        return tool is not None and tool.eager

    def sought(self, call: ToolCall) -> tuple[str, Mapping[str, ToolSpec]]:
        """The query of a call of `find_tools`, and the tools that it may find. Raises `InvalidArguments`."""
        return query_of(self._calls.read(call)), self._offer.searchable

    def _decide_calls(self, turn: Turn, has_ended: HasEnded | None) -> Action:
        """Run the turn's server calls that may run; if there are none, continue as after results."""
        self._stop = self.limits.exhausted(self.tally, expired=self._expired) or self._stop
        made = TurnDecisions(self._calls, self._stop, has_ended)
        self._turn, self._decisions = turn, [made.decide(call) for call in turn.server_calls]
        if self._decisions:
            self._stop = self._decisions[-1].stop
        runnable = self._calls.begin(self._decisions)
        return CallTools(runnable) if runnable else self.receive_results(())

    def _is_answer(self, turn: Turn) -> bool:
        return is_answer(turn, self._offer.schemas, json_mode=self._json_mode)

    def _force(self) -> CallUpstream:
        """Begin the next attempt at making the model answer."""
        first = Forcing(0, self._offer.client_entries, given=len(self._transcript.given))
        self._forcing = self._forcing.next() if self._forcing else first
        self._transcript.demand_answer()
        return self.start_turn()

    def _hidden_part(self, turn: Turn, answers: Sequence[ToolResult]) -> Continuation:
        """The hidden part of a run that ends in the client's own calls."""
        return Continuation.of_turn(self._calls.in_history(turn), answers, self._transcript.added, self.sources)

    def _respond(self, turn: Turn, stop: Stop | None = None, continuation: Continuation | None = None) -> Respond:
        if self._buffering is Buffering.TEXT and any(turn.client_ids):
            turn = replace(turn, buffered=())
            message, finish_reason = visible_message(turn, with_text=False)
        else:
            if self._buffering is Buffering.TEXT and turn.finish_reason not in BROKEN_OFF:
                turn = with_bare_json(turn)
            message, finish_reason = visible_message(turn)
        return Respond(
            turn,
            message,
            finish_reason,
            stop=stop or self._stop or Stop.ANSWER,
            tally=self.tally,
            sources={**self._earlier_sources, **self.sources},
            cite=self._cite,
            continuation=continuation,
            step=turn.step,
            earlier_turns=tuple(self._earlier_turns),
            added=tuple(self._transcript.added),
        )
