"""The turns of the loop in an assistant message of content blocks."""

from collections.abc import Iterator

import orjson
from msgspec import Struct

from proxy.api.history import PastCall, assistant_message, with_results
from proxy.api.messages.parts import BETWEEN, refuse
from proxy.loop.carried import Carried
from proxy.loop.chat import Json
from proxy.loop.errors import RequestError


class ReplayedCall(PastCall, kw_only=True):
    """A call of a turn; `block_id` is its id in the client's block, `id` its id in the chat request."""

    block_id: str
    is_server_tool: bool


class ReplayedTurn(Struct):
    """An upstream turn, read back from an assistant message: its thoughts, text and calls.

    `origin` is the run and turn in the ids of its calls; None: the ids were not made here. `carried` are the fields
    that the signature of its thoughts holds for it.
    """

    thoughts: list[str] = []
    texts: list[str] = []
    calls: list[ReplayedCall] = []
    has_results: bool = False
    ends_with_citation: bool = False
    origin: str | None = None
    carried: Carried = Carried()
    _by_id: dict[str, ReplayedCall] = {}

    def continues_with(self, origin: str | None) -> bool:
        """Whether a call of this origin belongs to the turn, although it comes after the turn's results."""
        return origin is not None and origin == self.origin

    def add_text(self, text: str, *, is_cited: bool) -> None:
        """Add a block of text as a new paragraph, unless it continues a text that was split at a citation."""
        if self.texts and not (is_cited or self.ends_with_citation):
            self.texts.append(BETWEEN)
        self.texts.append(text)
        self.ends_with_citation = is_cited

    def add_call(self, call: ReplayedCall) -> None:
        """Add a call; of several with one id, results belong to the first."""
        self.calls.append(call)
        self._by_id.setdefault(call.id, call)

    def call(self, call_id: object) -> ReplayedCall | None:
        """The call that was added with that id."""
        return self._by_id.get(call_id) if isinstance(call_id, str) else None

    def messages(self) -> Iterator[Json]:
        """The turn in the chat; the pictures of its results become a part of what the user says next."""
        message = assistant_message("".join(self.texts), self.thoughts, self.calls)
        message = self.carried.put_into(message) if self.carried else message
        return with_results(message, [call.result for call in self.calls if call.result])


def read_call(block: Json, where: str) -> ReplayedCall:
    """The call in the block at `where`. Raises `RequestError`."""
    for key in ("id", "name"):
        if not isinstance(block.get(key), str) or not block[key]:
            refuse(f"{where}.{key}", "must be a string")
    given = block.get("input")
    try:
        arguments = orjson.dumps({} if given is None else given).decode()
    except orjson.JSONEncodeError as exc:
        raise RequestError(f"{where}.input: is nested too deep", param=f"{where}.input") from exc
    is_server_tool = block["type"] != "tool_use"
    return ReplayedCall(block["id"], block["name"], arguments, block_id=block["id"], is_server_tool=is_server_tool)
