"""The ids of calls that a client sees: they tell in a later request whose call it was."""

import re
from typing import Final

OURS: Final = re.compile(r"call_([0-9a-f]{32})_(s?)[0-9]+")
SHORTEST: Final = len("call_") + 32 + len("_0")


def client_call_id(run_id: str, index: int) -> str:
    """The id of a call of the client's; `run_id`: 32 hexadecimal digits."""
    return f"call_{run_id}_{index}"


def server_call_id(run_id: str, number: int) -> str:
    """The id, in a history, of a server's call that the client was shown and has sent back."""
    return f"call_{run_id}_s{number}"
