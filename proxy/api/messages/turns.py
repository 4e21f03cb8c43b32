"""The turns of the loop that an assistant message in content blocks holds."""

from collections.abc import Iterator

import orjson
from msgspec import Struct

from proxy.api.messages.parts import refuse
from proxy.loop.chat import Json
from proxy.loop.errors import RequestError


class ReplayedCall(Struct):
    """A call of a turn and its result; None: still to come.

    `block_id` is the id that the client knows it by, `id` the one that it has in the chat request.
    """

    block_id: str
    id: str
    name: str
    arguments: str
    is_server_tool: bool = False
    result: str | None = None
    pictures: list[Json] = []

    def as_chat(self) -> Json:
        """The entry in an assistant message's `tool_calls`."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


class ReplayedTurn(Struct):
    """An upstream turn, read back from an assistant message: its thoughts, text and calls.

    `origin` is the run and turn that the ids of its calls name; None: they were not made here.
    """

    thoughts: list[str] = []
    texts: list[str] = []
    calls: list[ReplayedCall] = []
    has_results: bool = False
    ends_with_citation: bool = False
    origin: str | None = None

    def continues_with(self, origin: str | None) -> bool:
        """Whether a call of this origin belongs to the turn, though it stands behind the turn's results."""
        return origin is not None and origin == self.origin

    def add_text(self, text: str, *, is_cited: bool) -> None:
        """Add a block of text: a paragraph of its own, unless a text was cut into blocks at what it cites."""
        if self.texts and not (is_cited or self.ends_with_citation):
            self.texts.append("\n\n")
        self.texts.append(text)
        self.ends_with_citation = is_cited

    def call(self, call_id: object) -> ReplayedCall | None:
        """Its call with that id."""
        return next((call for call in self.calls if call.id == call_id), None)

    def messages(self) -> Iterator[Json]:
        """The assistant message, one message per result, and the pictures of all results."""
        text = "".join(self.texts)
        if not (text or self.calls):  # thoughts alone are no message: some upstreams refuse an empty one
            return
        message: Json = {"role": "assistant", "content": text or None}
        if self.thoughts:
            message["reasoning_content"] = "\n".join(self.thoughts)
        if self.calls:
            message["tool_calls"] = [call.as_chat() for call in self.calls]
        yield message
        for call in self.calls:
            yield {"role": "tool", "tool_call_id": call.id, "content": call.result}
        if pictures := [part for call in self.calls for part in call.pictures]:
            yield {"role": "user", "content": pictures}


def read_call(block: Json, where: str) -> ReplayedCall:
    """The call in a block. Raises `RequestError` that names the place `where` the block stands."""
    for key in ("id", "name"):
        if not isinstance(block.get(key), str) or not block[key]:
            refuse(f"{where}.{key}", "must be a string")
    given = block.get("input")
    try:
        arguments = orjson.dumps({} if given is None else given).decode()
    except orjson.JSONEncodeError as exc:
        raise RequestError(f"{where}.input: is nested too deep", param=f"{where}.input") from exc
    return ReplayedCall(block["id"], block["id"], block["name"], arguments)
