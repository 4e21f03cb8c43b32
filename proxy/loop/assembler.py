"""Chunks -> one Turn, and what of each chunk may be shown now.

The assembler *removes* from a chunk what must not be shown and never rebuilds one from known keys: a field that a
provider adds tomorrow survives. What it takes away:

    role              the client's stream has one role delta, sent before anything else
    tool calls        the server's are hidden; the client's own are re-indexed without gaps and shown as they come
    finish_reason     which turn is the last is known only at its end
    usage             summed over the turns by the run
    leaked calls      tool calls in the raw format of the model, in its text or its thoughts, become tool calls
    what is beside    objects and lists that nobody here knows (`provider_metadata`): only the last turn's are shown
    content in parts  becomes text and `reasoning_content`
    blank beginnings  GLM-4.5 opens with a lone newline before it thinks; it is shown when text follows
    marks             gpt-oss's citations, `【0†L1-L3】`: where they stood is told beside the text (`citations`)
    blank lines       one between this turn's text and the next one's is enough (`seams`)

Known only at the end of a turn: whether it is the answer. A turn that was *made* to answer may still fail to, so its
beginning is held back until enough text has come to tell.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from msgspec import Struct, field

from proxy.loop.actions import Buffering, CallUpstream
from proxy.loop.chat import (
    BROKEN_OFF,
    TEXT_FIELDS,
    Json,
    ToolCall,
    Turn,
    calls_of,
    name_of,
    parts_beside_text,
    text_of,
    thoughts_of,
)
from proxy.loop.citations import CITATIONS, MarkFilter
from proxy.loop.continuation import client_call_id
from proxy.loop.details import DETAILS, ThoughtsInDetails, shifted
from proxy.loop.endings import inferred_reason
from proxy.loop.errors import UpstreamError
from proxy.loop.leaks import Leak, LeakFilter, clean_name, may_leak, parse_glm
from proxy.loop.rawjson import ObjectScanner
from proxy.loop.seams import Ending, without_blank_lines_before
from proxy.loop.sse import dumps

# A forced turn that has written this much text is taken for an answer and shown from then on. "I'll search for ..."
# before one more tool call is shorter; at a model's usual pace the wait is a second or two.
PROOF_CHARACTERS = 160

# Calls leak into what the model says and into what it thinks, which comes under one of two names.
_LEAKY_FIELDS = ("content", "reasoning_content", "reasoning")
_CHOICE_KEYS = ("index", "delta", "message", "finish_reason")
_PLAIN_CHOICE = frozenset({"index", "delta", "finish_reason", "logprobs"})
_FOLDED_KEYS = (*TEXT_FIELDS, "tool_calls")
_FOLDED_SET = frozenset(_FOLDED_KEYS)
_LIVE_KEYS = frozenset({*_FOLDED_KEYS, DETAILS, CITATIONS, "audio"})  # what a stream is made of
_CALL_KEYS = ("id", "index", "type", "function")
_RESULT_KEYS = ("web_search",)  # what GLM's native search found, beside the choices
_NOT_IN_ENVELOPE = ("choices", "usage")


NO_REASON = "The upstream's stream ended without a finish_reason."
_NOTHING = Buffering.NONE  # asked for each chunk, see `breaker`


class _Call(Struct):
    """A tool call on its way in."""

    id: str = ""
    type: str = "function"
    name: str = ""
    arguments: list[str] = []
    extra: Json = {}  # whatever else the provider says of it
    shown_as: int | None = None  # its index in the client's stream
    client_id: str | None = None
    told_ready: bool = False
    is_whole: bool = False  # the arguments are an object already; nothing can follow one
    scanner: ObjectScanner = field(default_factory=ObjectScanner)

    @property
    def text(self) -> str:
        """The arguments so far."""
        return "".join(self.arguments)

    def append(self, arguments: str) -> None:
        """More of the arguments."""
        self.arguments.append(arguments)
        if self.scanner.feed(arguments):
            self.is_whole = _is_json(self.text)

    def entry(self) -> Json:
        """As an entry of a message's `tool_calls`."""
        function = {"name": self.name, "arguments": self.text}
        return {**self.extra, "id": self.id, "type": self.type, "function": function}


class Assembler:
    """Takes the chunks of one upstream stream in and gives one `Turn` out.

    Feed it every chunk, close it, then ask for the turn; after each chunk, calls may have become ready to be run:

        (feed(chunk)  take_ready())*  -->  close()  -->  finish()

    Args:
        call: what was asked; says which calls are the client's, and how the text is to be set apart.
    """

    def __init__(self, call: CallUpstream) -> None:
        self._call = call
        self._filters = {
            key: LeakFilter(call.known_names, json_expected=call.expects_json) for key in _LEAKY_FIELDS if call.tools
        }
        self._hold = call.buffering
        self._held: list[Json] = []
        self._blank = ""
        self._ending = Ending()
        self._marks = MarkFilter(call.cite) if call.cite is not None else None
        self._text_begun = False
        self._text_length = 0
        self._texts: dict[str, list[str]] = {}
        self._parts: list[Any] = []  # of its content that are no text, thoughts mostly
        self._extra: Json = {}  # whatever else the provider says in its deltas (reasoning_details, ...)
        self._details = ThoughtsInDetails()
        self._aside: list[Json] = []  # deltas of it that wait for the turn to prove the last one
        self._calls: dict[int, _Call] = {}
        self._shown_calls = 0
        self._envelope: Json = {}
        self._choice: Json = {}
        self._usage: Json | None = None
        self._finish_reason = ""
        self._speaking: set[str] = set()  # the fields of the latest chunk that brought anything
        self._fluent = ""  # the only one of them, where more of it can go the short way
        self._keys: set[str] = set()  # of the latest chunk; all of them are in the envelope that belong there

    def feed(self, chunk: Json) -> list[Json]:
        """Take one chunk in (and apart) and return what may be shown now, in order."""
        self._usage = chunk.pop("usage", None) or self._usage
        choices: Sequence[Json] = chunk.get("choices") or ()
        if self._fluent and len(choices) == 1 and chunk.keys() == self._keys:
            shown = self._speak_on(choices[0])
            if shown is not None:
                return [chunk] if shown else []
        if chunk.keys() != self._keys:
            self._keys = set(chunk)
            for key in chunk:
                if key not in self._envelope and key not in _NOT_IN_ENVELOPE:
                    self._envelope[key] = chunk[key]
        visible: list[Json] = []
        for choice in choices:
            if not choice.get("index") and self._take(choice):
                visible = [chunk if len(choices) == 1 else {**chunk, "choices": [choice]}]
        if not visible and any(chunk.get(key) for key in _RESULT_KEYS):
            visible = [{**chunk, "choices": []}]
        released = self._release(visible)
        self._fluent = self._field_that_goes_on()
        return released

    def _field_that_goes_on(self) -> str:
        """The field of which more can be shown as it comes; none while there is anything else to see to."""
        if self._hold is not _NOTHING or len(self._speaking) != 1 or not self._keys.isdisjoint(_RESULT_KEYS):
            return ""
        (key,) = self._speaking
        return key if key in TEXT_FIELDS and (self._text_begun or key != "content") else ""

    def _speak_on(self, choice: Json) -> bool | None:
        """The short way, which nearly all chunks go: more of the text that the chunk before had, and nothing else.

        Whether anything of it may be shown; None: it is something else, and nothing was done.
        """
        delta, key = choice.get("delta"), self._fluent
        if not delta or len(delta) != 1 or not (text := delta.get(key)) or text.__class__ is not str:
            return None
        if not choice.keys() <= _PLAIN_CHOICE:
            return None
        if choice.get("index") or choice.get("logprobs") or choice.get("finish_reason"):
            return None
        choice["finish_reason"] = None
        leaks = self._filters.get(key)
        if leaks:
            text = delta[key] = leaks.feed(text)
        self._texts[key].append(text)
        return self._set_content(delta, text) if key == "content" else bool(text)

    def take_ready(self) -> list[ToolCall]:
        """The calls that are not the client's and whose arguments have become complete since this was last asked."""
        ready: list[ToolCall] = []
        if not self._calls:
            return ready
        last = max(self._calls)
        for index, call in self._calls.items():
            if call.told_ready or not call.name or call.client_id or not (index < last or call.is_whole):
                continue
            call.told_ready = True
            ready.append(ToolCall(call.id, call.name, call.text))
        return ready

    def close(self, *, done: bool = False) -> list[Json]:
        """The stream has ended: what was kept back as a possible leak and was none, or was a call of the client's.

        Args:
            done: whether it ended with `[DONE]`.

        Raises:
            UpstreamError: it ended without a finish_reason and not in order, or with nothing whole in it, so nothing
                in it can be relied on.
        """
        delta: Json = {}
        for key, leaks in self._filters.items():
            if rest := leaks.close():
                self._show_rest(delta, key, rest)
        self._show_text(delta)
        if DETAILS in delta:
            delta[DETAILS] = shifted(delta[DETAILS], self._call.first_detail)
        for leak in found_leaks(self._filters, has_calls=bool(self._calls), text=self._text("content")):
            self._adopt(leak, delta)
        self._finish_reason = self._finish_reason or (self._inferred_reason() if done else "")
        if not self._finish_reason:
            raise UpstreamError(NO_REASON)
        rest = self._marks.close() if self._marks is not None else ""
        if not self._goes_on():
            rest += self._ending.close()
        if rest:
            delta["content"] = delta.get("content", "") + rest
        return self._release([self._chunk(delta)] if any(delta.values()) else [])

    def _goes_on(self) -> bool:
        """Whether the run does not end with this turn: it calls tools of the server's and none of the client's."""
        return bool(self._calls) and not self._shown_calls and self._finish_reason not in BROKEN_OFF

    def finish(self) -> Turn:
        """The whole turn."""
        message = self._message()
        calls = self._calls_in_order()
        return Turn(
            message,
            self._finish_reason,
            self._choice,
            self._envelope,
            calls_of(message),
            self._usage,
            buffered=tuple(self._held),
            aside=tuple([self._chunk(delta) for delta in self._aside]),
            garbled=self._is_garbled(),
            client_ids=tuple(call.client_id for call in calls),
            step=self._call.step,
        )

    def _message(self) -> Json:
        """The assistant message as received, its leaked calls among its calls."""
        message: Json = {"role": "assistant", **self._extra}
        message.update({key: text for key in self._texts if (text := self._text(key))})
        if self._parts:
            message.pop("reasoning_content", None)  # they hold it
            message["content"] = with_text(self._parts, self._text("content"))
        if self._calls:
            message["tool_calls"] = [call.entry() for call in self._calls_in_order()]
        else:
            message.setdefault("content", "")
        return message

    def _calls_in_order(self) -> list[_Call]:
        return [call for _, call in sorted(self._calls.items())]

    def _is_garbled(self) -> bool:
        return any(leaks.garbled for leaks in self._filters.values())

    def _inferred_reason(self) -> str:
        """Why the model stopped, where the upstream has not said so; empty where nothing whole has come."""
        reason = inferred_reason(self._message(), self._call.body, self._usage)
        return reason or ("stop" if self._is_garbled() else "")

    def _chunk(self, delta: Json) -> Json:
        return {**self._envelope, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}

    def _text(self, key: str) -> str:
        return "".join(self._texts.get(key, ()))

    def _take(self, choice: Json) -> bool:
        """Fold a choice in, remove what must not be shown from it, and say whether anything is left."""
        self._finish_reason = choice.pop("finish_reason", None) or self._finish_reason
        choice["finish_reason"] = None
        for key, value in choice.items():
            if key not in _CHOICE_KEYS and value is not None:
                self._choice[key] = value
        delta = choice["delta"] = choice.get("delta") or {}
        delta.pop("role", None)
        if delta.get("content").__class__ is list:
            self._take_parts(delta)
        going_on = {key for key in (*TEXT_FIELDS, "tool_calls") if delta.get(key)}
        self._fold_extra(delta)
        self._filter_texts(delta)
        if going_on:
            self._settle(delta, going_on)
            self._speaking = going_on
        self._show_text(delta)
        self._show_calls(delta)
        if not delta.keys() <= _FOLDED_SET:
            self._show_the_rest(delta)
        return any(value not in (None, "", []) for value in delta.values())

    def _fold_extra(self, delta: Json) -> None:
        for key, value in delta.items():
            if key not in _FOLDED_KEYS and value is not None:
                known = self._extra.get(key)
                self._extra[key] = known + value if isinstance(known, list) and isinstance(value, list) else value

    def _filter_texts(self, delta: Json) -> None:
        """Fold the texts in, and leave of them in the delta what is no leak."""
        for key in TEXT_FIELDS:
            if isinstance(text := delta.get(key), str):
                leaks = self._filters.get(key)
                delta[key] = leaks.feed(text) if leaks else text
                self._texts.setdefault(key, []).append(delta[key])
                if DETAILS in delta:
                    delta[DETAILS] = self._details.showing(delta[DETAILS], text, delta[key])

    def _take_parts(self, delta: Json) -> None:
        """Content in parts, as Mistral streams it, as text and thoughts."""
        content = delta["content"]
        self._parts += parts_beside_text(content)
        delta["content"] = text_of(delta)
        if thoughts := thoughts_of(content):
            delta["reasoning_content"] = (delta.get("reasoning_content") or "") + thoughts

    def _show_the_rest(self, delta: Json) -> None:
        """What the provider says besides: text as it comes, the rest only where the turn is the last one.

        Objects and lists of several turns would be taken for pieces of one, which SDKs fail to put together. Text is a
        stream of its own until the turn has called a server tool.
        """
        if details := delta.get(DETAILS):
            delta[DETAILS] = shifted(details, self._call.first_detail)
        is_hidden = bool(self._calls) and not self._shown_calls
        waits = [
            key for key, value in delta.items() if key not in _LIVE_KEYS and (is_hidden or value.__class__ is not str)
        ]
        aside = {key: value for key in waits if (value := delta.pop(key)) is not None}
        if aside:
            self._aside.append(aside)

    def _settle(self, delta: Json, going_on: set[str]) -> None:
        """When the model goes on to something else, what was kept back of its text before comes along."""
        for key, leaks in self._filters.items():
            if key not in going_on and (rest := leaks.close()):
                self._show_rest(delta, key, rest)

    def _show_rest(self, delta: Json, key: str, rest: str) -> None:
        """Show text that was kept back as a possible leak."""
        self._texts.setdefault(key, []).append(rest)
        delta[key] = rest
        if key != "content" and (details := self._details.kept_back(rest)):
            delta[DETAILS] = [*details, *(delta.get(DETAILS) or ())]

    def _show_text(self, delta: Json) -> None:
        """Hold blank text back until words follow, and set the first words apart from what was shown before."""
        text = delta.get("content")
        if not isinstance(text, str) or not text:
            return
        self._text_length += len(text.strip())
        if self._text_begun:
            self._set_content(delta, text)
            return
        text = self._blank + text
        if text.isspace():
            self._blank = text
            del delta["content"]
            return
        self._text_begun = True
        separator = self._call.separator
        if separator is not None:
            text = separator + without_blank_lines_before(text)
        self._set_content(delta, text)

    def _set_content(self, delta: Json, text: str) -> bool:
        """More of the text, as it may be shown: without marks, and with at most one blank line at its end.

        Whether there is anything to show.
        """
        text = self._ending.feed(text)
        if self._marks is not None:
            text, cited = self._marks.feed(text)
            if cited:
                delta["content"], delta[CITATIONS] = text, cited
                return True
        delta["content"] = text
        return bool(text)

    def _show_calls(self, delta: Json) -> None:
        """Fold tool-call fragments in and leave the client's own, re-indexed, in the delta."""
        fragments = delta.pop("tool_calls", None)
        shown = [shown for fragment in fragments or () if (shown := self._fold_call(fragment))]
        if shown:
            delta["tool_calls"] = shown

    def _fold_call(self, fragment: Json) -> Json | None:
        index = self._index_of(fragment)
        call = self._calls.setdefault(index, _Call(missing_id(self._call, index)))
        call.id = fragment.get("id") or call.id
        call.type = fragment.get("type") or call.type
        call.extra |= {key: value for key, value in fragment.items() if key not in _CALL_KEYS}
        function = fragment.get("function") or {}
        arguments = as_text(function.get("arguments"))
        if not call.name and (name := function.get("name")):
            call.name, arguments = unglue(name, arguments, self._call.tools)
        call.append(arguments)
        if call.name not in self._call.client_tools:
            return None
        if call.shown_as is None:
            return self._opening(call)
        # Readers of a stream join repeated strings, so id, type and name are said once.
        rest = {key: value for key, value in fragment.items() if key not in ("id", "type")}
        return {**rest, "index": call.shown_as, "function": {"arguments": arguments}}

    def _opening(self, call: _Call) -> Json:
        """The first that the client sees of a call of its own."""
        call.shown_as = self._shown_calls
        call.client_id = client_call_id(self._call.run_id, call.shown_as)
        self._shown_calls += 1
        return {"index": call.shown_as, **call.entry(), "id": call.client_id}

    def _adopt(self, leak: Leak, delta: Json) -> None:
        """Make a leaked call one like any other."""
        index = max(self._calls, default=-1) + 1
        name = self._call.renamed.get(leak.name, leak.name)
        call = self._calls[index] = _Call(missing_id(self._call, index), name=name, arguments=[leak.arguments])
        if call.name in self._call.client_tools:
            delta.setdefault("tool_calls", []).append(self._opening(call))

    def _index_of(self, fragment: Json) -> int:
        if has_index(fragment):
            return int(fragment["index"])
        return missing_index(fragment, {index: call.id for index, call in self._calls.items()})

    def _release(self, visible: list[Json]) -> list[Json]:
        if self._hold is _NOTHING:
            return visible
        self._held += visible
        proven = self._shown_calls or (self._text_length >= PROOF_CHARACTERS and not self._calls)
        if not proven or self._hold is Buffering.ALL:
            return []
        self._hold = _NOTHING
        visible, self._held = self._held, []
        return visible


def turn_from_completion(body: Json, call: CallUpstream) -> Turn:
    """A whole (not streamed) upstream answer, taken apart, as a Turn; its message is as received but for leaked calls.

    Raises:
        UpstreamError: it is no completion.
    """
    choices, usage = body.pop("choices", None), body.pop("usage", None)
    choice = choices[0] if choices else {}
    message, finish_reason = choice.pop("message", None), choice.pop("finish_reason", None)
    if not isinstance(message, dict):
        raise UpstreamError("The upstream's answer holds no message.")
    if not finish_reason:
        raise UpstreamError("The upstream's answer has no finish_reason.")
    for index, entry in enumerate(message.get("tool_calls") or ()):
        if not entry.get("id"):
            entry["id"] = missing_id(call, index)
        if isinstance(function := entry.get("function"), dict):
            name, arguments = function.get("name") or "", as_text(function.get("arguments"))
            function["name"], function["arguments"] = unglue(name, arguments, call.tools)
    garbled = _take_leaks_out(message, call) if call.tools else False
    ids = _client_ids(message, call) if message.get("tool_calls") else ()
    calls = calls_of(message)
    return Turn(message, finish_reason, choice, body, calls, usage, garbled=garbled, client_ids=ids, step=call.step)


def _is_json(text: str) -> bool:
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True


def _client_ids(message: Json, call: CallUpstream) -> tuple[str | None, ...]:
    entries = message["tool_calls"]
    if not call.client_tools:
        return (None,) * len(entries)
    ids: list[str | None] = []
    shown = 0
    for entry in entries:
        if name_of(entry) in call.client_tools:
            ids.append(client_call_id(call.run_id, shown))
            shown += 1
        else:
            ids.append(None)
    return tuple(ids)


def _take_leaks_out(message: Json, call: CallUpstream) -> bool:
    """Make calls that leaked into a message's texts calls like any other; whether raw format was found besides."""
    if isinstance(parts := message.get("content"), list):
        message["content"] = text = text_of(message)
        garbled = _take_leaks_out_of_texts(message, call)
        message["content"] = parts if message["content"] == text else with_text(parts, message["content"])
        return garbled
    return _take_leaks_out_of_texts(message, call)


def _take_leaks_out_of_texts(message: Json, call: CallUpstream) -> bool:
    filters: dict[str, LeakFilter] = {}
    for key in _LEAKY_FIELDS:
        text = message.get(key)
        if text.__class__ is str and may_leak(text):
            leaks = filters[key] = LeakFilter(call.known_names, json_expected=call.expects_json)
            message[key] = leaks.feed(text) + leaks.close()
    if not filters:
        return False
    entries = message.get("tool_calls") or []
    for leak in found_leaks(filters, has_calls=bool(entries), text=str(message.get("content") or "")):
        name = call.renamed.get(leak.name, leak.name)
        entries.append(_Call(missing_id(call, len(entries)), name=name, arguments=[leak.arguments]).entry())
    if entries:
        message["tool_calls"] = entries
    return any(leaks.garbled for leaks in filters.values())


def with_text(parts: Sequence[Any], text: str) -> list[Json]:
    """A content of parts with this text."""
    beside = parts_beside_text(parts)
    return [*beside, {"type": "text", "text": text}] if text else beside


def found_leaks(filters: dict[str, LeakFilter], *, has_calls: bool, text: str) -> list[Leak]:
    """The leaked calls that count. One in the model's thoughts does only where it did and said nothing else."""
    said = filters["content"].leaks if "content" in filters else []
    if said or has_calls or text.strip():
        return said
    return [leak for key, leaks in filters.items() if key != "content" for leak in leaks.leaks]


def unglue(name: str, arguments: str, tools: Any) -> tuple[str, str]:
    """A call's name without raw format around it, and its arguments, which GLM has been seen to glue to the name."""
    if name in tools:
        return name, arguments
    glued = parse_glm(name, tools)[0] if "<arg_key>" in name and not arguments.strip("{} ") else None
    return clean_name(name, tools), glued.arguments if glued else arguments


def as_text(arguments: object) -> str:
    """Arguments as JSON text: ZOAS and native Ollama have them as an object. Raises `UpstreamError`: it is too deep."""
    if arguments is None:
        return ""
    return arguments if isinstance(arguments, str) else dumps(arguments).decode()


def has_index(fragment: Json) -> bool:
    """Whether a fragment of a call says which call it belongs to; Z.AI has been seen to send -1, Mistral none."""
    index = fragment.get("index")
    return isinstance(index, int) and index >= 0


def missing_index(fragment: Json, known: Mapping[int, str]) -> int:
    """The index of a fragment without one: a new id opens a call, anything else goes on with the last one.

    Args:
        fragment: of a call.
        known: the calls of the turn so far, index -> id.
    """
    last, identity = max(known, default=-1), fragment.get("id")
    for index, known_id in known.items():
        if identity and known_id == identity:
            return index
    return last + 1 if identity or last < 0 else last


def missing_id(call: CallUpstream, index: int) -> str:
    """An id, unique in this run, for a call that came without one: the tool message that answers it has to name it."""
    return f"call_{call.run_id}t{call.number}_{index}"
