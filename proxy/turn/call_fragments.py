"""Which call of a turn a fragment of a stream belongs to.

At OpenAI every call has an `index` of its own. Mistral sends none, Z.AI -1, and some servers send 0 for every call. A
call then begins with a new id, with a new name, or with other arguments after complete ones:

    index   id   name        arguments
    0       a    search      {"q":
    0                        "x"}
    0       a    search                     the same call: some servers repeat id and name in every fragment
    0       b    search      {"q": "y"}     a new id
    0            open_door   {"n": 1}       a new name
    0            open_door   {"n": 2}       other arguments under the same name
    0            open_door   {"n": 2}       the same call once more, which `Arguments` takes back
    0       b    search      {"q": "z"}     other arguments: some servers give all calls of a turn one id

Where there is an index, a new id begins a call only together with a name: old versions of vLLM give every fragment an
id of its own.
"""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field

from proxy.turn.call_arguments import Arguments, ScanBudget
from proxy.turn.leaks.glm import split_glued_name
from proxy.turn.opaque_fields import merge_fields
from proxy.wire.chat import Json
from proxy.wire.rawjson import dumps_answer

ARGUMENTS = {"function": "arguments", "custom": "input"}
"""The types of calls, and the field of each in which the input arrives in pieces."""

# The keys of a fragment, and of its function, that `PartialCall` holds by themselves.
_OF_FRAGMENTS, _OF_FUNCTIONS = frozenset({"id", "type", *ARGUMENTS}), frozenset({"name", *ARGUMENTS.values()})


class Fragment(Struct, frozen=True):
    """A fragment of a call, as an entry of a delta's `tool_calls` has it.

    Attributes:
        index: the upstream's index; None: there is none that can be used.
        id: the upstream's id; empty: there is none.
        type: the type of the call, which only its first fragment need have.
        name: the name without raw format around it; empty: there is none.
        arguments: the next piece of the arguments; empty: there is none.
    """

    index: int | None
    id: Any
    type: str
    name: str
    arguments: str

    @classmethod
    def read(cls, entry: Json, tools: Mapping[str, Json]) -> "Fragment":
        """The fragment in an entry; `tools`: the names that may be called -> their JSON Schemas.

        Raises:
            UpstreamError: the arguments are nested too deep.
        """
        index, kind = entry.get("index"), entry.get("type") or ("custom" if "custom" in entry else "function")
        detail = entry.get(kind)
        if not isinstance(detail, dict):
            detail = {}
        name, arguments = detail.get("name") or "", as_text(detail.get(ARGUMENTS.get(kind)))
        if name and name not in tools:
            name, arguments = split_glued_name(name, arguments, tools)
        is_usable = isinstance(index, int) and index >= 0  # Z.AI has been seen to send -1, and Mistral sends none
        return cls(index if is_usable else None, entry.get("id") or "", kind, name, arguments)


class PartialCall(Struct):
    """A tool call that may not be complete yet.

    Attributes:
        arguments: the arguments so far.
        type: the type of the call.
        name: the name; empty: it has not arrived.
        upstream_id: the upstream's id; empty: it has sent none.
        id: the id for the upstream, its own if that is unique; empty: it is not known yet.
        fields: the other fields as received, such as `extra_content`, which the upstream wants back.
        client_index: the index in the client's stream; None: the call is not the client's.
        client_id: the id that the client gets; None: the call is not the client's.
        is_named_again: whether the name has come once more since the arguments are complete.
        is_value: whether the arguments were any JSON value when the next call began.
        unnamed: the pieces of the arguments that arrived before the name, for `opening`.
    """

    arguments: Arguments = field(default_factory=Arguments)
    type: str = "function"
    name: str = ""
    upstream_id: Any = ""
    id: Any = ""
    fields: Json = {}
    client_index: int | None = None
    client_id: str | None = None
    is_named_again: bool = False
    is_value: bool = False
    unnamed: list[str] = []

    def ends_before(self, fragment: Fragment) -> bool:
        """Whether a fragment with the index or the id of this call begins the next one."""
        name, has_new_id = fragment.name, bool(fragment.id) and fragment.id != self.upstream_id
        if has_new_id and (self.upstream_id or fragment.index is None):
            return bool(name) or fragment.index is None
        if name and self.name and name != self.name and not name.startswith("<"):  # else it is only raw format
            return True
        if name and self.arguments.is_whole:
            self.is_named_again = True
        if not self.is_named_again:
            return False
        written = fragment.arguments
        return has_new_id or (bool(written.strip()) and not self.arguments.repeats(written))

    def add_fields(self, fragment: Json) -> None:
        """Add the other fields of a fragment, and of the function that it describes; most have none."""
        detail = fragment.get(self.type)
        has_others = isinstance(detail, dict) and not detail.keys() <= _OF_FUNCTIONS
        if has_others or not fragment.keys() <= _OF_FRAGMENTS:
            merge_fields(self.fields, fragment)

    def entry(self) -> Json:
        """The call as an entry of a message's `tool_calls`."""
        entry = {**self.fields, "id": self.id, "type": self.type}
        if self.type in ARGUMENTS:
            entry[self.type] = self._detail(self.arguments.text)
        return entry

    def opening(self, arguments: str) -> Json:
        """The first fragment that the client gets of a call of its own; `arguments`: the latest piece of them."""
        opening: Json = {}
        merge_fields(opening, self.fields)  # a copy, because the fields grow, and what is shown may have to wait
        opening |= {"index": self.client_index, "id": self.client_id, "type": self.type}
        if self.type in ARGUMENTS:
            opening[self.type] = self._detail("".join([*self.unnamed, arguments]))
        return opening

    def more(self, fragment: Json, arguments: str) -> Json:
        """A later fragment for the client, without id, type and name: readers of a stream join repeated strings."""
        rest = {key: value for key, value in fragment.items() if key not in ("id", "type")}
        if self.type in ARGUMENTS:
            rest[self.type] = {ARGUMENTS[self.type]: arguments}
        return {**rest, "index": self.client_index}

    def _detail(self, arguments: str) -> Json:
        known = self.fields.get(self.type)
        return {**(known if isinstance(known, dict) else {}), "name": self.name, ARGUMENTS[self.type]: arguments}


class StreamedCalls(Struct, kw_only=True):
    """The calls of one turn, in the order in which they begin.

    Attributes:
        so_far: the calls.
        budget: the budget of the scanners of their arguments.
    """

    budget: ScanBudget = field(default_factory=ScanBudget)
    so_far: list[PartialCall] = []
    _latest: dict[int | None, int] = {}  # index -> position of the latest call with it; None: of the latest call
    _by_id: dict[tuple[int | None, Any], int] = {}  # index and id -> position; the same with None as the index

    def place(self, fragment: Fragment) -> int:
        """The position of the call that a fragment belongs to, which is added if the fragment begins it.

        The arguments of the fragment are not added to those of the call.
        """
        index, identity = fragment.index, fragment.id
        at = self._by_id.get((index, identity)) if identity else None
        if at is None:
            at = self._latest.get(index)
        known = None if at is None else self.so_far[at]
        if at is None or (known is not None and known.ends_before(fragment)):
            at = len(self.so_far)
            name = known.name if known is not None and known.is_named_again else ""
            arguments = Arguments(self.budget, is_plain=fragment.type != "function")
            self.so_far.append(PartialCall(arguments, name=fragment.name or name, upstream_id=identity))
        if identity:
            self._by_id[index, identity] = at
            self._by_id.setdefault((None, identity), at)
        self._latest[index] = self._latest[None] = at
        call = self.so_far[at]
        call.upstream_id = call.upstream_id or identity
        call.name = call.name or fragment.name
        return at


def as_text(arguments: object) -> str:
    """Arguments as JSON text: ZOAS and native Ollama send an object. Raises `UpstreamError` if that is too deep."""
    if arguments is None:
        return ""
    return arguments if isinstance(arguments, str) else dumps_answer(arguments).decode()
