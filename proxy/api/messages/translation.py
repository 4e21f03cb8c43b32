"""A message of a Messages request translated by itself, once for all requests that send it.

The translation depends on the message and on a `TranslationContext`. The context has one door, `Translator._request`:
a translation that passes it is for this request alone.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias, TypeVar

import orjson
from msgspec import Struct, field

from proxy.api.history import PastResult, joined_text, result_of
from proxy.api.known import Known, is_read
from proxy.api.messages.call_ids import client_id, origin_of
from proxy.api.messages.history import TOOL_CHANGES
from proxy.api.messages.pages import SERVER_NAME, FoundPage, model_text_of, other_text_of, search_in
from proxy.api.messages.parts import BETWEEN, KNOWN_TYPES, as_blocks, field_in, parts_of, refuse
from proxy.api.messages.past_turns import BlockCall, PastTurn, Result
from proxy.api.messages.signatures import may_say, read_signature
from proxy.api.sealed import Sealer
from proxy.api.unshown import ALL_FAULTS, NO_FAULTS, Forgiven, Unshown, note, text_part, type_of
from proxy.loop.prompts import EMPTY_RESULT, FAILED_RESULT, NO_PAGES
from proxy.wire.cache_marks import MARK, markable_content
from proxy.wire.chat import Json
from proxy.wire.errors import RequestError

T = TypeVar("T")
Entry: TypeAlias = tuple[int, Json]
"""A message, with its position."""

# The mark of the first block of Claude Code's system prompt, which differs in every request and would make the
# upstream's cache useless.
_BILLING = "x-anthropic-billing-header"
_HOSTED_RESULTS = ("web_search_tool_result", "web_fetch_tool_result", "code_execution_tool_result")
_ALWAYS_SHOWN = ("web_search", "web_fetch")  # calls that are ours even where the tool is no longer there
_SERVER_CALLS, _SERVER_RESULTS = ("server_tool_use", "mcp_tool_use"), (*_HOSTED_RESULTS, "mcp_tool_result")
_LEFT_OUT = frozenset({*_SERVER_CALLS, "redacted_thinking"})  # in assistant messages, and nothing new
# In assistant messages. A compaction is the summary of what came before, by a server that makes some.
_READ = frozenset({"text", "thinking", "tool_use", "compaction", *_SERVER_CALLS, *_SERVER_RESULTS})


class TranslationContext(Struct, frozen=True):
    """What the translation of a message may depend on, beside the message: what its request has, and its client."""

    sealer: Sealer
    own_names: Mapping[str, str]


class Translator(Struct):
    """Translates the messages of one request.

    Attributes:
        asked: the parts of the request that a translation may depend on.
        keeps_marks: whether marks of caches stay in the texts of system prompts and users.
        pages: those that the searches so far have found.
        unshown: the types of blocks that the model is not shown.
    """

    asked: TranslationContext
    keeps_marks: bool
    pages: list[FoundPage] = field(default_factory=list)
    unshown: Unshown = field(default_factory=Unshown)
    _depends_on_request: bool = False  # whether the same message may have another translation in another request

    def assistant(self, group: Sequence[Entry]) -> Sequence[PastTurn]:
        """The turns in adjacent messages of the assistant. Raises `RequestError`."""
        return self._reading_of(group, self._read_assistant)

    def user(self, entry: Entry, forgiven: Forgiven) -> tuple[list[Result], list[Json]]:
        """The results and the parts in a message of the user's. Raises `RequestError` for a fault not forgiven."""
        if isinstance(content := entry[1].get("content"), str):
            return [], [text_part(content)] if content else []
        return self._reading_of([entry], partial(self._read_user, forgiven=forgiven))

    def system_prompt(self, content: Any, where: str) -> str | list[Json]:
        """The content of a system prompt without Claude Code's version block. Raises `RequestError`."""
        if isinstance(content, str) and content.startswith(_BILLING):
            content = content.partition("\n")[2].lstrip()
        forgiven = NO_FAULTS if where == "system" else ALL_FAULTS
        parts: list[Json] = []
        for at, block in enumerate(as_blocks(content, where)):
            is_change = isinstance(block, dict) and block.get("type") in TOOL_CHANGES
            if not is_change and not self._note_unknown(block):
                parts += self._parts_of(block, f"{where}.{at}", forgiven)
        if any(part["type"] != "text" for part in parts):
            if not forgiven:
                refuse(where, "may hold text only")
            parts = [part if part["type"] == "text" else self._note("image") for part in parts]
        prompt = [part for part in parts if not part["text"].startswith(_BILLING)]
        return markable_content(prompt, BETWEEN) if self.keeps_marks else joined_text(prompt, BETWEEN)

    def _parts_of(self, block: Any, where: str, forgiven: Forgiven) -> list[Json]:
        """The parts of a block, with its mark of a cache if marks are kept; a note if its fault is forgiven."""
        self._note_unknown(block)
        try:
            parts = parts_of(block, where)
        except forgiven:
            return [self._note(type_of(block))]
        if self.keeps_marks and parts and parts[-1]["type"] == "text" and isinstance(block.get(MARK), dict):
            parts[-1][MARK] = block[MARK]
        return parts

    def _note_unknown(self, block: Any) -> bool:
        """Note the type of a block if it is unknown; whether it is."""
        kind = block.get("type") if isinstance(block, dict) else None
        if not isinstance(kind, str) or kind in KNOWN_TYPES or kind in TOOL_CHANGES:
            return False
        self._note(type_of(block))
        return True

    def _note(self, kind: str) -> Json:
        """A note in the place of a block of that type, which the log names."""
        self._depends_on_request = True  # elsewhere in a conversation, the block may be refused
        self.unshown.add(kind)
        return note(kind)

    @property
    def _request(self) -> TranslationContext:
        """What the request decides; there is no other way to it, so that no cached translation depends on it."""
        self._depends_on_request = True
        return self.asked

    def _reading_of(self, group: Sequence[Entry], read: Callable[[Mapping[str, Any]], T]) -> T:
        """The translation of a group of messages; `read` translates their content blocks, each under its path."""
        alone = group[0][1] if len(group) == 1 else None
        if is_read(alone):
            known: T = alone.reading
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

    def _read_assistant(self, blocks: Mapping[str, Any]) -> Sequence[PastTurn]:
        turns = [PastTurn()]
        for place, block in blocks.items():
            kind, turn = block.get("type") if isinstance(block, dict) else None, turns[-1]
            if not isinstance(kind, str) or kind not in _READ or (kind in _SERVER_CALLS and not self._is_ours(block)):
                if isinstance(kind, str) and kind not in _LEFT_OUT:
                    self._note_unknown(block)
                continue  # a block of another server's tool, or of a type that is not known yet
            # The order tells the turns apart, but the AI SDK moves the client's calls to the end of the message.
            is_late = kind == "tool_use" and turn.origin is not None and turn.origin == origin_of(block)
            if turn.has_results and kind not in _SERVER_RESULTS and not is_late:
                turns.append(PastTurn())
            self._read_block(turns[-1], block, place)
        for turn in turns:
            turn.close()
        return turns

    def _is_ours(self, use: Json) -> bool:
        """Whether the block of a server's call is of a kind that this proxy shows."""
        if use["type"] == "mcp_tool_use":
            return use.get("server_name") == SERVER_NAME
        name = use.get("name")
        return name in _ALWAYS_SHOWN or (isinstance(name, str) and name in self._request.own_names)

    def _read_block(self, turn: PastTurn, block: Json, where: str) -> None:
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
                    signed, carried = read_signature(self._request.sealer, signature)
                    turn.carried = carried or turn.carried
                    thoughts = thoughts or signed
                if thoughts:
                    turn.thoughts.append(thoughts)
            case "tool_use" | "server_tool_use" | "mcp_tool_use":
                turn.origin = origin_of(block)
                turn.add_call(self._read_call(block, where))
            case _:
                known = turn.call(block.get("tool_use_id"))
                if known is not None and known.is_server_tool and known.result is None:
                    known.result = PastResult(self._read_result(block, known.name))
                    turn.has_results = True

    def _read_call(self, block: Json, where: str) -> BlockCall:
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
            return BlockCall(client_id(block_id), name, arguments, block_id=block_id, is_server_tool=False)
        if block["type"] == "server_tool_use":
            name = self._request.own_names.get(name, name)
        return BlockCall(block_id, name, arguments, block_id=block_id, is_server_tool=True)

    def _read_user(self, blocks: Mapping[str, Any], forgiven: Forgiven) -> tuple[list[Result], list[Json]]:
        results: list[Result] = []
        parts: list[Json] = []
        for at, (place, block) in enumerate(blocks.items()):
            if isinstance(block, dict) and block.get("type") == "tool_result":
                results.append(self._result_in(block, at, place))
            else:
                parts += self._parts_of(block, place, forgiven)
        return results, parts

    def _read_result(self, block: Json, tool: str) -> str:
        """The result of a server's call as the model has read it, from the result block."""
        content = block.get("content")
        if block["type"] == "mcp_tool_result":
            return other_text_of(content, tool, is_error=block.get("is_error") is True)
        if not isinstance(content, list):
            return model_text_of(content, tool)
        pages, text = search_in(content, tool, self._request.sealer.open_text)
        self.pages += pages
        return text or self._request.sealer.open_text(block.get("encrypted_content")) or NO_PAGES

    def _result_in(self, block: Json, at: int, where: str) -> Result:
        given = field_in(block, "tool_use_id", str, where)
        blocks = as_blocks(block.get("content"), f"{where}.content")
        parts = [part for one in blocks for part in self._parts_of(one, where, ALL_FAULTS)]
        result = result_of(parts, BETWEEN, if_empty=EMPTY_RESULT)
        if block.get("is_error") is True:
            result = PastResult(FAILED_RESULT.format(text=result.text), result.pictures)
        return Result(at, given, client_id(given), result)
