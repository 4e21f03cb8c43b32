"""A check on results: a function or a server of the operator's that sees what a tool returns before anybody else does.

    the tool's text  -->  check  -->  as it is | another text | a failure with the reason

It comes before the cache, the cut, the seal and the display. What cannot be checked, or not in time, is refused. After
another text has taken the place of the tool's, nothing of the original is left: of the pages that it came from, the
URLs and days stay, and titles and texts are what the new text says of them.
"""

from collections.abc import Callable, Collection, Coroutine, Iterator
from hashlib import sha256
from typing import Any, Final, Literal, TypeAlias

import httpx
import msgspec
import orjson
from msgspec import Struct

from proxy.config.model import CheckConfig
from proxy.http.connect import reason
from proxy.kit.counted import counted
from proxy.kit.timeouts import within
from proxy.loop.results import ToolOutput
from proxy.tools.exchange import Request, send
from proxy.tools.python.function import Callee, imported
from proxy.tools.threads import ThreadsBusy
from proxy.wire.chat import Json
from proxy.wire.errors import ConfigurationError
from proxy.wire.search import SearchHit

_MOST_BYTES: Final = 32 * 1024 * 1024  # of a server's answer; a tool's text has a fraction of that
_SUCCESS = range(200, 300)
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
            case CheckFailed():
                return str(error)
            case ThreadsBusy():
                return "earlier results are still being checked"
            case _:
                return f"raised {type(error).__name__}"


class CheckFailed(Exception):
    """A server has given no verdict; the message is for the log."""


def _failed(why: str) -> Verdict:
    return Verdict("failed", told=_NOT_CHECKED, why=f"the check {why}")


def check_of(given: str | CheckConfig | None, where: str, client: httpx.AsyncClient) -> Check | None:
    """The check that the configuration has at a place.

    Raises:
        ConfigurationError: the function cannot be imported, or is none.
    """
    if given is None:
        return None
    entry = CheckConfig(function=given) if isinstance(given, str) else given
    version = sha256(repr(entry).encode()).hexdigest()[:16]
    if entry.url is not None:
        return Check(server_judge(entry.url, entry.headers, client), timeout=entry.timeout, version=version)
    try:
        function = imported(entry.function or "")
    except ValueError as exc:
        raise ConfigurationError([f"{where}: {' '.join(str(exc).split())}"]) from exc
    if not callable(function):
        raise ConfigurationError([f"{where}: {entry.function} is no function"])
    return Check(function_judge(function), timeout=entry.timeout, version=version)


def function_judge(function: Callable[..., Any]) -> Judge:
    """A judge that calls a Python function: an async one in the event loop, any other in a thread."""
    return Callee(function, thread_name="toolproxy-check").call


class _Answer(Struct):
    """The answer of a server that checks results."""

    action: Literal["pass", "replace", "refuse"]
    result: str | None = None
    reason: str | None = None


def server_judge(url: str, headers: dict[str, str], client: httpx.AsyncClient) -> Judge:
    """A judge that asks a server, which gets `{"tool", "arguments", "result"}` and answers as `_Answer` has it."""

    async def judge(tool: str, arguments: Json, text: str) -> str | Refuse | None:
        asked = orjson.dumps({"tool": tool, "arguments": arguments, "result": text})
        try:
            answer = await send(client, Request("POST", url, asked, headers), most=_MOST_BYTES)
        except httpx.HTTPError as exc:
            raise CheckFailed(f"cannot be made: {reason(exc)}") from exc
        if answer.status not in _SUCCESS:
            raise CheckFailed(f"answered HTTP {answer.status}")
        try:
            given = msgspec.json.decode(answer.body, type=_Answer)
        except msgspec.DecodeError as exc:
            raise CheckFailed("answered something that is no verdict") from exc
        match given.action:
            case "pass":
                return None
            case "refuse":
                return Refuse(given.reason or "")
            case "replace":
                if given.result is None:
                    raise CheckFailed("wants to replace the result, and gives no other")
                return given.result

    return judge


def replaced(output: ToolOutput, text: str) -> ToolOutput:
    """An output with another text, and nothing of the original but the URLs and days of its pages."""
    urls = {*output.sources, *(hit.url for hit in output.hits)}
    said = {url: (title, about) for url, title, about in _said_of(urls, text)}
    sources = {url: said[url][0] if url in said else "" for url in output.sources}
    hits = tuple([_said_hit(hit, *said.get(hit.url, ("", ""))) for hit in output.hits])
    kept: dict[str, Any] = {
        "cost": output.cost,
        "note": output.note,
        "provider": output.provider,
        "failed_queries": output.failed_queries,
    }
    return ToolOutput(text, sources, hits, pages=output.pages, **kept)


def _said_hit(hit: SearchHit, title: str, about: str) -> SearchHit:
    line, _, rest = about.partition("\n")
    # The line with the site and the day belongs to neither the title nor the text.
    about = rest if line and line == hit.where else about
    if hit.query is not None:  # of several queries, the next one's heading follows the last page of this one
        about = about.partition('\n\nResults for "')[0]
    return SearchHit(hit.url, title, about.strip(), published=hit.published, updated=hit.updated, query=hit.query)


def _said_of(urls: Collection[str], text: str) -> Iterator[tuple[str, str, str]]:
    """The pages that a text names on a line of their own, each with its title and what is said of it.

    The title is the line before, if a paragraph begins with it; all that follows is said of the page, up to the next.
    """
    lines = text.split("\n")
    places: dict[str, int] = {}
    for at, line in enumerate(lines):
        if (url := line.strip()) in urls:
            places.setdefault(url, at)
    ends = len(lines)
    for url, at in reversed(places.items()):
        has_title = at > 0 and bool(lines[at - 1].strip()) and (at == 1 or not lines[at - 2].strip())
        yield url, lines[at - 1].strip() if has_title else "", "\n".join(lines[at + 1 : ends])
        ends = at - 1 if has_title else at
