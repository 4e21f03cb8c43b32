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
from proxy.wire.chat import Json
from proxy.wire.rawjson import dumps_answer

ARGUMENTS = {"function": "arguments", "custom": "input"}
"""The types of calls, and the field of each in which the input arrives in pieces."""


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


class StreamedCall(Struct):
    """The parts of a streamed call that tell it apart from others.

    Attributes:
        arguments: the arguments so far.
        id: the upstream's id; empty: it has sent none.
        name: the name; empty: it has not arrived.
        is_named_again: whether the name has come once more since the arguments are complete.
    """

    arguments: Arguments
    id: Any = ""
    name: str = ""
    is_named_again: bool = False

    def ends_before(self, fragment: Fragment) -> bool:
        """Whether a fragment with the index or the id of this call begins the next one."""
        name, has_new_id = fragment.name, bool(fragment.id) and fragment.id != self.id
        if has_new_id and (self.id or fragment.index is None):
            return bool(name) or fragment.index is None
        if name and self.name and name != self.name and not name.startswith("<"):  # else it is only raw format
            return True
        if name and self.arguments.is_whole:
            self.is_named_again = True
        if not self.is_named_again:
            return False
        written = fragment.arguments
        return has_new_id or (bool(written.strip()) and not self.arguments.repeats(written))


class StreamedCalls(Struct):
    """The calls of one turn, in the order in which they begin.

    Attributes:
        so_far: the calls.
        budget: the budget of the scanners of their arguments.
    """

    budget: ScanBudget = field(default_factory=ScanBudget)
    so_far: list[StreamedCall] = []
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
            self.so_far.append(StreamedCall(arguments, identity, fragment.name or name))
        if identity:
            self._by_id[index, identity] = at
            self._by_id.setdefault((None, identity), at)
        self._latest[index] = self._latest[None] = at
        call = self.so_far[at]
        call.id = call.id or identity
        call.name = call.name or fragment.name
        return at


def as_text(arguments: object) -> str:
    """Arguments as JSON text: ZOAS and native Ollama send an object. Raises `UpstreamError` if that is too deep."""
    if arguments is None:
        return ""
    return arguments if isinstance(arguments, str) else dumps_answer(arguments).decode()
