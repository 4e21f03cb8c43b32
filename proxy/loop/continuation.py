"""The messages of a run, and the part of them that is hidden from a client when the run ends in its own tool calls.

    upstream     assistant(search, open_door)   tool(search)   tool(open_door)
    client       assistant(open_door)                          tool(open_door)

The proxy makes the ids of the client's calls, `call_RUN_N`, for two reasons: an upstream's ids repeat between
conversations, and a stream starts before the proxy knows whether its turn is mixed. The messages that the run added to
the conversation are stored under RUN: the earlier turns, the assistant message as received, and the results of its
server calls. If a history has such an id, the hidden part is put back, with the upstream's own ids. If nothing is
stored under RUN any more, the history stays as it is, complete except for the hidden part.

If a client is shown the whole run, only the fields that the client cannot send back are stored (`carried`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

from msgspec import Struct, ValidationError, convert

from proxy.loop.prompts import ANSWER_NOW, NO_RESULT
from proxy.loop.results import ToolResult, with_note, without_note
from proxy.turn.call_ids import OURS, SHORTEST
from proxy.turn.opaque_fields import OpaqueFields
from proxy.wire.chat import BROKEN_OFF, Json, Turn, in_plain_text


class Continuation(Struct, frozen=True):
    """The hidden part of a run.

    Attributes:
        before: the messages that the run added to the conversation before its last turn.
        message: the last turn's assistant message as received, with every call.
        results: the results of its server calls: position in `tool_calls` -> content.
        client_ids: the client's calls in it: the id that the client got -> position.
        sources: URL -> title of the pages that the run's own tools returned; a later answer may cite them.
    """

    before: tuple[Json, ...]
    message: Json
    results: Mapping[int, str]
    client_ids: Mapping[str, int]
    sources: Mapping[str, str] = MappingProxyType({})

    @classmethod
    def of_turn(
        cls,
        turn: Turn,
        answers: Sequence[ToolResult],
        added: Iterable[Json],
        sources: Mapping[str, str] = MappingProxyType({}),
    ) -> "Continuation":
        """The hidden part of a run that ends with this turn.

        Args:
            turn: a turn with calls of the client's tools.
            answers: the answers to its other calls, in order.
            added: the messages that the run added to the conversation before the turn.
            sources: the sources of the run.
        """
        at_server = [
            at
            for at, (entry, client_id) in enumerate(turn.entries)
            if client_id is None and entry.get("type", "function") == "function"
        ]
        results = {at: answer.content for at, answer in zip(at_server, answers, strict=True)}
        client_ids = {client_id: at for at, client_id in enumerate(turn.client_ids) if client_id}
        return cls(tuple(storable(added)), turn.message, results, client_ids, sources)

    def as_json(self) -> Json:
        """The JSON for a store."""
        return {
            "before": list(self.before),
            "message": self.message,
            "results": {str(at): content for at, content in self.results.items()},
            "client_ids": dict(self.client_ids),
            **({"sources": dict(self.sources)} if self.sources else {}),
        }

    @classmethod
    def from_json(cls, stored: Any) -> "Continuation | None":
        """A continuation from the JSON of a store or a client; None if this version cannot put it back."""
        try:
            found = convert(stored, cls, str_keys=True)
        except ValidationError:
            return None
        calls = found.message.get("tool_calls")
        return found if isinstance(calls, list) and all(isinstance(call, dict) for call in calls) else None

    def restored(self, answers: Mapping[str, Json]) -> list[Json]:
        """The messages with the upstream's ids; `answers`: the id that the client got -> its tool message."""
        by_position = {at: answers.get(client_id) for client_id, at in self.client_ids.items()}
        restored = [*self.before, self.message]
        for at, call in enumerate(self.message["tool_calls"]):
            answer = by_position.get(at) or {"role": "tool", "content": self.results.get(at, NO_RESULT)}
            restored.append({**answer, "tool_call_id": call.get("id")})
        return restored


class Transcript(Struct):
    """The messages of a run: the client's messages, followed by messages that the run adds. No message is ever removed.

    If the model's context is full, the results that the run has added are cut. The client's messages are never cut.

    A turn's assistant message is added as received, followed by one tool message per call, in the order of the calls.
    Without the assistant message, GLM gives a blank answer.

    Attributes:
        given: the client's messages, with the proxy's guidance.
        added: the messages that the run has added.
    """

    given: Sequence[Json]
    added: list[Json] = []

    def add(self, turn: Turn, answers: Sequence[ToolResult], note: str | None) -> None:
        """Add a turn and the answers to all of its calls, the last answer with a note to the model."""
        self.added.append(turn.message)
        for call, answer in zip(turn.calls, answers, strict=True):
            self.added.append({"role": "tool", "tool_call_id": call.id, "content": answer.content})
        if note is not None:
            self.added[-1]["content"] = with_note(answers[-1], note)

    def contents_of(self, turn: Turn, answers: Sequence[ToolResult]) -> list[str]:
        """The answers to a turn's calls as the model reads them, with notes if the turn has been added."""
        for at in range(len(self.added) - 1, -1, -1):
            if self.added[at] is turn.message:
                return [message["content"] for message in storable(self.added[at + 1 : at + 1 + len(answers)])]
        return [answer.content for answer in answers]

    def demand_answer(self) -> None:
        """Add a message that asks for the answer, unless the last result asks for it already."""
        latest = (self.added or self.given)[-1]
        if ANSWER_NOW not in str(latest.get("content")):
            self.added.append({"role": "user", "content": ANSWER_NOW})

    def shorten_results(self, shorten: Callable[[str], str]) -> bool:
        """Shorten each result, and return whether any has changed. Shared messages are copied, not changed."""
        before = [*self.added]
        for at, message in enumerate(before):
            if message["role"] == "tool" and (content := shorten(message["content"])) != message["content"]:
                self.added[at] = {**message, "content": content}
        return self.added != before


CarriedTurns: TypeAlias = tuple[OpaqueFields, ...]
"""The fields to carry for the turns of a run, if the client is shown everything else."""


def as_json(hidden: Continuation | CarriedTurns) -> Json:
    """The stored form of a run's hidden messages, as JSON."""
    return {"carried": [turn.as_json() for turn in hidden]} if isinstance(hidden, tuple) else hidden.as_json()


def from_json(stored: Any) -> Continuation | CarriedTurns | None:
    """A run's hidden messages from their stored form; None if this version cannot read them."""
    match stored:
        case {"carried": [*turns]}:
            return tuple([turn for held in turns if (turn := OpaqueFields.from_json(held)) is not None])
        case _:
            return Continuation.from_json(stored)


def visible_message(turn: Turn, *, with_text: bool = True) -> tuple[Json, str]:
    """A turn's message with only the client's calls, under the client's ids, and the finish_reason for it."""
    message = {**in_plain_text(turn.message)}
    if not with_text:
        message |= dict.fromkeys(("content", "refusal"))
    entries: list[Json] = []
    if message.pop("tool_calls", None):
        entries = [{**entry, "id": client_id} for entry, client_id in turn.entries if client_id]
        for index, entry in enumerate(entries):
            if "index" in entry:  # GLM writes one, and it counts hidden calls
                entry["index"] = index
    if entries:
        message["tool_calls"] = entries
    message.setdefault("content", None)
    if turn.finish_reason in BROKEN_OFF:
        return message, turn.finish_reason
    return message, "tool_calls" if entries else "stop"


def storable(added: Iterable[Json]) -> list[Json]:
    """The messages that a run added, for the history of a later run: without the demands for an answer at a limit."""
    return [
        {**message, "content": without_note(message["content"], ANSWER_NOW)} if message["role"] == "tool" else message
        for message in added
        if message["role"] != "user"
    ]


def runs_in(messages: Sequence[Json]) -> dict[str, bool]:
    """The ids of the runs in a history, in order; each with whether the run has a client call."""
    runs: dict[str, bool] = {}
    ids = [call.get("id") for message in messages if (calls := message.get("tool_calls")) for call in calls]
    ids += [message.get("tool_call_id") for message in messages if message.get("role") == "tool"]
    for identity in ids:  # most are too short to be ours
        if isinstance(identity, str) and len(identity) >= SHORTEST and (match := OURS.fullmatch(identity)) is not None:
            runs[match[1]] = runs.get(match[1], False) or not match[2]
    return runs


def put_back(messages: Sequence[Json], found: Mapping[str, Continuation | CarriedTurns]) -> list[Json]:
    """The history with the stored messages of its runs put back."""
    parts = {run: hidden for run, hidden in found.items() if isinstance(hidden, Continuation)}
    restored = _with_hidden_parts(messages, parts) if parts else list(messages)
    turns = [turn for hidden in found.values() if isinstance(hidden, tuple) for turn in hidden]
    if by_call := {call_id: turn for turn in turns for call_id in turn.calls}:
        for at, message in enumerate(restored):
            ids = [call.get("id") for call in message.get("tool_calls") or ()]
            if turn := next((by_call[call_id] for call_id in ids if call_id in by_call), None):
                restored[at] = turn.put_into(message)
    return restored


def _with_hidden_parts(messages: Sequence[Json], found: Mapping[str, Continuation]) -> list[Json]:
    """The history with every `found` hidden part put back.

    The client may have rearranged its messages: calls of one turn in several messages, missing messages, results in
    another order. Therefore the whole run replaces the first message that belongs to it, and the run's other messages
    are left out. Calls that belong to no `found` run follow in a separate message.
    """
    answers = {
        message["tool_call_id"]: message
        for message in messages
        if message.get("role") == "tool" and isinstance(message.get("tool_call_id"), str)
    }
    restored: list[Json] = []
    done: set[str] = set()
    for message in messages:
        runs = [run for run in _runs_of(message) if run in found]
        for run in runs:
            if run not in done:
                done.add(run)
                restored += found[run].restored(answers)
        if not runs:
            restored.append(message)
        elif others := [call for call in message.get("tool_calls") or () if _run_of(call.get("id")) not in found]:
            restored.append({"role": "assistant", "content": None, "tool_calls": others})
    return restored


def _runs_of(message: Json) -> list[str]:
    """The runs that a message belongs to, by the ids of its calls or of the call that it answers."""
    ids = [message.get("tool_call_id")] if message.get("role") == "tool" else []
    ids += [call.get("id") for call in message.get("tool_calls") or ()]
    return list(dict.fromkeys(run for run in map(_run_of, ids) if run is not None))


def _run_of(identity: object) -> str | None:
    """The run that a call's id names; None if the proxy did not make the id."""
    match = OURS.fullmatch(identity) if isinstance(identity, str) else None
    return match[1] if match else None
