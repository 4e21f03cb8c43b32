"""The messages that clients have sent before: an agent sends its whole conversation again in each request.

A message that the same client has sent before, byte for byte, is the same object again (`Known`). Only the new messages
of a large request are parsed, and a dialect keeps its translation on each message. At 100 rounds of a tool, a Messages
request takes 45 % fewer instructions, and a Responses request 26 % (bench/README.md).

The messages of one client are not looked up for another client. Otherwise, the time of an answer would tell a client
which messages other clients have sent.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeGuard

import msgspec
import orjson
from msgspec import Struct

from proxy.api.body_memory import cost_of
from proxy.api.json_bounds import MOST_MESSAGES, blocks_in
from proxy.wire.chat import Json

# Smaller requests, and smaller messages, are parsed in the time that it takes to look them up.
_LEAST_BODY, _LEAST_MESSAGE = 32 * 1024, 256
# A larger message is hardly more than one text, such as a picture, and one of them would push out many others.
_LARGEST: Final = 256 * 1024
# Of a message, beside its JSON: objects that a surface makes of it.
_OVERHEAD: Final = 2048

_MEMBERS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_LIST: Final = msgspec.json.Decoder(list[msgspec.Raw])


class Known(dict[str, Any]):
    """A message or an item, shared by all requests that send it, and therefore never changed.

    Attributes:
        blocks: the number of its content blocks, parts and calls.
        reading: its translation by the dialect, which depends on nothing but the configuration; None: not yet made.
    """

    __slots__ = ("blocks", "reading")

    def __init__(self, message: Json) -> None:
        super().__init__(message)
        self.blocks = blocks_in([message])
        self.reading: Any = None


def is_read(message: object) -> TypeGuard[Known]:
    """Whether a value of a history is a known message that the dialect has read."""
    return isinstance(message, Known) and message.reading is not None


class KnownMessages:
    """The latest messages of clients, within `most_bytes` by an upper estimate of the memory that messages take.

    Two halves hold messages by client and by their bytes. A message that is sent again moves to the younger half. When
    the younger half is full, it becomes the older half, and the messages of the older half are forgotten.
    """

    def __init__(self, most_bytes: int = 32 * 1024 * 1024) -> None:
        self._most_of_half = most_bytes // 2
        self._young: dict[str, dict[bytes, Known]] = {}
        self._old: dict[str, dict[bytes, Known]] = {}
        self._young_bytes = 0

    def find(self, owner: str, texts: Sequence[bytes], loads: Callable[[bytes], Any] = orjson.loads) -> list[Any]:
        """The values of JSON texts that an owner has sent: `Known` where they are objects, and not very large.

        `loads` parses the list of new texts. Raises `orjson.JSONDecodeError`.
        """
        young, old = self._young.get(owner, {}), self._old.get(owner, {})
        found: list[Any] = [young.get(text) for text in texts]
        places = [at for at, message in enumerate(found) if message is None]
        if not places:
            return found
        kept: dict[bytes, Known] = {}
        for at in places:
            if (message := old.pop(texts[at], None)) is not None:
                kept[texts[at]] = found[at] = message
        new = [at for at in places if found[at] is None]
        for at, value in zip(new, loads(b"[%b]" % b",".join([texts[at] for at in new])), strict=True):
            found[at] = value
            if isinstance(value, dict) and len(texts[at]) <= _LARGEST:
                kept[texts[at]] = found[at] = Known(value)
        self._keep(owner, kept)
        return found

    def _keep(self, owner: str, messages: dict[bytes, Known]) -> None:
        """Put messages into the younger half."""
        cost = cost_of(b"".join(messages)) + _OVERHEAD * len(messages)
        if self._young_bytes + cost > self._most_of_half:
            self._old, self._young, self._young_bytes = self._young, {}, 0
        if cost <= self._most_of_half:
            self._young_bytes += cost
            self._young.setdefault(owner, {}).update(messages)


class History(Struct, frozen=True):
    """How the history in a client's request is parsed.

    Attributes:
        known: the known messages.
        owner: the scope of the client.
        field: the field of the request with the list of messages or items.
        loads: parses JSON with messages or items.
    """

    known: KnownMessages
    owner: str
    field: str
    loads: Callable[[bytes], Any] = orjson.loads

    def parse(self, body: bytes) -> Json | None:
        """The fields of a request, with known messages; None: it is not well formed, or is to be parsed as a whole."""
        if len(body) < _LEAST_BODY:
            return None
        try:
            fields: Json = _MEMBERS.decode(body)
            messages = _LIST.decode(fields[self.field])
            if not 0 < len(messages) <= min(MOST_MESSAGES, len(body) // _LEAST_MESSAGE):
                return None
            for name, raw in fields.items():
                if name == self.field:
                    # APIs differ in their field, and in their translation of a message.
                    fields[name] = self.known.find(f"{name} of {self.owner}", [*map(bytes, messages)], self.loads)
                else:
                    fields[name] = orjson.loads(bytes(raw))
        except (msgspec.MsgspecError, orjson.JSONDecodeError, UnicodeDecodeError, KeyError, RecursionError):
            return None
        return fields
