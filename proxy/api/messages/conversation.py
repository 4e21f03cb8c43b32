"""A conversation in content blocks -> the messages of Chat Completions.

One assistant message may hold several turns of the loop: thoughts, text, calls and results, then thoughts again, and
so on. Only the order of the blocks tells the turns apart: the first block after results that is not a result begins the
next turn. Each turn becomes an assistant message, followed directly by one tool message per call, in call order. The
results of the client's own calls, in the last turn, are in the client's next message.

What a message says by itself is read first (`_Reading`), and once for all requests that send it; how the messages
follow one another is read in each request.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any, TypeAlias

import orjson
from msgspec import Struct

from proxy.api.history import PastCall, PastResult, assistant_message, content_of, joined_text, result_of, with_results
from proxy.api.json_bounds import MOST_MESSAGES
from proxy.api.known import Known, is_read
from proxy.api.messages.history import NO_CHANGES, TOOL_CHANGES, HistoryChanges
from proxy.api.messages.pages import SERVER_NAME, FoundPage, model_text_of, other_text_of, search_in
from proxy.api.messages.parts import BETWEEN, as_blocks, is_known, named, parts_of, refuse, string_in
from proxy.api.messages.signatures import Signed, may_say
from proxy.api.unshown import ALL_FAULTS, NO_FAULTS, Forgiven, NotShown, Unshown, note, type_of
from proxy.loop.prompts import EMPTY_RESULT, FAILED_RESULT, NO_PAGES
from proxy.turn.call_ids import server_call_id
from proxy.turn.carried import Carried
from proxy.wire.cache_marks import MARK, markable_content
from proxy.wire.chat import Json
from proxy.wire.errors import RequestError

Unseal: TypeAlias = Callable[[Any], str | None]
"""Opens a text that was sealed for this client; None: it was sealed elsewhere, for another client, or changed."""

_Entry: TypeAlias = tuple[int, Json]  # a message, with its position


def _unsigned(_: str) -> Signed:
    """A signature that says nothing."""
    return Signed()


# The mark of the first block of Claude Code's system prompt, which differs in every request and would make the
# upstream's cache useless.
_BILLING = "x-anthropic-billing-header"
_HOSTED_RESULTS = ("web_search_tool_result", "web_fetch_tool_result", "code_execution_tool_result")
_ALWAYS_SHOWN = ("web_search", "web_fetch")  # calls that are ours even where the tool is no longer there
_SERVER_CALLS, _SERVER_RESULTS = ("server_tool_use", "mcp_tool_use"), (*_HOSTED_RESULTS, "mcp_tool_result")
_LEFT_OUT = frozenset({*_SERVER_CALLS, "redacted_thinking"})  # in assistant messages, and nothing new
# In assistant messages. A compaction is the summary of what came before, by a server that makes some.
_READ = frozenset({"text", "thinking", "tool_use", "compaction", *_SERVER_CALLS, *_SERVER_RESULTS})
# Anthropic's own words, by which Claude Code recognises the fault and advises how to mend it.
_NO_RESULT = (
    "`tool_use` ids were found without `tool_result` blocks immediately after: {call_id}. "
    "Each `tool_use` block must have a corresponding `tool_result` block in the next message."
)
# The run, the number of the call in the run, and its turn. Ids from an earlier version of the proxy have no turn.
_OURS = re.compile(r"toolu_([0-9a-f]{32})_([0-9]+)(?:_([0-9]+))?")
_SHOWN = re.compile(r"(?:srv|mcp)toolu_([0-9a-f]{32})_([0-9]+)(?:_([0-9]+))?")


def tool_use_id(client_id: str, turn: int) -> str:
    """The id of a `tool_use` block, made from the id that the loop gave to the client's call."""
    return f"{client_id.replace('call_', 'toolu_', 1)}_{turn}"


def shown_call_id(run_id: str, number: int, turn: int) -> str:
    """The id of a run's `server_tool_use` block."""
    return f"srvtoolu_{run_id}_{number}_{turn}"


def _origin_of(block: Json) -> str | None:
    """The run and the turn in the id of a call's block; None if the id was not made here."""
    block_id = block.get("id")
    found = (_OURS.fullmatch(block_id) or _SHOWN.fullmatch(block_id)) if isinstance(block_id, str) else None
    return f"{found[1]}_{found[3]}" if found and found[3] else None


def _client_id(block_id: str) -> str:
    """The loop's id for the id of a `tool_use` block; an id that was not made here is returned unchanged."""
    match = _OURS.fullmatch(block_id)
    return f"call_{match[1]}_{match[2]}" if match else block_id


class BlockConversation(Struct, frozen=True):
    """The conversation of a chat request.

    Attributes:
        messages: the messages of the chat request.
        pages: the pages that its visible searches have found, which the answer may cite.
        effort: the effort that its system messages ask for; None: they ask for none.
        unshown: the types of blocks that the model is not shown.
    """

    messages: list[Json]
    pages: Sequence[FoundPage]
    effort: str | None = None
    unshown: Collection[str] = ()


def read_conversation(
    system: Any,
    messages: Any,
    unseal: Unseal,
    own_names: Mapping[str, str],
    *,
    changes: HistoryChanges = NO_CHANGES,
    read_signature: Callable[[str], Signed] = _unsigned,
    keeps_marks: bool = False,
    for_answer: bool = True,
) -> BlockConversation:
    """The conversation of a request.

    Args:
        system: the request's `system`.
        messages: the request's `messages`.
        unseal: opens text that this proxy sealed for the client.
        own_names: the client's names of server tools -> the names of the tools.
        changes: the changes by its system messages.
        read_signature: reads the signatures of thoughts.
        keeps_marks: whether marks of caches stay in the texts of system prompts and users.
        for_answer: whether it is to be answered, so that it must not end with an assistant message.

    Raises:
        RequestError: it is not well formed; `param` is the place, such as `messages.1.content.0.source`.
    """
    if not isinstance(messages, list) or not messages:
        refuse("messages", "must be a list of messages, at least one")
    if len(messages) > MOST_MESSAGES:
        refuse("messages", f"may hold {MOST_MESSAGES} messages at most")
    reader = _Reader(_Asked(unseal, own_names, read_signature), keeps_marks=keeps_marks)
    chat = [{"role": "system", "content": prompt}] if (prompt := reader.system_prompt(system, "system")) else []
    chat += reader.read(messages, changes.left_out)
    roles = [role for message in chat if (role := message["role"]) != "system"]
    if not roles:
        refuse("messages", "must hold a message that is not empty")
    if for_answer and roles[-1] == "assistant":
        if messages[-1]["role"] == "user":
            refuse(f"messages.{len(messages) - 1}.content", "must not be empty")
        refuse("messages", "the last message must be the user's: prefill is not supported")
    return BlockConversation(chat, reader.pages, changes.effort, reader.unshown.types)


class _Call(PastCall, kw_only=True):
    """A call of a turn; `block_id` is its id in the client's block, `id` its id in the chat request."""

    block_id: str
    is_server_tool: bool


class _Turn(Struct):
    """An upstream turn, read back from an assistant message: its thoughts, text and calls.

    `origin` is the run and turn in the ids of its calls; None: the ids were not made here. `carried` are the fields
    that the signature of its thoughts holds for it. Once the turn is read, `message` is that of the chat.
    """

    thoughts: list[str] = []
    texts: list[str] = []
    calls: list[_Call] = []
    has_results: bool = False
    ends_with_citation: bool = False
    origin: str | None = None
    carried: Carried = Carried()
    message: Json = {}
    _by_id: dict[str, _Call] = {}

    def continues_with(self, origin: str | None) -> bool:
        """Whether a call of this origin belongs to the turn, although it comes after the turn's results."""
        return origin is not None and origin == self.origin

    def add_text(self, text: str, *, is_cited: bool) -> None:
        """Add a block of text as a new paragraph, unless it continues a text that was split at a citation."""
        if self.texts and not (is_cited or self.ends_with_citation):
            self.texts.append(BETWEEN)
        self.texts.append(text)
        self.ends_with_citation = is_cited

    def add_call(self, call: _Call) -> None:
        """Add a call; of several with one id, results belong to the first."""
        self.calls.append(call)
        self._by_id.setdefault(call.id, call)

    def call(self, call_id: object) -> _Call | None:
        """The call that was added with that id."""
        return self._by_id.get(call_id) if isinstance(call_id, str) else None

    def result_of(self, call: _Call, answers: Mapping[str, PastResult]) -> PastResult | None:
        """The result of a call of the turn: its own, or the client's in `answers`, by id."""
        return call.result or (answers.get(call.id) if self._by_id[call.id] is call else None)

    def close(self) -> None:
        """Take no more blocks.

        Server calls without a result are left out. The others get the ids that they had in the run: with these ids, the
        loop finds what is stored under the run and puts it back into its place.
        """
        self.calls = [call for call in self.calls if call.result is not None or not call.is_server_tool]
        for call in self.calls:
            match = _SHOWN.fullmatch(call.id) if call.is_server_tool else None
            if match is not None:
                call.id = server_call_id(match[1], int(match[2]))
        message = assistant_message("".join(self.texts), self.thoughts, self.calls)
        self.message = self.carried.put_into(message) if self.carried else message


class _Result(Struct, frozen=True):
    """A result of a client's call, in the block with the number `at` of its message; `given` is the id in the block."""

    at: int
    given: str
    call_id: str
    result: PastResult


class _Asked(Struct, frozen=True):
    """What the translation of a message may depend on, beside the message: what its request has, and its client."""

    unseal: Unseal
    own_names: Mapping[str, str]
    read_signature: Callable[[str], Signed]


class _Reading(Struct, frozen=True):
    """A message translated by itself: the assistant's turns, or the user's tool results and content parts."""

    turns: Sequence[_Turn] = ()
    results: Sequence[_Result] = ()
    parts: Sequence[Json] = ()


class _Reader:
    """Reads messages in order. The last turn is kept open for results in the next message.

    So is what the user says: an empty message of the assistant does not separate two messages of the user.
    """

    def __init__(self, asked: _Asked, *, keeps_marks: bool) -> None:
        self._asked = asked
        self._depends_on_request = False  # whether what is being translated may be another in another request
        self._keeps_marks = keeps_marks
        self._open: _Turn | None = None
        self._answers: dict[str, PastResult] = {}  # to the client's calls of the open turn, by id
        self._said: list[Json] = []  # by the user, and not yet in the chat
        self._chat: list[Json] = []
        self.pages: list[FoundPage] = []  # found by the searches so far
        self._system: list[Json] = []  # system messages that stand between calls and their results

        self.unshown = Unshown()
        self._forgiven: Forgiven = NO_FAULTS  # of what the user has just said
        self._first_new = 0  # the number of the first message behind the last one of the assistant

    def read(self, messages: list[Any], left_out: Collection[int]) -> list[Json]:
        roles = [message.get("role") if isinstance(message, dict) else None for message in messages]
        if "assistant" in roles:
            # Whoever sends the first message can mend it. Later, an agent may have put a file into it for good.
            self._first_new = len(roles) - roles[::-1].index("assistant")
            self._forgiven = (NotShown,)
        entries = [(at, message) for at, message in enumerate(messages) if at not in left_out]
        for role, group in groupby(entries, _role_of):
            match role:
                case "assistant":
                    for turn in self._reading_of([*group], self._read_assistant).turns:
                        self._close_turn()
                        self._open = turn
                case "user":
                    self._take_user([*group])
                case _:
                    self._read_system([*group])
        self._close_turn()
        self._end_user_message()
        return self._chat

    def _add(self, messages: Iterable[Json]) -> None:
        """Add messages to the chat; a user's message is held back, because the next one may belong to it."""
        for message in messages:
            if message["role"] == "user":
                self._said += message["content"]
                continue
            if self._said:
                self._end_user_message()
            self._chat.append(message)

    def _end_user_message(self) -> None:
        if self._said:
            content = markable_content if self._keeps_marks else content_of
            self._chat.append({"role": "user", "content": content(self._said, BETWEEN)})
            self._said = []

    def _read_system(self, group: list[_Entry]) -> None:
        for at, message in group:
            where = f"messages.{at}.content"
            prompt = self.system_prompt(as_blocks(message.get("content"), where), where)
            if prompt and self._open:
                self._system.append({"role": "system", "content": prompt})
            elif prompt:
                self._add([{"role": "system", "content": prompt}])

    def system_prompt(self, content: Any, where: str) -> str | list[Json]:
        """The content of a system prompt without Claude Code's version block. Raises `RequestError`."""
        if isinstance(content, str) and content.startswith(_BILLING):
            content = content.partition("\n")[2].lstrip()
        known: dict[str, Any] = {}
        for at, block in enumerate(as_blocks(content, where)):
            if not self._note_unknown(block) and (not isinstance(block, dict) or block.get("type") not in TOOL_CHANGES):
                known[f"{where}.{at}"] = block
        forgiven = NO_FAULTS if where == "system" else ALL_FAULTS
        parts = [part for place, block in known.items() for part in self._parts_of(block, place, forgiven)]
        if any(part["type"] != "text" for part in parts):
            if not forgiven:
                refuse(where, "may hold text only")
            parts = [part if part["type"] == "text" else self._note("image") for part in parts]
        prompt = [part for part in parts if not part["text"].startswith(_BILLING)]
        return markable_content(prompt, BETWEEN) if self._keeps_marks else joined_text(prompt, BETWEEN)

    def _parts_of(self, block: Any, where: str, forgiven: Forgiven) -> list[Json]:
        """The parts of a block, with its mark of a cache if marks are kept; a note if it has a fault that is forgiven.

        Raises:
            RequestError: it has another fault.
        """
        try:
            parts = parts_of(block, where)
        except forgiven:
            return [self._note(type_of(block))]
        if self._keeps_marks and parts and parts[-1]["type"] == "text" and isinstance(block.get(MARK), dict):
            parts[-1][MARK] = block[MARK]
        return parts

    def _note_unknown(self, block: Any) -> bool:
        """Note the type of a block if it is unknown; whether it is."""
        if is_known(block) or block["type"] in TOOL_CHANGES:
            return False
        self._note(type_of(block))
        return True

    def _note(self, kind: str) -> Json:
        """A note in the place of a block of that type, which the log names."""
        self._depends_on_request = True  # elsewhere in a conversation, the block may be refused
        self.unshown.add(kind)
        return note(kind)

    @property
    def _request(self) -> _Asked:
        """What the request decides; there is no other way to it, so that no cached translation depends on it."""
        self._depends_on_request = True
        return self._asked

    def _reading_of(self, group: list[_Entry], read: Callable[[Mapping[str, Any]], _Reading]) -> _Reading:
        """The translation of a group of messages; `read` translates their content blocks, each under its path."""
        alone = group[0][1] if len(group) == 1 else None
        if is_read(alone):
            known: _Reading = alone.reading
            return known
        blocks = {
            f"messages.{at}.content.{number}": block
            for at, message in group
            for number, block in enumerate(as_blocks(message.get("content"), f"messages.{at}.content"))
        }
        self._depends_on_request = False
        reading = read(blocks)
        if isinstance(alone, Known) and not self._depends_on_request:
            alone.reading = reading
        return reading

    def _take_user(self, group: list[_Entry]) -> None:
        """Add the results of the open turn's calls, and keep what else the user says."""
        rest: list[Json] = []
        for one in group:
            read = partial(self._read_user, forgiven=self._forgiven if one[0] >= self._first_new else ALL_FAULTS)
            reading = self._reading_of([one], read)
            for result in reading.results:
                self._take_result(result, f"messages.{one[0]}.content.{result.at}")
            rest += reading.parts
        self._close_turn()
        self._said += rest

    def _take_result(self, result: _Result, where: str) -> None:
        call = self._open.call(result.call_id) if self._open else None
        if result.call_id in self._answers:
            refuse(where, f"there are two results for the call {named(result.given)}")
        if call is None or call.is_server_tool:
            refuse(where, f"there is no call {named(result.given)} in the message before for this tool_result")
        self._answers[result.call_id] = result.result

    def _close_turn(self) -> None:
        """Close the open turn. Raises `RequestError` if one of its calls has no result."""
        if self._open is None:
            return
        turn, self._open = self._open, None
        results: list[PastResult] = []
        for call in turn.calls:
            if (result := turn.result_of(call, self._answers)) is None:
                refuse("messages", _NO_RESULT.format(call_id=call.block_id))
            results.append(result)
        self._add(with_results(turn.message, results))  # pictures become a part of what the user says next
        self._add(self._system)
        self._answers, self._system = {}, []

    def _read_assistant(self, blocks: Mapping[str, Any]) -> _Reading:
        turns = [_Turn()]
        for place, block in blocks.items():
            kind, turn = block.get("type") if isinstance(block, dict) else None, turns[-1]
            if not isinstance(kind, str) or kind not in _READ or (kind in _SERVER_CALLS and not self._is_ours(block)):
                if isinstance(kind, str) and kind not in _LEFT_OUT:
                    self._note_unknown(block)
                continue  # a block of another server's tool, or of a type that is not known yet
            # The order tells the turns apart, but the AI SDK moves the client's calls to the end of the message.
            is_late = kind == "tool_use" and turn.continues_with(_origin_of(block))
            if turn.has_results and kind not in _SERVER_RESULTS and not is_late:
                turns.append(_Turn())
            self._read_block(turns[-1], block, place)
        for turn in turns:
            turn.close()
        return _Reading(turns)

    def _is_ours(self, use: Json) -> bool:
        """Whether the block of a server's call is of a kind that this proxy shows."""
        if use["type"] == "mcp_tool_use":
            return use.get("server_name") == SERVER_NAME
        name = use.get("name")
        return name in _ALWAYS_SHOWN or (isinstance(name, str) and name in self._request.own_names)

    def _read_block(self, turn: _Turn, block: Json, where: str) -> None:
        """Add a block to its turn."""
        match block["type"]:
            case "text":
                if isinstance(text := block.get("text"), str) and text:
                    turn.add_text(text, is_cited=bool(block.get("citations")))
            case "compaction":  # without a content where it has failed
                if isinstance(summary := block.get("content"), str) and summary:
                    turn.add_text(summary, is_cited=False)
            case "thinking":
                thoughts = shown if isinstance(shown := block.get("thinking"), str) else ""
                if may_say(signature := block.get("signature"), has_thoughts=bool(thoughts)):
                    signed = self._request.read_signature(signature)
                    turn.carried = signed.carried or turn.carried
                    thoughts = thoughts or signed.thoughts
                if thoughts:
                    turn.thoughts.append(thoughts)
            case "tool_use" | "server_tool_use" | "mcp_tool_use":
                turn.origin = _origin_of(block)
                turn.add_call(self._read_call(block, where))
            case _:
                known = turn.call(block.get("tool_use_id"))
                if known is not None and known.is_server_tool and known.result is None:
                    known.result = PastResult(self._read_result(block, known.name))
                    turn.has_results = True

    def _read_call(self, block: Json, where: str) -> _Call:
        """The call in the block at `where`. Raises `RequestError`."""
        for key in ("id", "name"):
            if not isinstance(block.get(key), str) or not block[key]:
                refuse(f"{where}.{key}", "must be a string")
        given, block_id, name = block.get("input"), block["id"], block["name"]
        try:
            arguments = orjson.dumps({} if given is None else given).decode()
        except orjson.JSONEncodeError as exc:
            raise RequestError(f"{where}.input: is nested too deep", param=f"{where}.input") from exc
        if block["type"] == "tool_use":
            return _Call(_client_id(block_id), name, arguments, block_id=block_id, is_server_tool=False)
        if block["type"] == "server_tool_use":
            name = self._request.own_names.get(name, name)
        return _Call(block_id, name, arguments, block_id=block_id, is_server_tool=True)

    def _read_user(self, blocks: Mapping[str, Any], forgiven: Forgiven) -> _Reading:
        results: list[_Result] = []
        parts: list[Json] = []
        for at, (place, block) in enumerate(blocks.items()):
            if isinstance(block, dict) and block.get("type") == "tool_result":
                results.append(self._result_in(block, at, place))
            else:
                self._note_unknown(block)
                parts += self._parts_of(block, place, forgiven)
        return _Reading(results=results, parts=parts)

    def _read_result(self, block: Json, tool: str) -> str:
        """The result of a server's call as the model has read it, from the result block."""
        content = block.get("content")
        if block["type"] == "mcp_tool_result":
            return other_text_of(content, tool, is_error=block.get("is_error") is True)
        if not isinstance(content, list):
            return model_text_of(content, tool)
        pages, text = search_in(content, tool, self._request.unseal)
        self.pages += pages
        return text or self._request.unseal(block.get("encrypted_content")) or NO_PAGES

    def _result_in(self, block: Json, at: int, where: str) -> _Result:
        given = string_in(block, "tool_use_id", where)
        parts: list[Json] = []
        for one in as_blocks(block.get("content"), f"{where}.content"):
            self._note_unknown(one)
            parts += self._parts_of(one, where, ALL_FAULTS)
        result = result_of(parts, BETWEEN, if_empty=EMPTY_RESULT)
        if block.get("is_error") is True:
            result = PastResult(FAILED_RESULT.format(text=result.text), result.pictures)
        return _Result(at, given, _client_id(given), result)


def _role_of(entry: tuple[int, Any]) -> str:
    """The role of a message, which has a content. Raises `RequestError`."""
    at, message = entry
    if is_read(message):
        return str(message["role"])
    where = f"messages.{at}"
    if not isinstance(message, dict):
        refuse(where, "must be an object with `role` and `content`")
    role: Any = message.get("role")
    if role not in ("user", "assistant", "system"):
        refuse(f"{where}.role", "must be `user`, `assistant` or `system`")
    content = message.get("content")
    if content is None and role != "system":
        refuse(f"{where}.content", "must be a string or a list of content blocks")
    as_blocks(content, f"{where}.content")
    return str(role)
