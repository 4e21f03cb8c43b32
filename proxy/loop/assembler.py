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

from collections.abc import Sequence
from typing import Any

from proxy.loop.actions import Buffering, CallUpstream
from proxy.loop.calls import CallAssembler
from proxy.loop.chat import (
    BROKEN_OFF,
    TEXT_FIELDS,
    Json,
    ToolCall,
    Turn,
    calls_of,
    inferred_reason,
    parts_beside_text,
    text_of,
    thoughts_of,
)
from proxy.loop.citations import CITATIONS, OPENING, MarkFilter
from proxy.loop.errors import UpstreamError
from proxy.loop.leaks import Leak
from proxy.loop.leaks.filter import LeakFilter
from proxy.loop.seams import DETAILS, Ending, ThoughtsInDetails, shifted, without_blank_lines_before

# A forced turn that has written this much text is taken for an answer and shown from then on. "I'll search for ..."
# before one more tool call is shorter; at a model's usual pace the wait is a second or two.
PROOF_CHARACTERS = 160

NO_REASON = "The upstream's stream ended without a finish_reason."

# Calls leak into the model's text and its thoughts, which come under one of two names.
_LEAKY_FIELDS = ("content", "reasoning_content", "reasoning")
_CHOICE_KEYS = ("index", "delta", "message", "finish_reason")
_PLAIN_CHOICE = frozenset({"index", "delta", "finish_reason", "logprobs"})
_FOLDED_KEYS = frozenset({*TEXT_FIELDS, "tool_calls"})
_LIVE_KEYS = frozenset({*_FOLDED_KEYS, DETAILS, CITATIONS, "audio"})  # what a stream is made of
_SEARCH_RESULTS = "web_search"  # of GLM's native search, beside the choices
_NOT_IN_ENVELOPE = ("choices", "usage")


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
        self._filters: dict[str, LeakFilter] = {}  # of the fields that have come
        self._marks = MarkFilter(call.cite)
        self._ending = Ending()
        self._details = ThoughtsInDetails()
        self._buffering = call.buffering
        self._buffer: list[Json] = []
        self._blank = ""  # text before the first word
        self._text_begun = False
        self._text_length = 0
        self._texts: dict[str, list[str]] = {}
        self._parts: list[Any] = []  # parts of the content that are no text: thoughts, mostly
        self._message: Json = {"role": "assistant"}  # without its texts and calls
        self._aside: list[Json] = []  # deltas that are shown if this is the last turn
        self._choice: Json = {}
        self._envelope: Json = {}
        self._usage: Json | None = None
        self._finish_reason = ""
        self._active_fields: list[str] = []  # of the latest delta that was not empty
        self._fast_field = ""  # the only one of them, where more of it can take the fast path
        self._keys: set[str] = set()  # of the latest chunk that did not take it

    def feed(self, chunk: Json) -> list[Json]:
        """Take one chunk in (and apart) and return what may be shown now, in order."""
        if usage := chunk.pop("usage", None):
            self._usage = usage
        if self._fast_field and chunk.keys() == self._keys:
            shown = self._append_text(chunk)
            if shown is not None:
                return shown
        self._keys = set(chunk)
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

    def _next_fast_field(self) -> str:
        """The field of which more can take the fast path; empty while anything else has to be looked at."""
        if len(self._active_fields) != 1 or self._buffering is not Buffering.NONE or _SEARCH_RESULTS in self._keys:
            return ""
        field = self._active_fields[0]
        return field if field in self._texts and (self._text_begun or field != "content") else ""

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
        if leaks := self._filters.get(field):
            text = leaks.feed(text)
        self._texts[field].append(text)
        if field != "content" or (
            text[-1:] > " " and OPENING not in text and not (self._ending.newlines or self._marks.buffer)
        ):
            delta[field] = text
            return [chunk] if text else []
        return [chunk] if self._show_content(delta, text) else []

    def feed_whole(self, completion: Json) -> None:
        """Take in a whole completion, of which nothing is shown before its turn is finished.

        Raises:
            UpstreamError: it is no completion.
        """
        self._usage, choices = completion.pop("usage", None), completion.pop("choices", None)
        self._choice = choice = choices[0] if choices else {}
        message, reason = choice.pop("message", None), choice.pop("finish_reason", None)
        if not isinstance(message, dict):
            raise UpstreamError("The upstream's answer holds no message.")
        if not reason:
            raise UpstreamError("The upstream's answer has no finish_reason.")
        self._message, self._finish_reason, self._envelope = message, reason, completion
        delta: Json = {}
        for field in TEXT_FIELDS:
            if text := message.get(field):
                delta[field] = text
        if isinstance(delta.get("content"), list):
            self._split_parts(delta)
        self._fold_texts(delta)
        if entries := message.get("tool_calls"):
            self._calls.add(entries, are_whole=True)
        if self._filters:
            self._close_filters(delta)
            for leak in self._leaks():
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
        self._close_filters(delta)
        self._show_text(delta)
        if DETAILS in delta:
            delta[DETAILS] = shifted(delta[DETAILS], self._call.first_detail)
        for leak in self._leaks():
            delta.setdefault("tool_calls", []).extend(self._calls.add_leaked(leak))
        if not self._finish_reason and done:
            reason = inferred_reason(self._whole_message(), self._call.body, self._usage)
            self._finish_reason = reason or ("stop" if self._is_garbled() else "")
        if not self._finish_reason:
            raise UpstreamError(NO_REASON)
        rest = self._marks.close()
        # A turn that calls the server's tools, and none of the client's, is followed by another one.
        if not self._calls.calls or self._calls.shown or self._finish_reason in BROKEN_OFF:
            rest += self._ending.close()
        if rest:
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
            garbled=self._is_garbled(),
            client_ids=self._calls.client_ids(),
            step=self._call.step,
        )

    def _whole_message(self) -> Json:
        """The assistant message as received, its leaked calls among its calls."""
        message = {**self._message}
        for field, pieces in self._texts.items():
            text = "".join(pieces)
            if (text or field in message) and not (self._parts and field == "reasoning_content"):  # it is in the parts
                message[field] = text
        received = self._message.get("content")
        if self._parts or isinstance(received, list):
            text = "".join(self._texts.get("content", ()))
            beside = parts_beside_text(self._parts)
            message["content"] = [*beside, {"type": "text", "text": text}] if text else beside
            if isinstance(received, list) and text == text_of(self._message):
                message["content"] = received
        if self._calls.calls:
            message["tool_calls"] = self._calls.entries()
        else:
            message.setdefault("content", "")
        return message

    def _is_garbled(self) -> bool:
        return any(leaks.garbled for leaks in self._filters.values())

    def _leaks(self) -> list[Leak]:
        """The leaked calls that count. One in the model's thoughts does only where the turn has no text and no call."""
        leaks = self._filters["content"].leaks if "content" in self._filters else []
        if leaks or self._calls.calls or "".join(self._texts.get("content", ())).strip():
            return leaks
        return [leak for leaks in self._filters.values() for leak in leaks.leaks]

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
        if isinstance(delta.get("content"), list):
            self._split_parts(delta)
        has_other_fields = not delta.keys() <= _FOLDED_KEYS
        if has_other_fields:
            self._fold_others(delta)
        self._fold_texts(delta)
        self._show_text(delta)
        if (fragments := delta.pop("tool_calls", None)) and (shown := self._calls.add(fragments)):
            delta["tool_calls"] = shown
        if has_other_fields or DETAILS in delta:
            self._show_others(delta)
        return any(value not in (None, "", []) for value in delta.values())

    def _split_parts(self, delta: Json) -> None:
        """Make text and thoughts of content in parts, as Mistral streams it."""
        content = delta["content"]
        self._parts += parts_beside_text(content)
        delta["content"] = text_of(delta)
        if thoughts := thoughts_of(content):
            delta["reasoning_content"] = (delta.get("reasoning_content") or "") + thoughts

    def _fold_others(self, delta: Json) -> None:
        for key, value in delta.items():
            if key not in _FOLDED_KEYS and value is not None:
                known = self._message.get(key)
                self._message[key] = known + value if isinstance(known, list) and isinstance(value, list) else value

    def _fold_texts(self, delta: Json) -> None:
        """Fold the texts in, and leave of them in the delta what is no leak.

        When the model goes on to something else, the rest of its text before is shown with it.
        """
        active = [field for field in delta if field in _FOLDED_KEYS and delta[field]]
        for field in active:
            if not isinstance(text := delta[field], str):
                continue
            leaks = self._filters.get(field)
            if leaks is None and self._call.tools and field in _LEAKY_FIELDS:
                leaks = self._filters[field] = LeakFilter(self._call.known_names, json_expected=self._call.expects_json)
            shown = delta[field] = leaks.feed(text) if leaks else text
            self._texts.setdefault(field, []).append(shown)
            if DETAILS in delta:
                delta[DETAILS] = self._details.replaced(delta[DETAILS], text, shown)
        if active:
            self._active_fields = active
            self._close_filters(delta, but=active)

    def _close_filters(self, delta: Json, *, but: Sequence[str] = ()) -> None:
        """Show text that was buffered as a possible leak."""
        for field, leaks in self._filters.items():
            if field in but or not (rest := leaks.close()):
                continue
            self._texts.setdefault(field, []).append(rest)
            delta[field] = rest
            if field != "content" and (details := self._details.entries_of(rest)):
                delta[DETAILS] = [*details, *(delta.get(DETAILS) or ())]

    def _show_text(self, delta: Json) -> None:
        """Buffer blank text until words follow, and set the first words apart from what was shown before."""
        text = delta.get("content")
        if not isinstance(text, str) or not text:
            return
        self._text_length += len(text.strip())
        if not self._text_begun:
            text = self._blank + text
            if text.isspace():
                self._blank = text
                del delta["content"]
                return
            self._text_begun = True
            separator = self._call.separator
            if separator is not None:
                text = separator + without_blank_lines_before(text)
        self._show_content(delta, text)

    def _show_content(self, delta: Json, text: str) -> bool:
        """Put text into the delta without marks, with at most one blank line at its end; whether any is left."""
        text, citations = self._marks.feed(self._ending.feed(text))
        delta["content"] = text
        if citations:
            delta[CITATIONS] = citations
        return bool(text or citations)

    def _show_others(self, delta: Json) -> None:
        """Show the other fields: text as it comes, objects and lists only where the turn is the last one.

        Those of several turns would be taken for pieces of one, which SDKs fail to put together. Text is a stream of
        its own until the turn has called a server tool.
        """
        if details := delta.get(DETAILS):
            delta[DETAILS] = shifted(details, self._call.first_detail)
        is_hidden = bool(self._calls.calls) and not self._calls.shown
        aside: Json = {}
        for key in [key for key in delta if key not in _LIVE_KEYS]:
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
        is_long_enough = self._text_length >= PROOF_CHARACTERS and not self._calls.calls
        if not (self._calls.shown or is_long_enough) or self._buffering is Buffering.ALL:
            return []
        self._buffering = Buffering.NONE
        visible, self._buffer = self._buffer, []
        return visible
