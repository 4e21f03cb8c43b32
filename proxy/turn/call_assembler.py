"""The tool calls of one turn: assembled from the fragments of a stream, or read from a whole message.

Calls of server tools are hidden from the client. The client's own calls get indices without gaps and ids of this run,
so that the client cannot see that there were others. Every call has an id of its own for the upstream, too: some
servers give all calls the same id, or number those of each turn anew, or give none.
"""

from collections.abc import Sequence
from typing import Any

from proxy.turn.call_arguments import Arguments, holds_objects
from proxy.turn.call_fragments import Fragment, PartialCall, StreamedCalls
from proxy.turn.call_ids import client_call_id
from proxy.turn.leaks import Leak
from proxy.turn.request import TurnRequest
from proxy.turn.turn_bounds import require_few_calls, require_short_arguments
from proxy.wire.chat import JSON_BLANKS, Json, ToolCall
from proxy.wire.json_text import is_json


class CallAssembler(StreamedCalls):
    """Collects the calls of one turn, in the order in which they begin.

    Attributes:
        request: the request that the turn answers; has the names of all tools, and of the client's.
        client_count: how many of the calls are the client's.
        received: the first calls as entries of a whole message; they stay as received, but for missing and wrong parts.
    """

    request: TurnRequest
    client_count: int = 0
    received: Sequence[Json] = ()
    _ids: set[Any] | None = None  # of all calls in the conversation; None: no id has been needed yet
    _argument_bytes: int = 0  # of all calls
    _settled: int = 0  # how many calls from the first on can start no more, or not here

    def add(self, fragments: Sequence[Json]) -> list[Json]:
        """Take in fragments of calls; return those of the client's own calls, as the client gets them.

        Raises:
            UpstreamError: the arguments are nested too deep, or a bound is passed.
        """
        shown: list[Json] = []
        for entry in fragments:
            fragment = Fragment.read(entry, self.request.view.tools)
            entry.pop("index", None)
            count = len(self.so_far)
            call = self.so_far[self.place(fragment)]
            if len(self.so_far) > count:
                require_few_calls(len(self.so_far))
                shown += self.end(self.so_far[count - 1 : count])
                call.fields = self.received[count] if count < len(self.received) else {}
            if fragment.id and not call.id:
                call.id = self._unique(fragment.id)
            call.type = entry.get("type") or call.type
            call.add_fields(entry)
            self._argument_bytes -= call.arguments.size
            arguments = call.arguments.feed(fragment.arguments)
            self._argument_bytes += call.arguments.size
            require_short_arguments(call.arguments.size, self._argument_bytes)
            if call.client_id is not None:
                shown.append(call.more(entry, arguments))
            elif call.name in self.request.view.client_tools:
                self._show(call)
                shown.append(call.opening(arguments))
            elif not call.name:
                call.unnamed.append(arguments)
        return shown

    def add_whole(self, entries: Sequence[Json]) -> None:
        """Take in the entries of a whole message, whose calls nobody sees before the end of the run.

        Raises `UpstreamError`, as `add` does.
        """
        for entry in entries:
            fragment = Fragment.read(entry, self.request.view.tools)
            is_plain = fragment.type != "function" or not holds_objects(fragment.arguments)
            arguments = Arguments(self.budget, is_plain=is_plain)
            arguments.feed(fragment.arguments)
            self._argument_bytes += arguments.size
            require_short_arguments(arguments.size, self._argument_bytes)
            identity = self._unique(fragment.id) if fragment.id else ""
            kind = entry.get("type") or "function"
            self._begin(PartialCall(arguments, kind, fragment.name, id=identity, fields=entry))

    def add_leaked(self, leak: Leak) -> list[Json]:
        """Take in a call that was found in a text, and return the entries that the client gets: one, or none."""
        call = PartialCall(name=leak.name, id=self._unique(None))
        arguments = call.arguments.feed(leak.arguments) + call.arguments.end()
        self._begin(call)
        return [call.opening(arguments)] if call.client_id is not None else []

    def end(self, calls: Sequence[PartialCall]) -> list[Json]:
        """Finish these calls, and return the fragments that were held back for the client."""
        shown: list[Json] = []
        for call in calls:
            rest = call.arguments.end()
            if rest and call.client_id is not None:
                shown.append(call.more({}, rest))
            elif call.client_id is None and not call.arguments.is_whole:
                call.is_value = is_json(call.arguments.text)
        return shown

    def take_ready(self) -> list[ToolCall]:
        """The server's calls that are complete and not yet returned, in order, up to the first incomplete one.

        An object is complete at its last bracket. Once the next call has begun, an empty object is, too, and any other
        JSON value. Empty arguments are not: some servers name every call before they send the arguments of the first.
        """
        ready: list[ToolCall] = []
        while self._settled < len(self.so_far):
            call = self.so_far[self._settled]
            if call.client_id is None and call.type == "function":
                if not call.name or not ((call.arguments.is_whole and not call.arguments.waiting) or call.is_value):
                    break
                call.id = call.id or self._unique(None)
                ready.append(ToolCall(call.id, call.name, call.arguments.text.strip(JSON_BLANKS)))
            self._settled += 1
        return ready

    def entries(self) -> list[Json]:
        """The calls as the `tool_calls` of a message, each with an id of its own."""
        entries: list[Json] = []
        for call in self.so_far:
            call.id = call.id or self._unique(None)
            entries.append(call.entry())
        return entries

    def _begin(self, call: PartialCall) -> None:
        """Add a call whose name is known."""
        self.so_far.append(call)
        require_few_calls(len(self.so_far))
        if call.name in self.request.view.client_tools:
            self._show(call)

    def _unique(self, identity: Any) -> Any:
        """The upstream's id for a call, or another one if that is missing or taken, by an earlier turn too.

        A result is told from others by it, and a strict server refuses an id that stands twice.
        """
        if self._ids is None:
            self._ids = set()
            for message in self.request.body.get("messages", ()):
                if "tool_calls" in message:
                    self._ids.update([str(entry.get("id")) for entry in message["tool_calls"] or ()])
        if not identity or identity in self._ids:
            identity = f"call_{self.request.run_id}t{self.request.number}_{len(self._ids)}"
        self._ids.add(identity)
        return identity

    def _show(self, call: PartialCall) -> None:
        """Give one of the client's calls its index and its id in the client's stream."""
        call.client_index = self.client_count
        call.client_id = client_call_id(self.request.run_id, self.client_count)
        self.client_count += 1
