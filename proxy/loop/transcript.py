"""The conversation of a run as the model reads it."""

from collections.abc import Sequence

from msgspec import Struct

from proxy.loop.chat import Json, Turn
from proxy.loop.continuation import storable
from proxy.loop.prompts import ANSWER_NOW
from proxy.loop.results import ToolResult, halved, left_out, with_note


class Transcript(Struct):
    """The messages of a run: the client's, followed by those that the run adds. No message is ever removed.

    Where the model's context is full, the results that the run has added are cut; the client's messages never are.

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
        """The answers to a turn's calls as the model reads them: with notes, if the turn has been added."""
        for at in range(len(self.added) - 1, -1, -1):
            if self.added[at] is turn.message:
                return [message["content"] for message in storable(self.added[at + 1 : at + 1 + len(answers)])]
        return [answer.content for answer in answers]

    def demand_answer(self) -> None:
        """Add a message that asks for the answer, unless the last result asks for it already."""
        latest = (self.added or self.given)[-1]
        if ANSWER_NOW not in str(latest.get("content")):
            self.added.append({"role": "user", "content": ANSWER_NOW})

    def halve_results(self) -> bool:
        """Cut results to half, the longest first, until all have half their length; whether any could be cut."""
        results = self._results()
        to_cut = sum(map(len, results.values())) // 2
        cut: dict[int, str] = {}
        for at, content in sorted(results.items(), key=lambda result: -len(result[1])):
            if to_cut <= 0:
                break
            cut[at] = halved(content)
            to_cut -= len(content) // 2
        return self._replace(cut)

    def leave_out_results(self) -> bool:
        """Replace the text of each result by a note; whether any could be replaced."""
        return self._replace({at: left_out(content) for at, content in self._results().items()})

    def _results(self) -> dict[int, str]:
        """The results that the run has added: position -> content."""
        return {at: message["content"] for at, message in enumerate(self.added) if message["role"] == "tool"}

    def _replace(self, contents: dict[int, str]) -> bool:
        """Replace the contents of results; whether any is another one. Messages are shared, so they are not changed."""
        changed = {at: content for at, content in contents.items() if content != self.added[at]["content"]}
        for at, content in changed.items():
            self.added[at] = {**self.added[at], "content": content}
        return bool(changed)
