"""`encrypted_content`, which a client carries from one request to the next (`api.sealed`).

It holds the reasoning of a model, or the hidden part of a run that ended with client calls, if its response is not
stored here.
"""

from typing import Any

from msgspec import Struct

from proxy.api.parsing import message_fault
from proxy.api.sealed import Sealer
from proxy.loop.continuation import Continuation


class Hidden(Struct, frozen=True):
    """The part of a run that the client was not shown."""

    run_id: str
    continuation: Continuation


class Seal(Struct, frozen=True):
    """Seals and opens `encrypted_content` for one caller."""

    sealer: Sealer

    def thoughts(self, text: str) -> str:
        """The `encrypted_content` that holds a model's thoughts."""
        return self.sealer.seal({"thoughts": text})

    def hidden(self, run_id: str, continuation: Continuation) -> str:
        """The `encrypted_content` that holds the hidden part of a run."""
        return self.sealer.seal({"run": run_id, "hidden": continuation.as_json()})

    def open(self, sealed: Any) -> str | Hidden | None:
        """The thoughts or the hidden part in a sealed text; None if it was not sealed here for this caller."""
        match self.sealer.open(sealed):
            case {"run": str(run_id), "hidden": hidden}:
                continuation = Continuation.from_json(hidden)
                if continuation is None or any(map(message_fault, (*continuation.before, continuation.message))):
                    return None  # another version of the proxy has sealed it
                return Hidden(run_id, continuation)
            case {"thoughts": str(text)}:
                return text
            case _:
                return None
