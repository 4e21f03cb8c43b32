"""System messages within a conversation, for servers that take one at its beginning only.

Apps such as Claude Code and Codex send further instructions in the middle. Most servers take them, but the chat
templates of some models refuse the request. There is no code for it, so the refusal is known by its words:

    System message must be at the beginning.                                     Qwen's template, on any server
    System role not supported                                                    Gemma
    Conversation roles must alternate user/assistant/user/assistant/...          Mistral, Llama 2
    Only user, assistant and tool roles are supported, with the exception of an initial optional system message
    invalid chat setting: the system message must be the first                   MiniMax
    unknown variant `system`                                                     servers that know the other roles only

Then the text of such a message goes to the end of the user's message, or the result, that stands before it.
"""

import re
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from msgspec import Struct

from proxy.kit.beside import beside
from proxy.kit.sent import Sent
from proxy.wire import rawjson
from proxy.wire.chat import Json, text_of
from proxy.wire.errors import ProxyError, UpstreamError

_REFUSAL: Final = re.compile(
    r"\bsystem\b.{0,40}\b(?:must|should|can|may|has to)\b.{0,40}\b(?:first|begin|start)"
    r"|\bsystem\b.{0,20}\brole\b.{0,20}\bnot\b.{0,10}\bsupport|\brole\b.{0,12}\bsystem\b.{0,20}\bnot\b.{0,10}\bsupport"
    r"|\bonly user\b.{0,40}\broles?\b|\broles? must alternate|\binitial optional system\b"
    r"|unknown variant .?system|unexpected role .{0,4}system",
    re.IGNORECASE | re.DOTALL,
)
_SYSTEM: Final = ("system", "developer")
_TAKES_TEXT: Final = ("user", "tool")
_BETWEEN: Final = "\n\n"


class SystemPlacement(Struct, eq=False):
    """Where an upstream takes the system messages of a model's conversations.

    Attributes:
        at_the_beginning: whether only there, as one of its refusals has shown.
    """

    at_the_beginning: bool = False

    async def learn(self, error: ProxyError, body: Json) -> bool:
        """Learn from the failure of a request; whether it may succeed if its system messages are placed otherwise.

        Words that stand in the request teach nothing, because what is learned holds for all conversations.
        """
        if self.at_the_beginning or not isinstance(error, UpstreamError):
            return False
        found, messages = _REFUSAL.search(error.message), body.get("messages", ())
        if found is None or without_late_system(messages) is messages:
            return False
        sent = Sent(rawjson.dumps(body))
        # Read in all its forms, a request of 1 MB takes a third of a second.
        self.at_the_beginning = not await beside(sent.size, partial(sent.says, found[0]))
        return self.at_the_beginning


def without_late_system(messages: Sequence[Json]) -> Sequence[Json]:
    """The messages with the text of each later system message in the message before it.

    Where that is the assistant's, the text begins the user's next message, or is a message of the user's own. What
    comes later in a conversation changes nothing of this, so the upstream's prompt cache holds.
    """
    first = next((at for at, message in enumerate(messages) if message.get("role") not in _SYSTEM), len(messages))
    if all(message.get("role") not in _SYSTEM for message in messages[first:]):
        return messages
    placed, waiting = list(messages[:first]), ""  # the texts that come after a message of the assistant
    for message in messages[first:]:
        role = message.get("role")
        if role in _SYSTEM:
            text = text_of(message)
            if placed[-1].get("role") in _TAKES_TEXT and not waiting:
                placed[-1] = {**placed[-1], "content": _joined(placed[-1].get("content"), text)}
            else:
                waiting = _BETWEEN.join(filter(None, (waiting, text)))
        elif waiting:
            content = _joined(waiting, message.get("content")) if role == "user" else waiting
            placed.append({**(message if role == "user" else {}), "role": "user", "content": content})
            placed += () if role == "user" else (message,)
            waiting = ""
        else:
            placed.append(message)
    return [*placed, *([{"role": "user", "content": waiting}] if waiting else ())]


def _joined(first: Any, second: Any) -> Any:
    """Two contents as one; each is a text, a list of parts, or nothing."""
    if not first or not second:
        return first or second
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}{_BETWEEN}{second}"
    return [*_parts(first), *_parts(second)]


def _parts(content: Any) -> list[Json]:
    return content if isinstance(content, list) else [{"type": "text", "text": content}]
