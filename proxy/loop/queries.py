"""Several queries in one call of a search: they run at the same time, and each counts as a call of the tool.

With two calls left, `{"queries": ["a", "b", "c"]}` becomes `{"query": "a", "queries": ["b"]}`, and the result says that
"c" was left out.
"""

from collections.abc import Callable, Sequence

import orjson
from msgspec.structs import replace

from proxy.loop.prompts import QUERIES_LEFT_OUT
from proxy.wire.chat import ToolCall, ToolSpec
from proxy.wire.json_text import json_object
from proxy.wire.search import MOST_QUERIES, queries_of, with_queries

_LONGEST_QUOTED = 100  # characters of a query in a note


def searches_in(
    tool: ToolSpec, call: ToolCall, read: Callable[[ToolCall], str | None], most: int
) -> tuple[ToolCall, int, tuple[str, ...]]:
    """A call within a limit: the call with at most `most` queries, their number, and the other queries.

    Args:
        tool: the tool. A call of a tool that does not search stays as it is, and counts once.
        call: the call, with its tool's own name.
        read: returns its arguments as a JSON object; None: they are no object.
        most: at least 1.
    """
    if not tool.searches or "[" not in call.arguments:  # few calls have several queries
        return call, 1, ()
    arguments = json_object(read(call) or "{}") or {}
    queries, beyond = queries_of(arguments)
    if not queries:
        return call, 1, ()
    kept, left_out = queries[:most], (*queries[most:], *beyond)
    if left_out:
        call = replace(call, arguments=orjson.dumps(with_queries(arguments, kept)).decode())
    return call, len(kept), left_out


def left_out_note(queries: Sequence[str]) -> str:
    """The note about queries that were not run."""
    named = ", ".join(f'"{query[:_LONGEST_QUOTED]}"' for query in queries)
    return QUERIES_LEFT_OUT.format(queries=named, most=MOST_QUERIES)
