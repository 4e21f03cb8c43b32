"""Stored responses: for `previous_response_id`, `item_reference`, and the endpoints of `api.stored_responses`.

    resp_1  input, output     <- previous -     resp_2  input, output     <- previous -     resp_3  ...

Each response is stored for one caller only, with its own input and the id of the response that it continues. A
conversation is assembled from the whole chain, which renews all its responses: the beginning of a conversation lives as
long as its end is continued. If a response of the chain was deleted or has expired, the later ones can be read but not
continued, because the model would get only half of the conversation.

An item's id contains the id of its response, so an item needs no entry of its own.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from proxy.api.dialect import Stored
from proxy.api.reply import Kept
from proxy.api.responses.conversation import TURNS, last_said
from proxy.api.responses.items import ID_PREFIXES
from proxy.api.responses.told import broken
from proxy.kit.beside import beside, pause_in
from proxy.wire import rawjson
from proxy.wire.chat import Json
from proxy.wire.errors import ItemNotFound, NotFound, PreviousResponseNotFound

RESPONSE_PREFIX: Final = "resp_"
"""The beginning of the id of a response; the id of the run that has made it follows."""
# Only ids of this form are looked up: under other keys, the store has data that clients are not shown.
_RESPONSE_ID = re.compile(RESPONSE_PREFIX + r"[0-9a-f]{32}")
_ITEM_ID = re.compile(r"[a-z]+_([0-9a-f]{32})_i?[0-9]+")


def with_ids(items: Sequence[Json], run_id: str) -> list[Json]:
    """The items of a conversation, each with an id, as they are stored with the response of the run."""
    return [
        item
        if isinstance(item.get("id"), str)
        else {**item, "id": f"{ID_PREFIXES.get(item['type'], 'item')}_{run_id}_i{at}"}
        for at, item in enumerate(items)
    ]


class StoredResponse(Struct, frozen=True):
    """A finished response.

    Attributes:
        response: the response as the client has received it.
        input: the items of its request, without the conversation before them.
        previous: the id of the response that it continues.
        turns: the messages that its run has added, if they hold more than the output shows.
        sources: URL -> title of the pages that its run has found, which later answers may cite.
        conversation: what its conversation was made of, hashed, which those that continue it inherit; None: unknown.
        bound: the credentials that a request needs to read it; see `Credentials.bound`.
    """

    response: Json
    input: Sequence[Json]
    previous: str | None = None
    turns: Sequence[Json] = ()
    sources: Mapping[str, str] = {}
    conversation: str | None = None
    bound: Mapping[str, str] = {}

    @property
    def items(self) -> list[Json]:
        """The items of this request and its response, as the client knows them."""
        return [*self.input, *self.response["output"]]

    @property
    def items_for_model(self) -> list[Json]:
        """The items of this request and its response, as the model knows them."""
        return [*self.input, {"type": TURNS, "messages": self.turns}] if self.turns else self.items

    def as_kept(self) -> Kept:
        """The entry of the store."""
        return Kept(self.response["id"], rawjson.dumps_answer(asdict(self)))


class ItemHistory(Struct, frozen=True):
    """A whole conversation, as items.

    Attributes:
        before: the items of the chain that the request continues.
        own: the items of the request.
        sources: URL -> title of the pages that the chain has found.
        conversation: what the latest response that the request names was made of, hashed; None: unknown.
    """

    before: Sequence[Json]
    own: Sequence[Json]
    sources: Mapping[str, str]
    conversation: str | None = None


class ResponseStore:
    """The stored responses of one caller.

    Attributes:
        bytes_read: the size of all responses that were read.
    """

    def __init__(self, stored: Stored) -> None:
        self._stored = stored
        self.bytes_read = 0
        self._looked_up = 0

    async def find(self, identity: str) -> StoredResponse:
        """The response with that id. Raises `NotFound`."""
        stored = await self._look_up(identity)
        if stored is None:
            raise NotFound(f"Response with id {identity[:128]!r} not found.")
        return stored

    async def input_items(self, identity: str) -> list[Json]:
        """The conversation before a response, as far back as it is stored. Raises `NotFound`."""
        stored = await self.find(identity)
        chain, _ = await self._chain(stored.previous)
        return [*(item for one in chain for item in one.items), *stored.input]

    async def delete(self, identity: str) -> None:
        """Delete a response, and the hidden part of its run. Raises `NotFound`."""
        await self.find(identity)
        await self._stored.store.delete(self._stored.owner, identity)
        await self._stored.store.delete(self._stored.owner, identity.removeprefix(RESPONSE_PREFIX))

    async def history(self, items: Sequence[Json], previous: str | None) -> ItemHistory:
        """The chain of responses that a request continues, and the request's items with references resolved.

        Items of the request that the chain contains already are left out.

        Raises:
            PreviousResponseNotFound: a response of the chain does not exist, or has expired.
            ItemNotFound: a reference has no target, and does not stand before the last message of the user's.
        """
        chain, missing = await self._chain(previous)
        if previous is not None:
            self._stored.observe("continuation.sought", sought=1, found=int(missing is None))
        if missing is not None:
            raise PreviousResponseNotFound(missing[:128])
        if chain:
            ids = [stored.response["id"] for stored in chain]
            runs = [identity.removeprefix(RESPONSE_PREFIX) for identity in ids]
            await self._stored.store.renew(self._stored.owner, [*ids, *runs])
        known = {item["id"]: item for stored in chain for item in stored.items}
        others = await self._referred_to(items, known)
        own = _resolved(items, known, {item["id"]: item for stored in others for item in stored.items})
        before = [item for stored in chain for item in stored.items_for_model]
        sources = {url: title for stored in chain for url, title in stored.sources.items()}
        conversations = [stored.conversation for stored in (*chain[-1:], *others)]
        return ItemHistory(before, own, sources, next(filter(None, conversations), None))

    async def _chain(self, last: str | None) -> tuple[list[StoredResponse], str | None]:
        """A response and those before it, the oldest first; and the id of the first one that is not stored, if any."""
        chain: list[StoredResponse] = []
        while last is not None:
            stored = await self._look_up(last)
            if stored is None:
                break
            chain.append(stored)
            last = stored.previous
        return chain[::-1], last

    async def _referred_to(self, items: Sequence[Json], known: Collection[str]) -> list[StoredResponse]:
        """The responses that have the items that references name, but for the ids that are known."""
        ids = [item["id"] for item in items if item["type"] == "item_reference" and item["id"] not in known]
        runs = dict.fromkeys([match[1] for match in map(_ITEM_ID.fullmatch, ids) if match])
        found = [await self._look_up(RESPONSE_PREFIX + run_id) for run_id in runs]
        return [stored for stored in found if stored is not None]

    async def _look_up(self, identity: str) -> StoredResponse | None:
        self._looked_up += 1
        await pause_in(self._looked_up)
        data = await self._stored.store.get(self._stored.owner, identity) if _RESPONSE_ID.fullmatch(identity) else None
        if data is None:
            return None
        if self._stored.share is not None:
            self._stored.share.count_parsed(data)
        self.bytes_read += len(data)
        stored = await beside(len(data), partial(_read, data))
        return stored if stored is not None and self._stored.credentials.opens(stored.bound) else None


def _read(data: bytes) -> StoredResponse | None:
    """A response as it was stored; None if another version of the proxy has stored it, in another form."""
    try:
        return msgspec.json.decode(data, type=StoredResponse)
    except msgspec.DecodeError:
        return None


def _resolved(items: Sequence[Json], known: Mapping[str, Json], others: Mapping[str, Json]) -> list[Json]:
    """The items of a request without those of its chain, which are `known`; references become items of `others`."""
    own: list[Json] = []
    last = last_said(items)
    for at, item in enumerate(items):
        if item["type"] != "item_reference":
            if not (known and _is_again(item, known)):
                own.append(item)
        elif item["id"] not in known:
            found = others.get(item["id"])
            if found is None and at >= last:
                raise ItemNotFound(item["id"][:128])
            own.append(found or broken(item, "item_reference"))
    return own


def _is_again(item: Json, known: Mapping[Any, Json]) -> bool:
    """Whether an item is among the `known` ones, which are given by id.

    An item with an id that was made here may differ, because SDKs add fields. Ids that a client has made may not be
    unique, so such an item must be equal.
    """
    identity = item.get("id")
    if not isinstance(identity, str) or identity not in known:
        return False
    return _ITEM_ID.fullmatch(identity) is not None or item == known[identity]
