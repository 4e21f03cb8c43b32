"""The server tools with what a client demands of its hosted ones: domains, a place, and how long a page may be."""

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from proxy.api.body import is_integer, whole
from proxy.api.messages.parts import refuse
from proxy.api.search_filters import filters_of_tool, merged
from proxy.loop.call_context import CallContext
from proxy.loop.chat import Json, ToolCall
from proxy.loop.prompts import RESULT_CUT
from proxy.loop.results import ToolOutput
from proxy.loop.search import NO_FILTERS, SearchFilters
from proxy.ports import ExecuteTool

_CHARACTERS_PER_TOKEN = 4  # of English text; a page is cut by its length and not by its tokens


class Demands(Struct, frozen=True):
    """A client's demands on one of its hosted tools.

    Attributes:
        filters: which pages may reach the model and the client, and where the user is.
        max_characters: of a page; None: as many as the tool gives.
    """

    filters: SearchFilters = NO_FILTERS
    max_characters: int | None = None


NO_DEMANDS = Demands()


def read_demands(tool: Json, where: str) -> Demands:
    """The demands in a declared hosted tool, in which everything may be null or empty. Raises `RequestError`."""
    filters = filters_of_tool(tool, where)
    if filters.allow and filters.block:
        refuse(where, "may have `allowed_domains` or `blocked_domains`, not both")
    most = whole(tool.get("max_content_tokens"))
    if most is not None and not is_integer(most, 1):
        refuse(f"{where}.max_content_tokens", "must be an integer of at least 1")
    return Demands(filters, None if most is None else most * _CHARACTERS_PER_TOKEN)


def with_demands(execute: ExecuteTool, demands: Mapping[str, Demands]) -> ExecuteTool:
    """A function that runs calls as `execute` does, within a client's demands.

    Args:
        execute: runs a call of a server tool.
        demands: by the tool's own name.
    """

    async def execute_within(call: ToolCall, context: CallContext) -> ToolOutput:
        own = demands.get(call.name, NO_DEMANDS)
        # A list of one tool holds for the others, too, unless they have one of their own; blocked domains add up.
        output = await execute(call, replace(context, filters=merged([own.filters, context.filters])))
        text, most = output.text, own.max_characters
        if most is None or len(text) <= most:
            return output
        return replace(output, text=text[:most] + RESULT_CUT.format(total=len(text), shown=most))

    return execute_within
