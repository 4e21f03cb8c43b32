"""A Python function, called with the arguments that a model wrote.

An async function runs in the event loop, any other in a thread of its own. A thread cannot be stopped: one that hangs
is left behind when its call's time is over, and holds neither the loop nor the end of the process.
"""

import asyncio
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import orjson

from proxy.loop.chat import Json, ToolOutput
from proxy.loop.errors import ToolUnavailable
from proxy.tools.arguments import schema_fault
from proxy.tools.python import signature
from proxy.tools.threads import DaemonThreads, ThreadsBusy

# Threads of one tool that may be at work; those left behind count, so that they cannot pile up.
MOST_THREADS = 64


class Function:
    """A function with its name, description and schema for a model.

    Args:
        function: takes its arguments by name.
        parameters: a JSON Schema that takes the place of the one derived from the type hints.

    Raises:
        ValueError: a model could not call it.
    """

    def __init__(self, function: Callable[..., Any], *, parameters: Json | None = None) -> None:
        read = signature.read(function, parameters=parameters)
        if fault := schema_fault(read.parameters):
            raise ValueError(f"its parameters: {fault}")
        self.name = signature.name_of(function)
        self.description = read.description
        self.parameters = read.parameters
        self._typed = read.typed
        self._function = function
        self._threads = None if _is_async(function) else DaemonThreads("toolproxy-tool", most=MOST_THREADS)

    async def run(self, arguments: Json) -> str | ToolOutput:
        """Call the function; what it returns as text, or as JSON.

        Raises:
            RuntimeError: it raised what would end the process, or pass for a timeout or a cancellation of ours.
            ToolUnavailable: too many earlier calls have not ended yet.
        """
        work = partial(self._function, **self._typed(arguments))
        try:
            result = work() if self._threads is None else await self._threads.run(work, queue=False)
            if inspect.isawaitable(result):
                result = await result
        except ThreadsBusy as exc:
            raise ToolUnavailable(
                "Earlier calls of this tool have not ended yet; it takes no further ones now."
            ) from exc
        except (SystemExit, KeyboardInterrupt, TimeoutError) as exc:
            raise RuntimeError(f"the function raised {type(exc).__name__}") from exc
        except asyncio.CancelledError as exc:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise RuntimeError("the function was cancelled by itself") from exc
        return result if isinstance(result, (str, ToolOutput)) else orjson.dumps(result).decode()


def _is_async(function: Callable[..., object]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004 - asks what kind of call it has, not whether
