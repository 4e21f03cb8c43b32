"""Chunks -> one Turn, and what of each chunk may be shown now.

The assembler *removes* from a chunk what must not be shown and never rebuilds one from known keys: a field that a
provider adds tomorrow survives. What it takes away:

    role              the client's stream has one role delta, sent before anything else
    tool calls        the server's are hidden; the client's own are re-indexed without gaps and shown as they come
    finish_reason     which turn is the last is known only at its end
    usage             summed over the turns by the run
    leaked calls      tool calls in the raw format of the model, in its text or its thoughts, become tool calls
    other fields      objects and lists that nobody here knows (`provider_metadata`): only the last turn's are shown
    content in parts  becomes text and `reasoning_content`
    blank beginnings  GLM-4.5 opens with a lone newline before it thinks; it is shown when text follows
    marks             gpt-oss's citations, `【0†L1-L3】`: their places go beside the text (`citations`)
    blank lines       one between this turn's text and the next one's is enough (`seams`)

Known only at the end of a turn: whether it is the answer. The beginning of a turn that was *made* to answer is buffered
until it is long enough to be one. A whole completion takes the same path: it is one chunk, whose delta is a message.
"""

from proxy.loop.actions import Buffering, CallUpstream
from proxy.loop.calls import CallAssembler
from proxy.loop.chat import BROKEN_OFF, TEXT_FIELDS, Json, ToolCall, Turn, calls_of, inferred_reason
from proxy.loop.citations import CITATIONS, OPENING, MarkFilter
from proxy.loop.errors import UpstreamError
from proxy.loop.seams import DETAILS, shifted
from proxy.loop.texts import ShownText, TurnTexts

# A forced turn that has written this much text is taken for an answer and shown from then on. "I'll search for ..."
# before one more tool call is shorter; at a model's usual pace the wait is a second or two.
PROOF_CHARACTERS = 160

NO_REASON = "The upstream's stream ended without a finish_reason."

_CHOICE_KEYS = ("index", "delta", "message", "finish_reason")
_PLAIN_CHOICE = frozenset({"index", "delta", "finish_reason", "logprobs"})
_FOLDED_KEYS = frozenset({*TEXT_FIELDS, "tool_calls"})
_LIVE_KEYS = frozenset({*_FOLDED_KEYS, DETAILS, CITATIONS, "audio"})  # what a stream is made of
_SEARCH_RESULTS = "web_search"  # of GLM's native search, beside the choices
_NOT_IN_ENVELOPE = ("choices", "usage")
_EMPTY: tuple[object, ...] = (None, "", [])


class Assembler:
    """Takes the chunks of one upstream stream in and gives one `Turn` out.

    Feed it every chunk, close it, then ask for the turn; after each chunk, calls may have become ready to be run:

        (feed(chunk)  take_ready())*  -->  close()  -->  finish()
        feed_whole(completion)        -------------->  finish()

    Args:
        call: the upstream call; it names the client's tools, and how the text is to be set apart.
    """

    def __init__(self, call: CallUpstream) -> None:
        self._call = call
        self._calls = CallAssembler(call)
        self._texts = TurnTexts(call)
        self._shown: ShownText | None = None  # as soon as there is any
        self._message: Json = {"role": "assistant"}  # without its texts and calls
        self._aside: list[Json] = []  # deltas that are shown if this is the last turn
        self._choice: Json = {}
        self._envelope: Json = {}
        self._usage: Json | None = None
        self._finish_reason = ""
        self._buffering = call.buffering
        self._buffer: list[Json] = []
        self._active: list[str] = []  # the fields of the latest delta that was not empty
        self._fast_field = ""  # the only one of them, where more of it can take the fast path
        self._keys: tuple[str, ...] = ()  # of the latest chunk that did not take it

    def feed(self, chunk: Json) -> list[Json]:
        """Take one chunk in (and apart) and return what may be shown now, in order."""
        if usage := chunk.pop("usage", None):
            self._usage = usage
        if self._fast_field and tuple(chunk) == self._keys:
            shown = self._append_text(chunk)
            if shown is not None:
                return shown
        self._keys = tuple(chunk)
        for key in chunk:
            if key not in self._envelope and key not in _NOT_IN_ENVELOPE:
                self._envelope[key] = chunk[key]
        choices = chunk.get("choices") or ()
        visible: list[Json] = []
        for choice in choices:
            if not choice.get("index") and self._fold(choice):
                visible = [chunk if len(choices) == 1 else {**chunk, "choices": [choice]}]
        if not visible and chunk.get(_SEARCH_RESULTS):
            visible = [{**chunk, "choices": []}]
        visible = self._release(visible)
        self._fast_field = self._next_fast_field()
        return visible

    def _append_text(self, chunk: Json) -> list[Json] | None:
        """Take the fast path, as nearly all chunks do: more of the text of the chunk before, and nothing else.

        It saves 40 % of the instructions of a chunk.

        Returns:
            What may be shown; None: the chunk holds something else, and nothing was done.
        """
        choices, field = chunk["choices"], self._fast_field
        choice = choices[0] if choices and len(choices) == 1 else {}
        delta = choice.get("delta")
        if not delta or len(delta) != 1 or not isinstance(text := delta.get(field), str) or not text:
            return None
        if not choice.keys() <= _PLAIN_CHOICE:
            return None
        if choice.get("index") or choice.get("logprobs") or choice.get("finish_reason"):
            return None
        choice["finish_reason"] = None
        known, shown = self._texts.fields[field], self._shown
        if known.leaks is not None:
            text = known.leaks.feed(text)
        known.pieces.append(text)
        if field == "content" and shown is not None:
            is_plain = text[-1:] > " " and OPENING not in text
            if not is_plain or shown.ending.newlines or shown.marks.buffer:
                return [chunk] if shown.append(delta, text) else []
        delta[field] = text
        return [chunk] if text else []

    def _next_fast_field(self) -> str:
        """The field of which more can take the fast path; empty while anything else has to be looked at."""
        if len(self._active) != 1 or self._buffering is not Buffering.NONE or _SEARCH_RESULTS in self._keys:
            return ""
        field = self._active[0]
        if field == "content":
            return field if self._shown is not None and self._shown.begun else ""
        return field if field in self._texts.fields else ""

    def feed_whole(self, completion: Json) -> None:
        """Take in a whole completion; nothing of it is shown before its turn is finished.

        Raises:
            UpstreamError: it is no completion.
        """
        self._usage, choices = completion.pop("usage", None), completion.pop("choices", None)
        self._envelope = completion
        self._choice = choice = choices[0] if choices else {}
        message, self._finish_reason = choice.pop("message", None), choice.pop("finish_reason", None)
        if not isinstance(message, dict):
            raise UpstreamError("The upstream's answer holds no message.")
        if not self._finish_reason:
            raise UpstreamError("The upstream's answer has no finish_reason.")
        self._message = message
        self._texts.fold_whole(message)
        if entries := message.get("tool_calls"):
            self._calls.add_whole(entries)
        for leak in self._texts.leaks(has_calls=bool(entries)):
            self._calls.add_leaked(leak)

    def take_ready(self) -> list[ToolCall]:
        """The calls that are not the client's and whose arguments have become complete since this was last asked."""
        return self._calls.ready() if self._calls.calls else []

    def close(self, *, done: bool = False) -> list[Json]:
        """End the stream. What was buffered as a possible leak and was none, or was a call of the client's, is shown.

        Args:
            done: whether it ended with `[DONE]`.

        Raises:
            UpstreamError: it ended without a finish_reason and not in order, or with nothing whole in it, so nothing
                in it can be relied on.
        """
        delta: Json = {}
        self._texts.close(delta)
        self._show_text(delta)
        if DETAILS in delta:
            delta[DETAILS] = shifted(delta[DETAILS], self._call.first_detail)
        for leak in self._texts.leaks(has_calls=bool(self._calls.calls)):
            delta.setdefault("tool_calls", []).extend(self._calls.add_leaked(leak))
        if not self._finish_reason and done:
            reason = inferred_reason(self._whole_message(), self._call.body, self._usage)
            self._finish_reason = reason or ("stop" if self._texts.is_garbled() else "")
        if not self._finish_reason:
            raise UpstreamError(NO_REASON)
        if self._shown is not None:
            # A turn that calls the server's tools, and none of the client's, is followed by another one.
            is_followed = self._calls.calls and not self._calls.shown and self._finish_reason not in BROKEN_OFF
            if rest := self._shown.close(is_followed=bool(is_followed)):
                delta["content"] = delta.get("content", "") + rest
        return self._release([self._chunk(delta)] if any(delta.values()) else [])

    def finish(self) -> Turn:
        """The whole turn."""
        message = self._whole_message()
        return Turn(
            message,
            self._finish_reason,
            self._choice,
            self._envelope,
            calls_of(message),
            self._usage,
            buffered=tuple(self._buffer),
            aside=tuple(map(self._chunk, self._aside)),
            garbled=self._texts.is_garbled(),
            client_ids=self._calls.client_ids(),
            step=self._call.step,
        )

    def _whole_message(self) -> Json:
        """The assistant message as received, its leaked calls among its calls."""
        message = {**self._message}
        if self._texts.fields:
            self._texts.complete(message)
        if self._calls.calls:
            message["tool_calls"] = self._calls.entries()
        else:
            message.setdefault("content", "")
        return message

    def _chunk(self, delta: Json) -> Json:
        return {**self._envelope, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}

    # -- one choice of a chunk, on the slow path --

    def _fold(self, choice: Json) -> bool:
        """Fold a choice in and remove what must not be shown from it; whether anything is left."""
        self._finish_reason = choice.pop("finish_reason", None) or self._finish_reason
        choice["finish_reason"] = None
        for key, value in choice.items():
            if key not in _CHOICE_KEYS and value is not None:
                self._choice[key] = value
        delta = choice["delta"] = choice.get("delta") or {}
        delta.pop("role", None)
        for key in delta.keys() - _FOLDED_KEYS:
            if (value := delta[key]) is not None:
                known = self._message.get(key)
                self._message[key] = known + value if isinstance(known, list) and isinstance(value, list) else value
        active, fragments = self._texts.fold(delta), delta.pop("tool_calls", None)
        if fragments:
            active.append("tool_calls")
        if active:
            self._active = active
            self._texts.close(delta, but=active)  # the rest of a text is shown with what the model goes on to
        self._show_text(delta)
        if fragments and (shown := self._calls.add(fragments)):
            delta["tool_calls"] = shown
        if not delta.keys() <= _FOLDED_KEYS:
            self._show_others(delta)
        return any(value not in _EMPTY for value in delta.values())

    def _show_text(self, delta: Json) -> None:
        if isinstance(text := delta.get("content"), str) and text:
            if self._shown is None:
                self._shown = ShownText(self._call.separator, MarkFilter(self._call.cite))
            self._shown.show(delta, text)

    def _show_others(self, delta: Json) -> None:
        """Show the other fields: text as it comes, objects and lists only where the turn is the last one.

        Those of several turns would be taken for pieces of one, which SDKs fail to put together. Text is a stream of
        its own until the turn has called a server tool.
        """
        if details := delta.get(DETAILS):
            delta[DETAILS] = shifted(details, self._call.first_detail)
        is_hidden = bool(self._calls.calls) and not self._calls.shown
        aside: Json = {}
        for key in delta.keys() - _LIVE_KEYS:
            if is_hidden or not isinstance(delta[key], str):
                value = delta.pop(key)
                if value is not None:
                    aside[key] = value
        if aside:
            self._aside.append(aside)

    def _release(self, visible: list[Json]) -> list[Json]:
        """The chunks that may be shown now; the others are buffered."""
        if self._buffering is Buffering.NONE:
            return visible
        self._buffer += visible
        is_long_enough = self._shown is not None and self._shown.length >= PROOF_CHARACTERS and not self._calls.calls
        if not (self._calls.shown or is_long_enough) or self._buffering is Buffering.ALL:
            return []
        self._buffering = Buffering.NONE
        visible, self._buffer = self._buffer, []
        return visible
