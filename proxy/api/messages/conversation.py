"""A conversation in content blocks -> the messages of Chat Completions.

Each turn of the assistant (`past_turns`) becomes an assistant message, followed directly by one tool message per call,
in call order. The results of the client's own calls, in the last turn, are in the client's next message.

What a message says by itself is read by `translation`, and once for all requests that send it; how the messages follow
one another is read here, in each request.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from msgspec import Struct, field

from proxy.api.history import PastResult, content_of, with_results
from proxy.api.json_bounds import MOST_MESSAGES
from proxy.api.known import is_read
from proxy.api.messages.history import NO_CHANGES, HistoryChanges
from proxy.api.messages.pages import FoundPage
from proxy.api.messages.parts import BETWEEN, as_blocks, named, refuse
from proxy.api.messages.past_turns import PastTurn, Result
from proxy.api.messages.translation import Entry, TranslationContext, Translator
from proxy.api.sealed import Sealer
from proxy.api.unshown import ALL_FAULTS, NO_FAULTS, Forgiven, NotShown
from proxy.wire.cache_marks import markable_content
from proxy.wire.chat import Json

# Anthropic's own words, by which Claude Code recognises the fault and advises how to mend it.
_NO_RESULT = (
    "`tool_use` ids were found without `tool_result` blocks immediately after: {call_id}. "
    "Each `tool_use` block must have a corresponding `tool_result` block in the next message."
)


class BlockConversation(Struct, frozen=True):
    """The conversation of a chat request.

    Attributes:
        messages: the messages of the chat request.
        pages: the pages that its visible searches have found, which the answer may cite.
        unshown: the types of blocks that the model is not shown.
    """

    messages: list[Json]
    pages: Sequence[FoundPage]
    unshown: Collection[str]


def read_conversation(
    system: Any,
    messages: Any,
    sealer: Sealer,
    own_names: Mapping[str, str],
    *,
    changes: HistoryChanges = NO_CHANGES,
    keeps_marks: bool = False,
    for_answer: bool = True,
) -> BlockConversation:
    """The conversation of a request.

    Args:
        system: the field of the request.
        messages: the field of the request.
        sealer: opens what was sealed for the client.
        own_names: the client's names of server tools -> the names of the tools.
        changes: the changes by its system messages.
        keeps_marks: whether marks of caches stay in the texts of system prompts and users.
        for_answer: whether it is to be answered, so that it must not end with an assistant message.

    Raises:
        RequestError: it is not well formed; `param` is the place, such as `messages.1.content.0.source`.
    """
    if not isinstance(messages, list) or not messages:
        refuse("messages", "must be a list of messages, at least one")
    if len(messages) > MOST_MESSAGES:
        refuse("messages", f"may hold {MOST_MESSAGES} messages at most")
    translator = Translator(TranslationContext(sealer, own_names), keeps_marks=keeps_marks)
    prompt = translator.system_prompt(system, "system")
    chat: list[Json] = [{"role": "system", "content": prompt}] if prompt else []
    content_of_parts = markable_content if keeps_marks else content_of
    # The pictures of results become a part of what the user says next.
    for role, group in groupby(_Joiner(translator).read(messages, changes.left_out), itemgetter("role")):
        if role == "user":
            parts = [part for message in group for part in message["content"]]
            chat.append({"role": role, "content": content_of_parts(parts, BETWEEN)})
        else:
            chat += group
    roles = [role for message in chat if (role := message["role"]) != "system"]
    if not roles:
        refuse("messages", "must hold a message that is not empty")
    if for_answer and roles[-1] == "assistant":
        if messages[-1]["role"] == "user":
            refuse(f"messages.{len(messages) - 1}.content", "must not be empty")
        refuse("messages", "the last message must be the user's: prefill is not supported")
    return BlockConversation(chat, translator.pages, translator.unshown.types)


class _Joiner(Struct):
    """Joins messages in order. The last turn is kept open for results in the next message."""

    translator: Translator
    open: PastTurn | None = None
    answers: dict[str, PastResult] = field(default_factory=dict)  # to the client's calls of the open turn, by id
    chat: list[Json] = field(default_factory=list)
    system: list[Json] = field(default_factory=list)  # system messages that stand between calls and their results
    forgiven: Forgiven = NO_FAULTS  # of what the user has just said
    first_new: int = 0  # the number of the first message behind the last one of the assistant

    def read(self, messages: list[Any], left_out: Collection[int]) -> list[Json]:
        """The messages of the chat, in which those of the user have their parts, and may follow each other."""
        roles = [message.get("role") if isinstance(message, dict) else None for message in messages]
        if "assistant" in roles:
            # Whoever sends the first message can mend it. Later, an agent may have put a file into it for good.
            self.first_new = len(roles) - roles[::-1].index("assistant")
            self.forgiven = (NotShown,)
        entries = [(at, message) for at, message in enumerate(messages) if at not in left_out]
        for role, group in groupby(entries, _role_of):
            match role:
                case "assistant":
                    for turn in self.translator.assistant([*group]):
                        self._close_turn()
                        self.open = turn
                case "user":
                    self._read_user(group)
                case _:
                    self._read_system(group)
        self._close_turn()
        return self.chat

    def _read_system(self, group: Iterable[Entry]) -> None:
        for at, message in group:
            where = f"messages.{at}.content"
            if prompt := self.translator.system_prompt(as_blocks(message.get("content"), where), where):
                (self.system if self.open else self.chat).append({"role": "system", "content": prompt})

    def _read_user(self, group: Iterable[Entry]) -> None:
        """Add the results of the open turn's calls, and what else the user says."""
        rest: list[Json] = []
        for one in group:
            results, parts = self.translator.user(one, self.forgiven if one[0] >= self.first_new else ALL_FAULTS)
            for result in results:
                self._take_result(result, f"messages.{one[0]}.content.{result.at}")
            rest += parts
        self._close_turn()
        if rest:
            self.chat.append({"role": "user", "content": rest})

    def _take_result(self, result: Result, where: str) -> None:
        call = self.open.call(result.call_id) if self.open else None
        if result.call_id in self.answers:
            refuse(where, f"there are two results for the call {named(result.given)}")
        if call is None or call.is_server_tool:
            refuse(where, f"there is no call {named(result.given)} in the message before for this tool_result")
        self.answers[result.call_id] = result.result

    def _close_turn(self) -> None:
        """Close the open turn. Raises `RequestError` if one of its calls has no result."""
        if self.open is None:
            return
        turn, self.open = self.open, None
        results: list[PastResult] = []
        for call in turn.calls:
            if (result := turn.result_of(call, self.answers)) is None:
                refuse("messages", _NO_RESULT.format(call_id=call.block_id))
            results.append(result)
        self.chat += with_results(turn.message, results)
        self.chat += self.system
        self.answers, self.system = {}, []


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
    if message.get("content") is None and role != "system":
        refuse(f"{where}.content", "must be a string or a list of content blocks")
    return str(role)
