"""A check on results: a function of the operator's that sees what a tool returns before anybody else does.

    the tool's text  -->  check  -->  as it is | another text | a failure with the reason

It comes before the cache, the cut, the seal and the display. What cannot be checked, or not in time, is refused. After
another text has taken the place of the tool's, nothing of the original is left: of the pages that it came from, only
the URLs and days stay.
"""

from collections.abc import Callable, Coroutine
from hashlib import sha256
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from proxy.config.model import CheckConfig
from proxy.kit.counted import counted
from proxy.kit.timeouts import within
from proxy.loop.results import ToolOutput
from proxy.tools.python.function import Callee, imported
from proxy.tools.threads import ThreadsBusy
from proxy.wire.chat import Json
from proxy.wire.errors import ConfigurationError
from proxy.wire.search import SearchHit

_REFUSED = "The result was not let through by a check."
_NOT_CHECKED = "The result was not let through: it could not be checked."


class Refuse(Struct, frozen=True):
    """What a check returns for a result that must not reach the model, with the reason, which the model is told."""

    reason: str = ""


Judge: TypeAlias = Callable[[str, Json, str], Coroutine[Any, Any, Any]]
"""Takes the tool's name, the arguments of the call and the text of the result. Returns None if the result may pass as
it is, another text that takes its place, or `Refuse`; it may fail in any way."""


class Verdict(Struct, frozen=True):
    """The outcome of a check.

    Attributes:
        outcome: for log and metrics; `failed`: the result could not be checked.
        passed: the text that may pass; None: none may.
        told: what the model is told in place of a text.
        why: why the result could not be checked, for the log.
    """

    outcome: Literal["passed", "replaced", "refused", "failed"]
    passed: str | None = None
    told: str = ""
    why: str | None = None


class Check:
    """The check of one entry of the configuration.

    Args:
        judge: judges the results.
        timeout: seconds for one result.
        version: differs between checks, so that none passes on what another one has let into a cache.
    """

    def __init__(self, judge: Judge, *, timeout: float, version: str) -> None:
        self.timeout = timeout
        self.version = version
        self._judge = judge

    async def verdict(self, tool: str, arguments: Json, text: str) -> Verdict:
        """The verdict on the result of a call. A result that cannot be checked is refused."""
        whole = text if text.isascii() else text.encode("utf-8", "replace").decode()  # half a character is not JSON
        try:
            judged = await within(self.timeout, self._judge(tool, arguments, whole))
        except Exception as exc:  # noqa: BLE001 - the operator's own code; its message may quote the result
            return _failed(self._why(exc))
        match judged:
            case None:
                return Verdict("passed", text)
            case str():
                return Verdict("passed" if judged == text else "replaced", judged)
            case Refuse(reason):
                return Verdict("refused", told=f"{_REFUSED} {reason}".strip())
            case _:
                return _failed(f"returned {type(judged).__name__}, which is no verdict")

    def _why(self, error: Exception) -> str:
        match error:
            case TimeoutError():
                return f"gave no verdict within {counted(self.timeout, 'second')}"
            case ThreadsBusy():
                return "earlier results are still being checked"
            case _:
                return f"raised {type(error).__name__}"


def _failed(why: str) -> Verdict:
    return Verdict("failed", told=_NOT_CHECKED, why=f"the check {why}")


def check_of(given: str | CheckConfig | None, where: str) -> Check | None:
    """The check that the configuration has at a place.

    Raises:
        ConfigurationError: the function cannot be imported, or is none.
    """
    if given is None:
        return None
    entry = CheckConfig(function=given) if isinstance(given, str) else given
    version = sha256(repr(entry).encode()).hexdigest()[:16]
    try:
        function = imported(entry.function)
    except ValueError as exc:
        raise ConfigurationError([f"{where}: {' '.join(str(exc).split())}"]) from exc
    if not callable(function):
        raise ConfigurationError([f"{where}: {entry.function} is no function"])
    return Check(function_judge(function), timeout=entry.timeout, version=version)


def function_judge(function: Callable[..., Any]) -> Judge:
    """A judge that calls a Python function: an async one in the event loop, any other in a thread."""
    return Callee(function, thread_name="toolproxy-check").call


def replaced(output: ToolOutput, text: str) -> ToolOutput:
    """An output with another text. Of the original, the URLs and days of its pages stay, and nothing else."""
    hits = [
        SearchHit(hit.url, "", published=hit.published, updated=hit.updated, query=hit.query) for hit in output.hits
    ]
    return ToolOutput(
        text,
        dict.fromkeys(output.sources, ""),
        tuple(hits),
        cost=output.cost,
        note=output.note,
        provider=output.provider,
        failed_queries=output.failed_queries,
        pages=output.pages,
    )
