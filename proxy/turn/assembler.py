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

    ThoughtsInText        takes out thoughts that the model has written before its answer
    TurnTexts             finds the FieldText of each field of the delta
      LeakFilter          takes out leaked calls; the rest is kept in the FieldText, for the message of the turn
    ShownText             sets `content` apart from the text of the turn before
      TrailingNewlines    holds back all but two newlines at its end
      MarkFilter          takes out citation marks
    HeldLogprobs          adds the log probabilities of text that was held back before
    TurnBuffer            holds back the chunk while the turn may not be the answer

"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from msgspec import Struct

from proxy.turn.call_assembler import CallAssembler
from proxy.turn.carried import merge_fields
from proxy.turn.citations import CITATIONS, OPENING, MarkFilter
from proxy.turn.details import FoldedDetails
from proxy.turn.leaks.written import PROOF_CHARACTERS, THOUGHTS_END, is_proven, opens_thoughts
from proxy.turn.request import Buffering, TurnRequest
from proxy.turn.texts import DETAILS, MOST_TEXT, ShownText, TextTooLong, TurnTexts, shifted
from proxy.turn.thinking import ThoughtsInText
from proxy.wire.chat import BROKEN_OFF, TEXT_FIELDS, Json, Turn, calls_of, inferred_reason
from proxy.wire.errors import UpstreamError
from proxy.wire.patterns import only_text_field
from proxy.wire.usage import other_usage

NO_REASON = "The upstream's stream ended without a finish_reason."
_FOLDED_KEYS: Final = frozenset({*TEXT_FIELDS, "tool_calls"})  # of a delta: its text and its calls
_LIVE_KEYS = frozenset({*_FOLDED_KEYS, DETAILS, CITATIONS, "audio"})  # shown as they come
_CHOICE_KEYS = ("index", "delta", "message", "finish_reason")
_NOTHING: tuple[Any, ...] = (None, "", [])  # field values with nothing to show
_SEARCH_RESULTS = "web_search"  # results of GLM's native search, beside the choices


class Assembler:
    """Assembles the chunks of one upstream stream into one `Turn`.

    `finish` may also be called without `close`, when the stream broke off or the client needs no more of it: the turn
    then holds the part that has arrived.

    begin_whole(choice)?  (feed(piece)  feed_text(text)*)*  -->  close()  -->  finish()

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
        # Text that may be a thought needs more than `feed_text` does.
        self.text_field = only_text_field(chunk) if self._texts.thinking is None else ""
        if usage := chunk.pop("usage", None) or other_usage(chunk):
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

    def begin_whole(self, choice: Json) -> None:
        """Keep the message and the other fields of a whole answer as received; its pieces are still to be fed."""
        self._choice = {key: value for key, value in choice.items() if key not in _CHOICE_KEYS}
        self._others.begin_whole(choice["message"])
        self.calls.received = choice["message"].get("tool_calls") or ()

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
            delta[DETAILS] = shifted(delta[DETAILS], self._request.view.first_detail)
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
            step=self._request.step,
            number=self._request.number,
        )

    def _release(self, visible: list[Json]) -> list[Json]:
        """The chunks that may be shown now, among the `visible` ones and those buffered before."""
        if self._shown.length >= PROOF_CHARACTERS:
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
        if not delta.keys() <= _FOLDED_KEYS:
            delta.pop("index", None)  # the choice's, which some servers repeat here
            self._others.fold(delta)
        active, fragments = self._texts.fold(delta), delta.pop("tool_calls", None)
        if active or fragments:
            # The rest of the thoughts is shown before the answer continues, the rest of the answer before a refusal,
            # and the rest of all before the calls.
            latest = "refusal" if "refusal" in active else "content"
            goes_on = [latest] if latest in active else active
            self._texts.close(delta, keep_open=[] if fragments else goes_on)
        self._shown.show(delta)
        if fragments and (shown := self.calls.add(fragments)):
            delta["tool_calls"] = shown
        if fragments or "refusal" in active:  # the turn's text stands before both
            self._shown.close(delta, is_followed="tool_calls" not in delta and "refusal" not in active)
        if not delta.keys() <= _FOLDED_KEYS:
            is_followed = bool(self.calls.so_far) and not self.calls.client_count
            self._others.show(delta, is_followed=is_followed)
        is_shown = any(value not in _NOTHING for value in delta.values())
        if self._logprobs.held or choice.get("logprobs"):
            self._logprobs.join(choice, is_shown=is_shown)
        return is_shown


class TurnBuffer(Struct):
    """The chunks of one turn that are held back until it shows whether the turn is the answer.

    A turn that was *made* to answer is shown as soon as it is long enough to be an answer. Where the answer has to be
    JSON, the text of every turn waits, because only the answer's text may be shown: words beside calls, even beside the
    client's own, are not JSON, and SDKs that parse the text would fail. Of a turn that was made to answer in JSON, the
    thoughts wait too: only its end shows whether it is the answer.

    Attributes:
        mode: how much of the turn may still have to be held back.
        chunks: the chunks that are held back.
    """

    mode: Buffering
    chunks: list[Json] = []
    _is_proven: bool | None = None  # whether the text is sure to be an answer; None: it is too short to tell
    _seen: int = 0  # how many pieces of the text have been searched
    _tail: str = ""  # the end of thoughts that are not closed yet

    def judge(self, pieces: Sequence[str], tools: Mapping[str, Json]) -> None:
        """Decide whether the turn's text is sure to be an answer, unless that has been decided already.

        While the text is in thoughts that are not closed, only new pieces are searched for the end of the thoughts.
        """
        if self._is_proven is not None or self.mode is not Buffering.START:
            return
        tail = self._tail + "".join(pieces[self._seen :])
        self._seen = len(pieces)
        if self._tail and THOUGHTS_END not in tail:
            self._tail = tail[-len(THOUGHTS_END) :]
            return
        text = "".join(pieces)
        self._tail = text[-len(THOUGHTS_END) :] if opens_thoughts(text) else ""
        self._is_proven = is_proven(text, tools)

    def release(self, visible: list[Json], *, has_calls: bool, calls_client: bool) -> list[Json]:
        """The chunks that may be shown now; the others are held back.

        Args:
            visible: the new chunks.
            has_calls: whether the turn has any calls so far.
            calls_client: whether it has calls of the client's tools, which are never held back.
        """
        if self.mode is Buffering.TEXT:
            return [rest for chunk in visible if (rest := self._hold_text(chunk))]
        self.chunks += visible
        if not (calls_client or (self._is_proven and not has_calls)):
            return []
        if self.mode is Buffering.ALL:
            self.mode, visible, self.chunks = Buffering.TEXT, self.chunks, []
            return self.release(visible, has_calls=has_calls, calls_client=calls_client)
        self.mode = Buffering.NONE
        released, self.chunks = self.chunks, []
        return released

    def _hold_text(self, chunk: Json) -> Json | None:
        """Hold back a chunk's text, and return the rest of the chunk; None: there is no rest."""
        if not chunk["choices"]:
            return chunk
        choice = chunk["choices"][0]
        delta = choice["delta"]
        if text := {key: delta.pop(key) for key in ("content", "refusal", CITATIONS) if delta.get(key)}:
            text.setdefault("content", "")  # citations stand beside it
            self.chunks.append({**chunk, "choices": [{**choice, "delta": text}]})
            choice.pop("logprobs", None)
        return chunk if any(delta.values()) else None


class OtherFields(Struct):
    """The other fields of one turn's deltas.

    Attributes:
        first_detail: the number that is added to the indices of `reasoning_details` for the client.
        message: the assistant message so far, without its texts and calls; a streamed one begins with only the role.
        aside: the deltas that are shown if this is the last turn.
    """

    first_detail: int
    message: Json
    aside: list[Json] = []
    _details: FoldedDetails | None = None
    _is_whole: bool = False  # whether the message has been received with all of its fields

    def begin_whole(self, message: Json) -> None:
        """Keep the fields of a whole message; its deltas add none to them."""
        self.message, self._is_whole = {**message}, True

    def whole(self) -> Json:
        """The message so far, which may be changed."""
        return {**self.message, DETAILS: self._details.whole()} if self._details else {**self.message}

    def fold(self, delta: Json) -> None:
        """Fold the fields of a delta into the message: lists are joined, objects merged, other values replaced."""
        for key in () if self._is_whole else delta.keys() - _FOLDED_KEYS:
            if (value := delta[key]) is None:
                continue
            known = self.message.get(key)
            if isinstance(value, dict):
                merge_fields(self.message, {key: value})
            elif key == DETAILS and isinstance(value, list):
                self._details = self._details or FoldedDetails()
                self._details.add(value)
            elif isinstance(value, list) and isinstance(known, list):
                known += value
            elif isinstance(value, list):
                self.message[key] = [*value]
            else:
                self.message[key] = value

    def show(self, delta: Json, *, is_followed: bool) -> None:
        """Leave in a delta the fields that may be shown at once, and set the others aside for the end of the run.

        A text is shown at once unless another turn is sure to follow. SDKs would take the objects and lists of several
        turns for pieces of one value, and fail to join them.
        """
        if details := delta.get(DETAILS):
            delta[DETAILS] = shifted(details, self.first_detail)
        later = [key for key in delta if key not in _LIVE_KEYS and (is_followed or not isinstance(delta[key], str))]
        if aside := {key: value for key in later if (value := delta.pop(key)) is not None}:
            self.aside.append(aside)


class HeldLogprobs(Struct):
    """The log probabilities of text that was held back; they are shown with the next text."""

    held: list[Any] = []

    def join(self, choice: Json, *, is_shown: bool) -> None:
        """Put the held entries in front of those of a shown choice; hold those of a choice that is not shown."""
        given = choice["logprobs"] if isinstance(choice.get("logprobs"), dict) else {}
        if isinstance(entries := given.get("content"), list):
            self.held += entries
        if is_shown and self.held:
            choice["logprobs"], self.held = {**given, "content": self.held}, []
