"""What is kept of responses: for `previous_response_id`, `item_reference` and the endpoints that read them.

    resp_1  input, output     <- previous -     resp_2  input, output     <- previous -     resp_3  ...

Kept for one caller only, and each by itself: a response with its own input, and the id of the one that it continues. A
conversation is put together from the whole chain, which is renewed by that: the beginning of a conversation lives as
long as its end is continued. Where one of the chain was deleted or has expired, what follows it can be read, and not be
continued: the model would answer half of a conversation.

An item's id holds its response's, so that an item needs no entry of its own.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from proxy.api.body_memory import Share
from proxy.api.responses.conversation import TURNS
from proxy.loop import sse
from proxy.loop.chat import Json
from proxy.loop.errors import ItemNotFound, NotFound, PreviousResponseNotFound
from proxy.ports import ContinuationStore

_PREFIX = "resp_"
# Nothing else is looked up: under other keys there is what clients are not shown.
_RESPONSE_ID = re.compile(_PREFIX + r"[0-9a-f]{32}")
_ITEM_ID = re.compile(r"[a-z]+_([0-9a-f]{32})_i?[0-9]+")
_ID_PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "additional_tools": "at",
    "web_search_call": "ws",
    "mcp_call": "mcp",
}


def response_id(run_id: str) -> str:
    """The id of the response that a run makes."""
    return _PREFIX + run_id


def run_of(response: str) -> str:
    """The run that made a response."""
    return response.removeprefix(_PREFIX)


def with_ids(items: Sequence[Json], run_id: str) -> list[Json]:
    """A conversation's items, each with an id, as they are kept with the response of that run."""
    return [
        item if isinstance(item.get("id"), str) else {**item, "id": f"{_ID_PREFIXES[item['type']]}_{run_id}_i{at}"}
        for at, item in enumerate(items)
    ]


@dataclass(frozen=True, slots=True)
class Kept:
    """A finished response.

    Attributes:
        response: as the client has it.
        input: what it answers, without the conversation before that.
        previous: the id of the response that it continues.
        turns: the messages that its run has added, where the model has read more in it than its output says.
    """

    response: Json
    input: Sequence[Json]
    previous: str | None = None
    turns: Sequence[Json] = ()

    @property
    def items(self) -> list[Json]:
        """What was said, as the client knows it."""
        return [*self.input, *self.response["output"]]

    @property
    def read(self) -> list[Json]:
        """What was said, as the model knows it."""
        return [*self.input, {"type": TURNS, "messages": self.turns}] if self.turns else self.items


@dataclass(frozen=True, slots=True)
class Said:
    """What a request says: `before` are the items of the chain that it continues, `own` those that are its own."""

    before: Sequence[Json]
    own: Sequence[Json]

    @property
    def all(self) -> list[Json]:
        """The whole conversation."""
        return [*self.before, *self.own]


class Responses:
    """The kept responses of one caller.

    Args:
        store: keeps them.
        owner: the caller's scope.
        share: counts what is read for the request; None: nobody does.
    """

    def __init__(self, store: ContinuationStore, owner: str, share: Share | None = None) -> None:
        self._store = store
        self._owner = owner
        self._share = share

    async def keep(self, kept: Kept) -> None:
        """Keep a response, for `state.ttl`."""
        stored = {field: getattr(kept, field) for field in ("response", "input", "previous", "turns")}
        await self._store.put(self._owner, kept.response["id"], sse.dumps(stored))

    async def find(self, identity: str) -> Kept:
        """A kept response. Raises `NotFound`."""
        kept = await self._look_up(identity)
        if kept is None:
            raise NotFound(f"Response with id {identity[:128]!r} not found.")
        return kept

    async def input_of(self, identity: str) -> list[Json]:
        """The conversation that a kept response answers, as far back as it is kept. Raises `NotFound`."""
        kept = await self.find(identity)
        chain, _ = await self._chain(kept.previous)
        return [*(item for one in chain for item in one.items), *kept.input]

    async def forget(self, identity: str) -> None:
        """Delete a kept response. Raises `NotFound`."""
        await self.find(identity)
        await self._store.delete(self._owner, identity)

    async def said(self, items: Sequence[Json], previous: str | None) -> Said:
        """What a request says, behind the chain of responses that it continues, references resolved.

        Raises:
            PreviousResponseNotFound: there is no such response, or one before it is gone.
            ItemNotFound: there is no such item.
        """
        chain, missing = await self._chain(previous)
        if missing is not None:
            raise PreviousResponseNotFound(missing[:128])
        if chain:
            ids = [kept.response["id"] for kept in chain]
            await self._store.renew(self._owner, [*ids, *map(run_of, ids)])
        known = {item["id"] for kept in chain for item in kept.items}
        looked_up: dict[str, dict[str, Json]] = {}
        own: list[Json] = []
        for item in items:
            if item["type"] != "item_reference":
                own.append(item)
            elif item["id"] not in known:  # what is in the conversation already is not said twice
                own.append(await self._item(item["id"], looked_up))
        return Said([item for kept in chain for item in kept.read], own)

    async def _chain(self, last: str | None) -> tuple[list[Kept], str | None]:
        """A response and all that it continues, the oldest first; and the id of the first one that is gone."""
        chain: list[Kept] = []
        while last is not None:
            kept = await self._look_up(last)
            if kept is None:
                break
            chain.append(kept)
            last = kept.previous
        return chain[::-1], last

    async def _item(self, identity: str, looked_up: dict[str, dict[str, Json]]) -> Json:
        """A kept item; `looked_up`: by run, the items of those that were looked up for this request before."""
        match = _ITEM_ID.fullmatch(identity)
        run_id = match[1] if match else ""
        if run_id not in looked_up:
            kept = await self._look_up(response_id(run_id))
            looked_up[run_id] = {item["id"]: item for item in kept.items} if kept else {}
        if identity not in looked_up[run_id]:
            raise ItemNotFound(identity[:128])
        return looked_up[run_id][identity]

    async def _look_up(self, identity: str) -> Kept | None:
        data = await self._store.get(self._owner, identity) if _RESPONSE_ID.fullmatch(identity) else None
        if data is None:
            return None
        if self._share is not None:
            self._share.count_parsed(data)
        return Kept(**orjson.loads(data))
