"""Tool calls within a deadline, with events for the observers, for runs and for clients that call tools themselves."""

import asyncio
from typing import Any

from proxy.execution.deadline import Deadline
from proxy.kit.timeouts import elapsed, within
from proxy.loop.call_context import CallContext
from proxy.loop.prompts import OUT_OF_TIME, TOOL_FAILED
from proxy.loop.results import InvalidArguments, ToolError, ToolOutput, ToolTimeout
from proxy.ports import Clock, ExecuteTool, Observer
from proxy.wire.chat import ToolCall


class OutOfTime(ToolTimeout):
    """The deadline of the request has passed."""


class ToolCrashed(ToolError):
    """The tool has a bug; the log has the traceback."""


IN_OUR_WORDS = (InvalidArguments, OutOfTime, ToolCrashed)
"""The failures with messages of the proxy itself, not of a tool."""


async def observed(
    call: ToolCall,
    execute: ExecuteTool,
    context: CallContext,
    *,
    deadline: Deadline,
    observe: Observer,
    clock: Clock,
    **where: Any,
) -> ToolOutput:
    """The output of a call. The call has the tool's own name, not an alias.

    Raises:
        ToolError: the call could not be carried out; the message is for the model.
    """
    where |= {"tool": call.name, "call_id": call.id}
    began = clock.monotonic()
    if observe.handles("tool.started"):
        size = len(call.arguments.encode("utf-8", "replace"))
        observe("tool.started", **where, argument_bytes=size, content={"arguments": call.arguments})
    try:
        if not (left := deadline.seconds_left()):
            raise TimeoutError  # noqa: TRY301 - as if the time ran out during the call
        output = await within(left, execute(call, context))
    except TimeoutError as exc:
        deadline.end()
        observe("tool.failed", **where, seconds=elapsed(began, clock.monotonic()), outcome=ToolTimeout.outcome)
        raise OutOfTime(OUT_OF_TIME) from exc
    except ToolError as exc:
        observe("tool.failed", **where, seconds=elapsed(began, clock.monotonic()), outcome=exc.outcome, why=exc.why)
        raise
    except asyncio.CancelledError:
        observe("tool.abandoned", **where, seconds=elapsed(began, clock.monotonic()))
        raise
    except Exception as exc:
        observe("tool.crashed", **where, seconds=elapsed(began, clock.monotonic()), exc_info=True)
        raise ToolCrashed(TOOL_FAILED) from exc
    end = {"seconds": elapsed(began, clock.monotonic()), "characters": len(output.text), **output.log_fields}
    observe("tool.completed", **where, **end, content={"result": output.text})
    return output
