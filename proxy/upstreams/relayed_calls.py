"""The tool calls of a relayed stream, mended where an SDK would put the wrong fragments together.

OpenAI's SDKs join the fragments with one index, and every string in them: a name that a server repeats in each
fragment would become `searchsearchsearch`.
"""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from proxy.turn.call_arguments import ScanBudget
from proxy.turn.call_fragments import Fragment, StreamedCalls
from proxy.upstreams.names import clean_call, functions_of
from proxy.wire.chat import Json


class _RelayedCall(Struct, eq=False):
    """A call as the client has it so far."""

    index: int
    has_id: bool = False
    has_name: bool = False


class RelayedCalls(Struct, eq=False):
    """The calls of one choice.

    Attributes:
        request: the request that the stream answers.
        budget: the budget for looking at the arguments of the calls.
    """

    request: Json
    budget: ScanBudget
    _streamed: StreamedCalls | None = None
    _functions: Mapping[str, Json] = {}  # of the request
    _relayed: list[_RelayedCall] = []
    _taken: set[int] = set()  # the indices of the calls
    _next_index: int = 0  # above all of them

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._relayed)

    def mend(self, entries: Sequence[Json]) -> None:
        """Mend the entries of a delta's `tool_calls`, in place.

        Each call gets an index of its own, and a clean name, and its id and name once.

        Raises:
            UpstreamError: the arguments are nested too deep.
        """
        if self._streamed is None:
            self._streamed, self._functions = StreamedCalls(budget=self.budget), functions_of(self.request)
        for entry in entries:
            clean_call(entry, self._functions)
            fragment = Fragment.read(entry, self._functions)
            at = self._streamed.place(fragment)
            streamed = self._streamed.so_far[at]
            streamed.arguments.feed(fragment.arguments)
            if at == len(self._relayed):
                self._begin(fragment.index)
            call = self._relayed[at]
            if fragment.index != call.index:
                entry["index"] = call.index
            _tell_once(call, entry, fragment, streamed.name)

    @property
    def entries(self) -> list[Json]:
        """The arguments of the calls, as entries of a message's `tool_calls`."""
        calls = [] if self._streamed is None else self._streamed.so_far
        return [{"function": {"arguments": call.arguments.text}} for call in calls]

    def _begin(self, wanted: int | None) -> None:
        """Add a call, under the upstream's index unless that is missing or taken."""
        index = self._next_index if wanted is None or wanted in self._taken else wanted
        self._relayed.append(_RelayedCall(index))
        self._taken.add(index)
        self._next_index = max(self._next_index, index + 1)


def _tell_once(call: _RelayedCall, entry: Json, fragment: Fragment, name: str) -> None:
    """Remove from an entry the id and name that the client has already, and add a name that the client lacks."""
    if call.has_id and "id" in entry and fragment.id:
        del entry["id"]
    detail = entry.get(fragment.type)
    if call.has_name and fragment.name and isinstance(detail, dict):
        del detail["name"]
    elif name and not (call.has_name or fragment.name):  # it came in a fragment of the call before
        entry |= {"type": fragment.type, fragment.type: {**(detail or {}), "name": name}}
    call.has_id, call.has_name = call.has_id or bool(fragment.id), call.has_name or bool(name)
