"""The turns of the loop in a message of the assistant, as they are read back from its content blocks.

One message may hold several turns: thoughts, text, calls and results, then thoughts again, and so on. Only the order of
the blocks tells the turns apart: the first block after results that is not a result begins the next turn.
"""

from collections.abc import Mapping

from msgspec import Struct

from proxy.api.history import PastCall, PastResult, assistant_message
from proxy.api.messages.call_ids import id_in_run
from proxy.api.messages.parts import BETWEEN
from proxy.turn.opaque_fields import OpaqueFields
from proxy.wire.chat import Json
from proxy.wire.tokens import CountedMessage


class BlockCall(PastCall, kw_only=True):
    """A call of a turn; `block_id` is its id in the client's block, `id` its id in the chat request."""

    block_id: str
    is_server_tool: bool


class PastTurn(Struct):
    """An upstream turn, read back from an assistant message: its thoughts, text and calls.

    `origin` is the run and turn in the ids of its calls; None: the ids were not made here. `carried` are the fields
    that the signature of its thoughts holds for it. Once the turn is read, `message` is that of the chat.
    """

    thoughts: list[str] = []
    texts: list[str] = []
    calls: list[BlockCall] = []
    has_results: bool = False
    ends_with_citation: bool = False
    origin: str | None = None
    carried: OpaqueFields = OpaqueFields()
    message: Json = {}
    _by_id: dict[str, BlockCall] = {}

    def add_text(self, text: str, *, is_cited: bool) -> None:
        """Add a block of text as a new paragraph, unless it continues a text that was split at a citation."""
        if self.texts and not (is_cited or self.ends_with_citation):
            self.texts.append(BETWEEN)
        self.texts.append(text)
        self.ends_with_citation = is_cited

    def add_call(self, call: BlockCall) -> None:
        """Add a call; of several with one id, results belong to the first."""
        self.calls.append(call)
        self._by_id.setdefault(call.id, call)

    def call(self, call_id: object) -> BlockCall | None:
        """The call that was added with that id."""
        return self._by_id.get(call_id) if isinstance(call_id, str) else None

    def result_of(self, call: BlockCall, answers: Mapping[str, PastResult]) -> PastResult | None:
        """The result of a call of the turn: its own, or the client's in `answers`, by id."""
        return call.result or (answers.get(call.id) if self._by_id[call.id] is call else None)

    def close(self) -> None:
        """Make the message, without server calls that have no result; its server calls have their ids in the run."""
        self.calls = [call for call in self.calls if call.result is not None or not call.is_server_tool]
        for call in self.calls:
            if call.is_server_tool:
                call.id = id_in_run(call.id)
        message = assistant_message("".join(self.texts), self.thoughts, self.calls)
        self.message = CountedMessage(self.carried.put_into(message) if self.carried else message)


class Result(Struct, frozen=True):
    """A result of a client's call, in the block with the number `at` of its message; `given` is the id in the block."""

    at: int
    given: str
    call_id: str
    result: PastResult
