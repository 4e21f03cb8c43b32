"""A check on results: a function of the operator's that sees what a tool returns before anybody else does.

    the tool's text  -->  check  -->  as it is | another text | a failure with the reason

It comes before the cache, the cut, the seal and the display. What cannot be checked, or not in time, is refused. After
another text has taken the place of the tool's, nothing of the original is left: of the pages that it came from, only
the URLs and days stay.
"""

from collections.abc import Callable
from hashlib import sha256
from typing import Any, Literal

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


class Verdict(Struct, frozen=True):
    """The outcome of a check.

    Attributes:
        outcome: for log and metrics; `failed`: the result could not be checked.
        text: the text that the model gets: the result if it passed or was replaced, else a message.
        why: why the result could not be checked, for the log.
    """

    outcome: Literal["passed", "replaced", "refused", "failed"]
    text: str
    why: str | None = None


class Check:
    """The check of one entry of the configuration.

    Args:
        function: takes the tool's name, the arguments of the call and the text of the result. It returns None if the
            result may pass, another text that takes its place, or `Refuse`; it may fail in any way. An async function
            runs in the event loop, any other in a thread.
        timeout: seconds for one result.
        version: differs between checks, so that none passes on what another one has let into a cache.
    """

    def __init__(self, function: Callable[..., Any], *, timeout: float, version: str) -> None:
        self.timeout = timeout
        self.version = version
        self._function = Callee(function, thread_name="toolproxy-check")

    async def verdict(self, tool: str, arguments: Json, text: str) -> Verdict:
        """The verdict on the result of a call. A result that cannot be checked is refused."""
        whole = text if text.isascii() else text.encode("utf-8", "replace").decode()  # half a character is not JSON
        try:
            judged = await within(self.timeout, self._function.call(tool, arguments, whole))
        except TimeoutError:
            why = f"gave no verdict within {counted(self.timeout, 'second')}"
        except ThreadsBusy:
            why = "earlier results are still being checked"
        except Exception as exc:  # noqa: BLE001 - the operator's own code; its message may quote the result
            why = f"raised {type(exc).__name__}"
        else:
            match judged:
                case None:
                    return Verdict("passed", text)
                case str():
                    return Verdict("passed" if judged == text else "replaced", judged)
                case Refuse(reason):
                    return Verdict("refused", f"{_REFUSED} {reason}".strip())
            why = f"returned {type(judged).__name__}, which is no verdict"
        return Verdict("failed", _NOT_CHECKED, f"the check {why}")


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
    return Check(function, timeout=entry.timeout, version=version)


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
