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

The text of a delta passes these parts in this order; `feed_text` leaves out the last two:

    TurnTexts             finds the FieldText of each field of the delta
      LeakFilter          takes out leaked calls; the rest is kept in the FieldText, for the message of the turn
    ShownText             sets `content` apart from the text of the turn before
      TrailingNewlines    holds back all but two newlines at its end
      MarkFilter          takes out citation marks
    HeldLogprobs          adds the log probabilities of text that was held back before
    TurnBuffer            holds back the chunk while the turn may not be the answer

The text of a whole completion passes only TurnTexts, because nothing of it is shown yet.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from proxy.loop.actions import Buffering, CallUpstream
from proxy.loop.buffer import TurnBuffer
from proxy.loop.call_assembler import CallAssembler
from proxy.loop.chat import BROKEN_OFF, Json, Turn, calls_of, inferred_reason
from proxy.loop.citations import CITATIONS, OPENING, MarkFilter
from proxy.loop.errors import UpstreamError
from proxy.loop.leaks.written import PROOF_CHARACTERS
from proxy.loop.other_fields import FOLDED_KEYS, HeldLogprobs, OtherFields
from proxy.loop.patterns import only_text_field
from proxy.loop.texts import DETAILS, MOST_TEXT, ShownText, TextTooLong, TurnTexts, shifted

NO_REASON = "The upstream's stream ended without a finish_reason."
_CHOICE_KEYS = ("index", "delta", "message", "finish_reason")
_NOTHING: tuple[Any, ...] = (None, "", [])  # field values with nothing to show
_SEARCH_RESULTS = "web_search"  # results of GLM's native search, beside the choices


class Assembler:
    """Assembles the chunks of one upstream stream into one `Turn`.

    `finish` may also be called without `close`, when the stream broke off or the client needs no more of it: the turn
    then holds the part that has arrived.

    (feed(chunk)  calls.take_ready()  feed_text(text)*)*  -->  close()  -->  finish()
    feed_whole(completion)  --------------------------------------------->  finish()

    Args:
        call: the upstream call that the turn answers.
        renamed: replaced tool names in the upstream's request -> the names that the run knows.

    Attributes:
        calls: the tool calls of the turn so far.
        text_field: the field of the latest chunk's text, if the chunk adds nothing else. If the next chunk differs only
            in that text, the text may be given to `feed_text`. Empty: the next chunk has to be given to `feed`.
    """

    def __init__(self, call: CallUpstream, renamed: Mapping[str, str] = MappingProxyType({})) -> None:
        view = call.view
        self._upstream_call = call
        self.calls = CallAssembler(call)
        self._texts = TurnTexts(view, renamed)
        self._shown = ShownText(view.separator, MarkFilter(view.cite))
        self._others = OtherFields(view.first_detail, message={"role": "assistant"})
        self._logprobs = HeldLogprobs()
        self._choice: Json = {}
        self._envelope: Json = {}  # the first value of each field of the chunks
        self._usage: Json | None = None
        self._finish_reason = ""
        self._buffer = TurnBuffer(view.buffering)
        self.text_field = ""
        self._repeated: Json = {}  # the latest chunk with only a text; chunks like it differ only in the delta

    def feed(self, chunk: Json) -> list[Json]:
        """Take in a chunk, modifying it, and return the chunks that may be shown now, in order.

        A run asks for one choice; any other choice is ignored.
        """
        self.text_field = only_text_field(chunk)
        if usage := chunk.pop("usage", None):
            self._usage = usage
        self._envelope = {**chunk, **self._envelope}
        if not self._envelope.get("model") and (model := chunk.get("model")):
            self._envelope["model"] = model  # Azure's first chunk has an empty one
        choices: Sequence[Json] = chunk.get("choices") or ()
        visible: list[Json] = []
        for choice in choices:
            if not choice.get("index") and self._fold(choice):
                visible = [chunk if len(choices) == 1 else {**chunk, "choices": [choice]}]
        if not visible and chunk.get(_SEARCH_RESULTS):
            visible = [{**chunk, "choices": []}]
        if self._buffer.mode is not Buffering.NONE:
            visible = self._release(visible)
            self.text_field = ""
        if _SEARCH_RESULTS in chunk:
            self.text_field = ""
        if self.text_field:
            self._repeated = {**chunk, "choices": [{**choices[0]}]}
        return visible

    def feed_text(self, text: str) -> list[Json]:
        """Take in a chunk that differs from the latest one only in its text; return the chunks that may be shown now.

        A chunk is known to differ in nothing else if it fits the pattern of the latest one (`patterns`). Each call
        returns the same chunk object with another delta, so that its other fields need not be read again.
        """
        field = self.text_field
        known = self._texts.fields[field]
        known.length += len(text)
        if known.length > MOST_TEXT:
            raise TextTooLong
        if known.leak_filter is not None:
            text = known.leak_filter.feed(text)
        known.pieces.append(text)
        delta: Json = {field: text}
        if field == "content" and (OPENING in text or text[-1:].isspace() or self._shown.needs_look):
            self._shown.show(delta)
            if not (delta.get("content") or CITATIONS in delta):
                return []
        elif not text:
            return []
        self._repeated["choices"][0]["delta"] = delta
        return [self._repeated]

    def begin_message(self, fields: Json) -> None:
        """Begin the message of the turn with fields of a whole message that are not plain text: null, or parts."""
        self._others.message.update(fields)

    def feed_whole(self, completion: Json) -> None:
        """Take in a whole completion, of which nothing is shown yet.

        Raises:
            UpstreamError: the completion has no finish_reason.
        """
        choice = completion.pop("choices")[0]
        message, self._finish_reason = choice.pop("message"), choice.pop("finish_reason")
        if not self._finish_reason:
            raise UpstreamError("The upstream's answer has no finish_reason.")
        self._usage, self._envelope, self._choice = completion.pop("usage", None) or None, completion, choice
        self._others.message = message
        entries = message.get("tool_calls")
        text_is_last = not (entries or message.get("refusal"))
        self._texts.fold_whole(message, is_cut=text_is_last and self._finish_reason in BROKEN_OFF)
        if entries:
            self.calls.add_whole(entries)
        for leak in self._texts.leaks(has_calls=bool(entries)):
            self.calls.add_leaked(leak)

    def close(self, *, done: bool = False) -> list[Json]:
        """End the stream, and return what was buffered: the end of its text, and leaked calls of the client's tools.

        Args:
            done: whether `[DONE]` has arrived.

        Raises:
            UpstreamError: the stream has no finish_reason, and ended without `[DONE]` or with nothing complete in it.
        """
        delta: Json = {}
        reason = self._finish_reason or (self._inferred_reason() if done else "")
        self._texts.close(delta, is_cut=reason in BROKEN_OFF)
        self._shown.show(delta)
        if DETAILS in delta:
            delta[DETAILS] = shifted(delta[DETAILS], self._upstream_call.view.first_detail)
        shown = self.calls.end()
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
        self._shown.close(delta, is_followed=bool(is_followed))
        visible = [self._chunk(delta)] if any(delta.values()) else []
        for chunk in visible:
            self._logprobs.join(chunk["choices"][0], is_shown=True)
        return visible if self._buffer.mode is Buffering.NONE else self._release(visible)

    def finish(self) -> Turn:
        """The turn as far as it has arrived."""
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
            step=self._upstream_call.step,
            number=self._upstream_call.number,
        )

    def _release(self, visible: list[Json]) -> list[Json]:
        """The chunks that may be shown now, among the `visible` ones and those buffered before."""
        if self._shown.length >= PROOF_CHARACTERS:
            self._buffer.judge(self._texts.fields["content"].pieces, self._upstream_call.view.tools)
        has_calls, calls_client = bool(self.calls.so_far), bool(self.calls.client_count)
        return self._buffer.release(visible, has_calls=has_calls, calls_client=calls_client)

    def _inferred_reason(self) -> str | None:
        return inferred_reason(self._whole_message(), self._upstream_call.body, self._usage)

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
        return {**self._envelope, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}

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
            self._others.fold(delta)
        active, fragments = self._texts.fold(delta), delta.pop("tool_calls", None)
        if active or fragments:
            # The rest of the thoughts is shown before the answer continues, the rest of the answer before a refusal,
            # and the rest of all before the calls.
            goes_on = next(([name] for name in ("refusal", "content") if name in active), active)
            self._texts.close(delta, keep_open=[] if fragments else goes_on)
        self._shown.show(delta)
        if fragments and (shown := self.calls.add(fragments)):
            delta["tool_calls"] = shown
        if fragments or "refusal" in active:  # the turn's text stands before both
            self._shown.close(delta, is_followed="tool_calls" not in delta and "refusal" not in active)
        if not delta.keys() <= FOLDED_KEYS:
            is_followed = bool(self.calls.so_far) and not self.calls.client_count
            self._others.show(delta, is_followed=is_followed)
        is_shown = any(value not in _NOTHING for value in delta.values())
        if self._logprobs.held or choice.get("logprobs"):
            self._logprobs.join(choice, is_shown=is_shown)
        return is_shown
