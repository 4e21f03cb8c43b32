"""What is kept of responses: for `previous_response_id`, `item_reference` and the endpoints that read them.

Kept under `response:CALLER:ID`, for one caller only: the finished response, and the whole conversation that it answers.
An item's id holds its response's, so that an item needs no entry of its own.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from proxy.core.chat import Json
from proxy.core.errors import ItemNotFound, NotFound, PreviousResponseNotFound
from proxy.ports import ContinuationStore

_PREFIX = "resp_"
# Nothing else is looked up: a caller's name may hold a colon, and no id may lead from one caller's keys to another's.
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
    """A finished response, and the whole conversation that it answers."""

    response: Json
    input: Sequence[Json]

    @property
    def conversation(self) -> list[Json]:
        """What a response that goes on from this one begins with."""
        return [*self.input, *self.response["output"]]


class Responses:
    """The kept responses of one caller."""

    def __init__(self, store: ContinuationStore, scope: str) -> None:
        self._store = store
        self._scope = scope

    async def keep(self, kept: Kept) -> None:
        """Keep a response, for `state.ttl`."""
        await self._store.put(self._key(kept.response["id"]), {"response": kept.response, "input": list(kept.input)})

    async def find(self, identity: str) -> Kept:
        """A kept response. Raises `NotFound`."""
        kept = await self._look_up(identity)
        if kept is None:
            raise NotFound(f"Response with id {identity[:128]!r} not found.")
        return kept

    async def forget(self, identity: str) -> None:
        """Delete a kept response. Raises `NotFound`."""
        await self.find(identity)
        await self._store.delete(self._key(identity))

    async def whole_conversation(self, items: Sequence[Json], previous: str | None) -> list[Json]:
        """The items of a request behind those of the response that it goes on from, references resolved.

        Raises:
            PreviousResponseNotFound: there is no such response.
            ItemNotFound: there is no such item.
        """
        before: list[Json] = []
        if previous is not None:
            kept = await self._look_up(previous)
            if kept is None:
                raise PreviousResponseNotFound(previous[:128])
            before = kept.conversation
        known = {item["id"]: item for item in before}
        looked_up: dict[str, dict[str, Json]] = {}
        resolved: list[Json] = []
        for item in items:
            if item["type"] != "item_reference":
                resolved.append(item)
            elif item["id"] not in known:  # what is in the conversation already is not said twice
                resolved.append(await self._item(item["id"], looked_up))
        return [*before, *resolved]

    async def _item(self, identity: str, looked_up: dict[str, dict[str, Json]]) -> Json:
        """A kept item; `looked_up`: by run, the items of those that were looked up for this request before."""
        match = _ITEM_ID.fullmatch(identity)
        run_id = match[1] if match else ""
        if run_id not in looked_up:
            kept = await self._look_up(response_id(run_id))
            looked_up[run_id] = {item["id"]: item for item in kept.conversation} if kept else {}
        if identity not in looked_up[run_id]:
            raise ItemNotFound(identity[:128])
        return looked_up[run_id][identity]

    async def _look_up(self, identity: str) -> Kept | None:
        stored = await self._store.get(self._key(identity)) if _RESPONSE_ID.fullmatch(identity) else None
        return Kept(stored["response"], stored["input"]) if stored else None

    def _key(self, identity: str) -> str:
        return f"response:{self._scope}:{identity}"
