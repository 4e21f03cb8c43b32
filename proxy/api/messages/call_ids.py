"""The ids of the blocks of calls, which tell a later request the run and the turn of each."""

import re

from proxy.turn.call_ids import server_call_id
from proxy.wire.chat import Json

# The run, the number of the call in the run, and its turn. Ids from an earlier version of the proxy have no turn.
_OURS = re.compile(r"toolu_([0-9a-f]{32})_([0-9]+)(?:_([0-9]+))?")
_SHOWN = re.compile(r"(?:srv|mcp)toolu_([0-9a-f]{32})_([0-9]+)(?:_([0-9]+))?")


def tool_use_id(client_id: str, turn: int) -> str:
    """The id of a `tool_use` block, made from the id that the loop gave to the client's call."""
    return f"{client_id.replace('call_', 'toolu_', 1)}_{turn}"


def shown_call_id(kind: str, run_id: str, number: int, turn: int) -> str:
    """The id of a run's block of the type `server_tool_use` or `mcp_tool_use`."""
    return f"{'mcp' if kind == 'mcp_tool_use' else 'srv'}toolu_{run_id}_{number}_{turn}"


def origin_of(block: Json) -> str | None:
    """The run and the turn in the id of a call's block; None if the id was not made here."""
    block_id = block.get("id")
    found = (_OURS.fullmatch(block_id) or _SHOWN.fullmatch(block_id)) if isinstance(block_id, str) else None
    return f"{found[1]}_{found[3]}" if found and found[3] else None


def client_id(block_id: str) -> str:
    """The loop's id for the id of a `tool_use` block; an id that was not made here is returned unchanged."""
    match = _OURS.fullmatch(block_id)
    return f"call_{match[1]}_{match[2]}" if match else block_id


def id_in_run(block_id: str) -> str:
    """The id that the call of a server tool had in its run; an id that was not made here is returned unchanged.

    With it, the loop finds what is stored under the run and puts it back into its place.
    """
    match = _SHOWN.fullmatch(block_id)
    return server_call_id(match[1], int(match[2])) if match else block_id
