"""`type: python`: a Python function as a tool, named by the configuration or by an entry point of `toolproxy.tools`.

An async function runs in the event loop, any other in a thread of its own. Nobody can stop a thread: one that hangs is
left behind when its call's time is over, and holds neither the loop nor the end of the process.
"""

import asyncio
import contextvars
import importlib
import inspect
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import orjson

from proxy.config import Config, PythonToolConfig
from proxy.loop.chat import Json, ToolOutput
from proxy.loop.errors import ConfigurationError, ToolUnavailable
from proxy.tools.arguments import schema_fault
from proxy.tools.python import signature
from proxy.tools.tool import Terms, Tool

ENTRY_POINTS = "toolproxy.tools"
# Threads of one tool that may be at work; those left behind count, so that they cannot pile up.
MOST_THREADS = 64


def python_tool(name: str, config: PythonToolConfig) -> Tool:
    """The function or the `Tool` that an entry names, as a tool by the entry's name.

    Raises:
        ConfigurationError: there is none, it cannot be imported, or no model could call it.
    """
    try:
        found, origin = _find(config.function or name)
        said = {"description": config.description, "parameters": config.parameters}
        terms: Any = {key: value for key, value in said.items() if value is not None}
        if isinstance(found, Tool):
            return replace(found, name=name, origin=origin, **terms)
        return replace(tool_of(found, name=name, **terms), origin=origin)
    except ValueError as exc:
        raise ConfigurationError([f"tools.{name}.function: {' '.join(str(exc).split())}"]) from exc


def not_configured(config: Config) -> list[str]:
    """Installed entry points that no tool of the configuration is made of, each with its origin."""
    entries = [(name, tool) for name, tool in config.tools.items() if isinstance(tool, PythonToolConfig)]
    used = {tool.function or name for name, tool in entries}
    return [_origin(found) for found in entry_points(group=ENTRY_POINTS) if found.name not in used]


def tool_of(function: Callable[..., object], **terms: Any) -> Tool:
    """A function as a tool; `proxy.Tool.from_function` is its public name.

    Raises:
        ValueError: a model could not call it.
    """
    given: Terms = terms  # type: ignore[assignment] # the types are checked at the public name
    read = signature.read(function, parameters=given.get("parameters"))
    if fault := schema_fault(read.parameters):
        raise ValueError(f"its parameters: {fault}")
    work = _in_the_loop(function) if _is_async(function) else _in_a_thread(function)

    async def run(arguments: Json) -> str | ToolOutput:
        return _output(await _contained(work(read.typed(arguments))))

    own = {"name": signature.name_of(function), "description": read.description}
    return Tool(**{**own, **terms, "parameters": read.parameters, "run": run})


def _find(reference: str) -> tuple[Any, str]:
    """What a reference means, and where it comes from: `module:attribute`, or the name of an entry point."""
    if ":" in reference:
        module, _, attribute = reference.partition(":")
        point = EntryPoint(reference, f"{module}:{attribute}", ENTRY_POINTS)
        return _loaded(point), reference
    points = [*entry_points(group=ENTRY_POINTS, name=reference)]
    if not points:
        raise ValueError(f"there is no entry point {reference!r} of {ENTRY_POINTS}; a function is module:function")
    if len(points) > 1:
        raise ValueError(f"there are several: {', '.join(_origin(point) for point in points)}")
    return _loaded(points[0]), _origin(points[0])


def _loaded(point: EntryPoint) -> Any:
    importlib.invalidate_caches()
    try:
        return point.load()
    except (Exception, SystemExit) as exc:  # importing runs the module, which may fail in any way
        raise ValueError(f"{point.value} cannot be imported: {type(exc).__name__}: {exc}") from exc


def _origin(point: EntryPoint) -> str:
    found = f"entry point {point.name}"
    return f"{found} of {point.dist.name} {point.dist.version}" if point.dist else found


def _is_async(function: Callable[..., object]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004 - asks what kind of call it has, not whether


def _in_the_loop(function: Callable[..., Any]) -> Callable[[Json], Awaitable[object]]:
    async def work(arguments: Json) -> object:
        return await function(**arguments)

    return work


def _in_a_thread(function: Callable[..., object]) -> Callable[[Json], Awaitable[object]]:
    threads = _Threads(MOST_THREADS)

    async def work(arguments: Json) -> object:
        result = await threads.run(lambda: function(**arguments))
        return await result if inspect.isawaitable(result) else result

    return work


class _Threads:
    """A daemon thread for each call: an executor's threads are joined when the process ends, however long they hang."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._busy = 0

    async def run(self, work: Callable[[], object]) -> object:
        """What `work` returns or raises. Raises `ToolUnavailable` while too many earlier calls have not ended."""
        if self._busy >= self._most:
            raise ToolUnavailable("Earlier calls of this tool have not ended yet; it takes no further ones now.")
        loop = asyncio.get_running_loop()
        done: asyncio.Future[object] = loop.create_future()
        context = contextvars.copy_context()

        def finish(result: object, failure: BaseException | None) -> None:
            self._busy -= 1
            if done.done():  # its time was over
                return
            if failure is None:
                done.set_result(result)
            else:
                done.set_exception(failure)

        def thread() -> None:
            result, failure = _attempt(lambda: context.run(work))
            with suppress(RuntimeError):  # the loop is closed: nobody is left to tell
                loop.call_soon_threadsafe(finish, result, failure)

        threading.Thread(target=thread, name="toolproxy-tool", daemon=True).start()
        self._busy += 1
        return await done


def _attempt(work: Callable[[], object]) -> tuple[object, BaseException | None]:
    try:
        return work(), None
    except StopIteration as exc:  # a future cannot carry it
        failure = RuntimeError("the function raised StopIteration")
        failure.__cause__ = exc
        return None, failure
    except BaseException as exc:  # noqa: BLE001 - it is raised where the call is awaited
        return None, exc


async def _contained(work: Awaitable[object]) -> object:
    """The function's result; what it raises to end itself ends neither the proxy nor passes for a limit of ours."""
    try:
        return await work
    except (SystemExit, KeyboardInterrupt, TimeoutError) as exc:
        raise RuntimeError(f"the function raised {type(exc).__name__}") from exc
    except asyncio.CancelledError as exc:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise RuntimeError("the function was cancelled by itself") from exc


def _output(result: object) -> str | ToolOutput:
    return result if isinstance(result, (str, ToolOutput)) else orjson.dumps(result).decode()
