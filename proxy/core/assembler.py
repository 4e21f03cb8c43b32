"""Chunks -> one Turn, and what of each chunk may be shown now.

The assembler *removes* from a chunk what must not be shown and never rebuilds one from known keys: a field that a
provider adds tomorrow survives. What it takes away:

    role              the client's stream has one role delta, sent before anything else
    tool calls        the server's are hidden; the client's own are re-indexed without gaps and shown as they come
    finish_reason     which turn is the last is known only at its end
    usage             summed over the turns by the run
    blank beginnings  GLM-4.5 opens with a lone newline before it thinks; it is shown when text follows

Known only at the end of a turn: whether it is the answer. A turn that was *made* to answer may still fail to, so its
beginning is held back until enough text has come to tell.
"""

from collections.abc import Container
from dataclasses import dataclass, field

import orjson

from proxy.core.chat import TEXT_FIELDS, Json, Turn, calls_of
from proxy.core.errors import UpstreamError

# A forced turn that has written this much text is taken for an answer and shown from then on. "I'll search for ..."
# before one more tool call is shorter; at a model's usual pace the wait is a second or two.
PROOF_CHARACTERS = 160

_CHOICE_KEYS = ("index", "delta", "message", "finish_reason")
_NOT_IN_ENVELOPE = ("choices", "usage")


@dataclass(slots=True)
class _Call:
    """A tool call on its way in."""

    id: str = ""
    type: str = "function"
    name: str = ""
    arguments: list[str] = field(default_factory=list)
    shown_as: int | None = None  # its index in the client's stream

    def message_entry(self, position: int) -> Json:
        function = {"name": self.name, "arguments": "".join(self.arguments)}
        return {"id": self.id or _missing_id(position), "type": self.type, "function": function}


class Assembler:
    """Takes the chunks of one upstream stream in and gives one `Turn` out.

    Args:
        client_tools: names of the client's own functions; calls of any other are not shown.
        separator: put before the turn's first text, in place of its leading newlines.
        hold: hold the beginning back until the turn shows itself to be an answer.
    """

    def __init__(self, *, client_tools: Container[str] = frozenset(), separator: str = "", hold: bool = False) -> None:
        self._client_tools = client_tools
        self._separator = separator
        self._hold = hold
        self._held: list[Json] = []
        self._blank = ""
        self._text_begun = False
        self._texts: dict[str, list[str]] = {}
        self._text_length = 0
        self._calls: dict[int, _Call] = {}
        self._shown_calls = 0
        self._envelope: Json = {}
        self._choice: Json = {}
        self._usage: Json | None = None
        self._finish_reason: str | None = None

    @property
    def usage(self) -> Json | None:
        """The upstream's count so far: for the books when a stream breaks off."""
        return self._usage

    def feed(self, chunk: Json) -> list[Json]:
        """Take one chunk in (and apart) and return what may be shown now, in order."""
        for key, value in chunk.items():
            if key not in _NOT_IN_ENVELOPE:
                self._envelope.setdefault(key, value)
        self._usage = chunk.pop("usage", None) or self._usage
        visible: list[Json] = []
        for choice in chunk.get("choices") or ():
            if choice.get("index", 0) == 0 and self._take(choice):
                visible = [{**chunk, "choices": [choice]}]
        return self._release(visible)

    def finish(self) -> Turn:
        """The whole turn.

        Raises:
            UpstreamError: the stream ended without a finish_reason, so nothing in it can be relied on.
        """
        if self._finish_reason is None:
            raise UpstreamError("the upstream's stream ended without a finish_reason")
        message: Json = {"role": "assistant"}
        message.update({key: text for key, parts in self._texts.items() if (text := "".join(parts))})
        if self._calls:
            message["tool_calls"] = [call.message_entry(at) for at, (_, call) in enumerate(sorted(self._calls.items()))]
        else:
            message.setdefault("content", "")
        choice = {**self._choice, "index": 0, "message": message, "finish_reason": self._finish_reason}
        return Turn(choice, self._envelope, calls_of(message), self._usage, tuple(self._held))

    def _take(self, choice: Json) -> bool:
        """Fold a choice in, remove what must not be shown from it, and say whether anything is left."""
        self._finish_reason = choice.pop("finish_reason", None) or self._finish_reason
        choice["finish_reason"] = None
        delta = choice.get("delta") or {}
        choice["delta"] = delta
        delta.pop("role", None)
        for key in TEXT_FIELDS:
            if isinstance(text := delta.get(key), str):
                self._texts.setdefault(key, []).append(text)
        for key, value in choice.items():
            if key not in _CHOICE_KEYS and value is not None:
                self._choice[key] = value
        self._show_text(delta)
        self._show_calls(delta)
        return any(value not in (None, "", []) for value in delta.values())

    def _show_text(self, delta: Json) -> None:
        """Hold blank text back until words follow, and set the first words apart from what was shown before."""
        text = delta.get("content")
        if not isinstance(text, str) or not text:
            return
        self._text_length += len(text)
        if self._text_begun:
            return
        text = self._blank + text
        if text.isspace():
            self._blank = text
            del delta["content"]
            return
        self._text_begun = True
        delta["content"] = self._separator + text.lstrip("\n") if self._separator else text

    def _show_calls(self, delta: Json) -> None:
        """Fold tool-call fragments in and leave the client's own, re-indexed, in the delta."""
        fragments = delta.pop("tool_calls", None)
        shown = [shown for fragment in fragments or () if (shown := self._fold_call(fragment))]
        if shown:
            delta["tool_calls"] = shown

    def _fold_call(self, fragment: Json) -> Json | None:
        call = self._calls.setdefault(self._index_of(fragment), _Call())
        call.id = call.id or fragment.get("id") or ""
        call.type = fragment.get("type") or call.type
        function = fragment.get("function") or {}
        call.name = call.name or function.get("name") or ""
        arguments = _as_text(function.get("arguments"))
        call.arguments.append(arguments)
        if call.name not in self._client_tools:
            return None
        if call.shown_as is None:
            call.shown_as = self._shown_calls
            self._shown_calls += 1
            entry = call.message_entry(call.shown_as)
            return {**fragment, **entry, "index": call.shown_as}
        # Readers of a stream join repeated strings, so id, type and name are said once.
        rest = {key: value for key, value in fragment.items() if key not in ("id", "type")}
        return {**rest, "index": call.shown_as, "function": {"arguments": arguments}}

    def _index_of(self, fragment: Json) -> int:
        """The call that a fragment belongs to: by its index; without one, a fragment with a new id opens a call."""
        index = fragment.get("index")
        if isinstance(index, int):
            return index
        last = max(self._calls, default=-1)
        identity = fragment.get("id")
        for known, call in self._calls.items():
            if identity and call.id == identity:
                return known
        return last + 1 if identity or last < 0 else last

    def _release(self, visible: list[Json]) -> list[Json]:
        if not self._hold:
            return visible
        self._held += visible
        if self._calls and not self._shown_calls:
            return []
        if self._shown_calls or self._text_length >= PROOF_CHARACTERS:
            self._hold = False
            visible, self._held = self._held, []
            return visible
        return []


def turn_from_completion(body: Json) -> Turn:
    """A whole (not streamed) upstream answer as a Turn.

    Raises:
        UpstreamError: it is no completion.
    """
    choices = body.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(choice, dict) or not isinstance(choice.get("message"), dict):
        raise UpstreamError("the upstream's answer holds no message")
    if not choice.get("finish_reason"):
        raise UpstreamError("the upstream's answer has no finish_reason")
    message = choice["message"]
    for position, entry in enumerate(message.get("tool_calls") or ()):
        entry["id"] = entry.get("id") or _missing_id(position)
        if isinstance(function := entry.get("function"), dict):
            function["arguments"] = _as_text(function.get("arguments"))
    envelope = {key: value for key, value in body.items() if key not in _NOT_IN_ENVELOPE}
    return Turn(choice, envelope, calls_of(message), body.get("usage"))


def _as_text(arguments: object) -> str:
    """Arguments as JSON text: ZOAS and native Ollama have them as an object."""
    if arguments is None:
        return ""
    return arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode()


def _missing_id(position: int) -> str:
    """An id for a call that came without one: the tool message that answers it has to name it."""
    return f"call_{position}"
