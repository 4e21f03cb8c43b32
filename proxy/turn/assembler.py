"""Turns the chunks of a stream into one Turn, and decides which part of each chunk may be shown now.

The assembler *removes* from a chunk what must not be shown and never rebuilds one from known keys: a field that a
provider adds tomorrow survives. What it takes away or changes:

    role              the client's stream has one role delta, sent before anything else
    tool calls        the server's are hidden; the client's own are re-indexed without gaps and shown as they come
    finish_reason     only the end of a turn shows whether it is the last one
    usage             summed over the turns by the run
    leaked calls      calls in the model's raw format, in its text or its thoughts, become tool calls
    other fields      unknown objects and lists (`provider_metadata`): only those of the last turn are shown
    content in parts  becomes text and `reasoning_content`
    blank beginnings  GLM-4.5 writes a lone newline before it thinks; the newline is shown when text follows
    marks             gpt-oss's citation marks, `【0†L1-L3】`, become citations beside the text (`citations`)
    blank lines       one is enough between the text of this turn and that of the next (`texts`)

The text of a delta passes these parts in this order. Each owns what it holds back. `feed_text` is for the parts in the
middle: it begins at the FieldText, passes ShownText only where that has something to do, and ends there.

    ThoughtsInText        takes out thoughts that the model has written before its answer
    TurnTexts             finds the FieldText of each field of the delta
      LeakFilter          takes out leaked calls; the rest is kept in the FieldText, for the message of the turn
    ShownText             sets `content` apart from the text of the turn before
      TrailingNewlines    holds back all but two newlines at its end
      MarkFilter          takes out citation marks
    _join_logprobs        adds the log probabilities of text that was held back before
    TurnBuffer            holds back the chunk while the turn may not be the answer

A whole answer of which nobody sees anything before the end of the run passes only the first two, and neither if its
texts are plain (`feed_unseen`).

States:       the assembler has none of its own. Whether a text is held is a state of the part that holds it.
Held text:    belongs to that part. The assembler owns the message, and the log probabilities of text that is held.
Between two pieces: nothing happens. A text that is held is shown with the next piece that decides it, or before the
              next thing that must stand behind it: a refusal, a call, the end.
At the end:   `close` shows all that is still held, in the order of the table.
After a limit (`close`, and the finish_reason is one of `BROKEN_OFF`, such as `length`): the same, but the beginning of
              a call is not shown.
If the connection breaks: `finish` without `close`. Text that is held is not in the turn.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

from proxy.turn.call_assembler import CallAssembler
from proxy.turn.citations import CITATIONS, OPENING, MarkFilter
from proxy.turn.details import DETAILS, shifted
from proxy.turn.leaks.written import PROOF_CHARACTERS
from proxy.turn.other_fields import FOLDED_KEYS, OtherFields
from proxy.turn.pieces import pieces_of_whole
from proxy.turn.request import Buffering, TurnRequest
from proxy.turn.shown_text import ShownText
from proxy.turn.texts import TurnTexts
from proxy.turn.thinking import ThoughtsInText
from proxy.turn.turn_buffer import TurnBuffer
from proxy.wire.chat import BROKEN_OFF, Json, ToolCall, Turn, calls_of, inferred_reason
from proxy.wire.errors import UpstreamError
from proxy.wire.patterns import only_text_field
from proxy.wire.usage import other_usage

Shown: TypeAlias = Json | ToolCall
"""A chunk for the client, or a call of a server tool that is complete, at its place among the chunks."""

NO_REASON = "The upstream's stream ended without a finish_reason."
NO_WHOLE_REASON = "The upstream's answer has no finish_reason."
_CHOICE_KEYS = ("index", "delta", "message", "finish_reason")
_NOTHING: tuple[Any, ...] = (None, "", [])  # field values with nothing to show
_SEARCH_RESULTS = "web_search"  # results of GLM's native search, beside the choices


class Assembler:
    """Assembles the chunks of one upstream stream into one `Turn`.

    `finish` may also be called without `close`, if the connection broke or the client needs no more of the stream.

    begin_whole(choice)?  (feed(piece)  feed_text(text)*)*  -->  close()  -->  finish()
    feed_unseen(completion)  ----------------------------------------------->  finish()

    Args:
        request: the request that the turn answers.
        renamed: replaced tool names in the upstream's request -> the names that the run knows.
        thoughts_in_text: whether the upstream may send thoughts at the beginning of the text.

    Attributes:
        calls: the tool calls of the turn so far.
        text_field: the field of the latest chunk's text, if the chunk adds nothing else. If the next chunk differs only
            in that text, the text may be given to `feed_text`. Empty: the next chunk has to be given to `feed`.
    """

    def __init__(
        self,
        request: TurnRequest,
        renamed: Mapping[str, str] = MappingProxyType({}),
        *,
        thoughts_in_text: bool = False,
    ) -> None:
        view = request.view
        self._request = request
        self.calls = CallAssembler(request)
        self._texts = TurnTexts(view, renamed, ThoughtsInText() if thoughts_in_text else None)
        self._shown_text = ShownText(view.separator, MarkFilter(view.cite))
        self._others = OtherFields(view.first_detail, message={"role": "assistant"})
        self._logprobs: list[Any] = []  # of text that was held back, to be shown with the next text
        self._choice: Json = {}
        self._envelope: Json = {}  # the first value of each field of the chunks
        self._usage: Json | None = None
        self._finish_reason = ""
        self._buffer = TurnBuffer(view.buffering)
        self.text_field = ""
        self._repeated: Json = {}  # the latest chunk with only a text; chunks like it differ only in the delta

    def feed(self, piece: Json) -> Sequence[Shown]:
        """Take in a piece (`pieces`), modifying it, and return what may be shown now, in order.

        A run asks for one choice; any other choice is ignored.
        """
        # Text that may be a thought needs more than `feed_text` does.
        self.text_field = only_text_field(piece) if self._texts.thinking is None else ""
        if usage := piece.pop("usage", None) or other_usage(piece):
            self._usage = usage
        self._envelope = {**piece, **self._envelope}
        if not self._envelope.get("model") and (model := piece.get("model")):
            self._envelope["model"] = model  # Azure's first chunk has an empty one
        choices: Sequence[Json] = piece.get("choices") or ()
        visible: list[Json] = []
        for choice in choices:
            if not choice.get("index") and self._fold(choice):
                visible = [piece if len(choices) == 1 else {**piece, "choices": [choice]}]
        if _SEARCH_RESULTS in piece:
            self.text_field = ""
            if not visible and piece[_SEARCH_RESULTS]:
                visible = [{**piece, "choices": []}]
        if self._buffer.mode is not Buffering.NONE:
            visible = self._release(visible)
            self.text_field = ""
        if self.text_field:
            self._repeated = {**piece, "choices": [{**choices[0]}]}
        ready = self.calls.take_ready() if self.calls.so_far else ()
        return _in_order(visible, ready) if ready else visible

    def feed_text(self, text: str) -> list[Json]:
        """Take in a chunk that differs from the latest one only in its text; return the chunks that may be shown now.

        A chunk is known to differ in nothing else if it fits the pattern of the latest one (`patterns`). Each call
        returns the same chunk object with another delta, so that its other fields need not be read again.
        """
        field = self.text_field
        text = self._texts.fields[field].feed(text)
        delta: Json = {field: text}
        if field == "content" and (OPENING in text or text[-1:].isspace() or self._shown_text.needs_look):
            self._shown_text.show(delta)
            if not (delta.get("content") or CITATIONS in delta):
                return []
        elif not text:
            return []
        self._repeated["choices"][0]["delta"] = delta
        return [self._repeated]

    def begin_whole(self, choice: Json, usage: Json | None = None) -> None:
        """Keep the message and the other fields of a whole answer as received; its pieces are still to be fed.

        Raises:
            UpstreamError: it has no finish_reason.
        """
        if not choice.get("finish_reason"):
            raise UpstreamError(NO_WHOLE_REASON)
        self._usage = usage
        self._choice = {key: value for key, value in choice.items() if key not in _CHOICE_KEYS}
        self._texts.is_whole = choice["finish_reason"] not in BROKEN_OFF
        self._others.begin_whole(choice["message"])
        self.calls.received = choice["message"].get("tool_calls") or ()

    def feed_unseen(self, completion: Json) -> None:
        """Take in a whole answer of which nobody sees anything before the end of the run, and end the turn.

        Raises:
            UpstreamError: it has no finish_reason, or a bound is passed.
        """
        choice = completion["choices"][0]
        usage = completion.pop("usage", None) or other_usage(completion)
        self.begin_whole(choice, usage)
        if self._buffer.mode is not Buffering.NONE or choice.get("index"):
            for piece in pieces_of_whole(completion):  # the run is told what was buffered
                self.feed(piece)
            self.close()
            return
        self._envelope, self._finish_reason = completion, choice["finish_reason"]
        message, entries = choice["message"], self.calls.received
        # Texts with nothing to take out, as most are, stay where they are.
        is_plain = self._texts.is_whole and self._texts.are_plain(message)
        if not is_plain:
            self._fold_texts({**message}, entries)
        self.calls.add_whole(entries)
        if not is_plain:
            self.close()

    def close(self, *, done: bool = False) -> list[Json]:
        """End the stream. Return what was held back: the rest of the texts, and the leaked calls of client tools.

        Args:
            done: whether `[DONE]` has arrived.

        Raises:
            UpstreamError: the stream has no finish_reason, and ended without `[DONE]` or with nothing complete in it.
        """
        delta: Json = {}
        # Inferred here, because the texts must know whether a limit has cut them off, and again below, because what
        # they still hold may be text or calls, which decide the reason.
        reason = self._finish_reason or (self._inferred_reason() if done else "")
        self._texts.close(delta, is_cut=reason in BROKEN_OFF)
        self._shown_text.show(delta)
        if DETAILS in delta:
            delta[DETAILS] = shifted(delta[DETAILS], self._request.view.first_detail)
        shown = self.calls.end(self.calls.so_far)
        for leak in self._texts.leaks(has_calls=bool(self.calls.so_far)):
            shown += self.calls.add_leaked(leak)
        if shown:
            delta["tool_calls"] = shown
        if not self._finish_reason and done:
            self._finish_reason = self._inferred_reason() or ("stop" if self._texts.garbled else "")
        if not self._finish_reason:
            raise UpstreamError(NO_REASON)
        # A turn that calls the server's tools, and none of the client's, is followed by another one.
        is_followed = self.calls.so_far and not self.calls.client_count and self._finish_reason not in BROKEN_OFF
        self._shown_text.close(delta, is_followed=bool(is_followed))
        visible = [self._chunk(delta)] if any(delta.values()) else []
        for chunk in visible:
            self._join_logprobs(chunk["choices"][0], is_shown=True)
        return visible if self._buffer.mode is Buffering.NONE else self._release(visible)

    def finish(self) -> Turn:
        """The turn as far as it has arrived; before `close`, without the text that is still held back."""
        message = self._whole_message()
        self._envelope.pop("choices", None)
        return Turn(
            message,
            self._finish_reason,
            self._choice,
            self._envelope,
            calls_of(message),
            self._usage,
            buffered=tuple(self._buffer.chunks),
            aside=tuple(map(self._chunk, self._others.aside)),
            garbled=self._texts.garbled,
            client_ids=tuple([one.client_id for one in self.calls.so_far]) if self.calls.client_count else (),
            step=self._request.step,
            number=self._request.number,
        )

    def _release(self, visible: list[Json]) -> list[Json]:
        """The chunks that may be shown now, among the `visible` ones and those buffered before."""
        if self._shown_text.length >= PROOF_CHARACTERS:
            self._buffer.judge(self._texts.fields["content"].pieces, self._request.view.tools)
        has_calls, calls_client = bool(self.calls.so_far), bool(self.calls.client_count)
        return self._buffer.release(visible, has_calls=has_calls, calls_client=calls_client)

    def _inferred_reason(self) -> str | None:
        return inferred_reason(self._whole_message(), self._request.body, self._usage)

    def _whole_message(self) -> Json:
        """The assistant message as received, with the leaked calls among its tool calls."""
        message = self._others.whole()
        if self._texts.fields:
            self._texts.complete(message)
        if self.calls.so_far:
            message["tool_calls"] = self.calls.entries()
        else:
            message.setdefault("content", "")
        return message

    def _chunk(self, delta: Json) -> Json:
        chunk = {**self._envelope, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        chunk.pop(_SEARCH_RESULTS, None)  # shown when they came
        return chunk

    def _fold(self, choice: Json) -> bool:
        """Fold a choice into the turn, and remove from it whatever must not be shown; whether anything is left."""
        self._finish_reason = choice.pop("finish_reason", None) or self._finish_reason
        choice["finish_reason"] = None
        for key, value in choice.items():
            if key not in _CHOICE_KEYS and value is not None:
                self._choice[key] = value
        delta = choice["delta"] = choice.get("delta") or {}
        delta.pop("role", None)
        if not delta.keys() <= FOLDED_KEYS:
            delta.pop("index", None)  # the choice's, which some servers repeat here
            self._others.fold(delta)
        fragments = delta.pop("tool_calls", None)
        active = self._fold_texts(delta, fragments)
        self._shown_text.show(delta)
        if fragments and (shown := self.calls.add(fragments)):
            delta["tool_calls"] = shown
        if fragments or "refusal" in active:  # the turn's text stands before both
            self._shown_text.close(delta, is_followed="tool_calls" not in delta and "refusal" not in active)
        if not delta.keys() <= FOLDED_KEYS:
            is_followed = bool(self.calls.so_far) and not self.calls.client_count
            self._others.show(delta, is_followed=is_followed)
        is_shown = any(value not in _NOTHING for value in delta.values())
        if self._logprobs or choice.get("logprobs"):
            self._join_logprobs(choice, is_shown=is_shown)
        return is_shown

    def _fold_texts(self, delta: Json, fragments: Sequence[Json] | None) -> list[str]:
        """Fold the texts of a delta, end those that its other parts follow, and return the names of its fields."""
        active = self._texts.fold(delta)
        if active or fragments:
            # The rest of the thoughts is shown before the answer continues, the rest of the answer before a refusal,
            # and the rest of all before the calls. `active`: the fields with text in this delta. `latest`: the later
            # one of content and refusal. `goes_on`: the fields whose text may continue in the next delta.
            latest = "refusal" if "refusal" in active else "content"
            goes_on = [latest] if latest in active else active
            self._texts.close(delta, keep_open=[] if fragments else goes_on)
        return active

    def _join_logprobs(self, choice: Json, *, is_shown: bool) -> None:
        """Put the held entries in front of those of a shown choice; hold those of a choice that is not shown."""
        given = choice["logprobs"] if isinstance(choice.get("logprobs"), dict) else {}
        if isinstance(entries := given.get("content"), list):
            self._logprobs += entries
        if is_shown and self._logprobs:
            choice["logprobs"], self._logprobs = {**given, "content": self._logprobs}, []


def _in_order(visible: Sequence[Json], ready: Sequence[ToolCall]) -> list[Shown]:
    """Chunks, and calls that are complete: behind the text, and before the client's calls in the last chunk."""
    chunk = visible[-1] if visible else {}
    if not chunk.get("choices") or "tool_calls" not in (delta := chunk["choices"][0]["delta"]):
        return [*visible, *ready]
    calls = {**chunk, "choices": [{**chunk["choices"][0], "delta": {"tool_calls": delta.pop("tool_calls")}}]}
    texts = visible if any(delta.values()) else visible[:-1]
    return [*texts, *ready, calls]
