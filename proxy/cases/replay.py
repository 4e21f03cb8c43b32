"""`toolproxy replay`: plays cases again, and says what is as it was then and what differs."""

import asyncio
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import orjson
from msgspec import Struct, to_builtins

from proxy.cases import case_format
from proxy.cases.comparison import Difference
from proxy.cases.fake_servers import FakeServers
from proxy.cases.mounts import Mount
from proxy.cases.played_tools import PlayedResults
from proxy.cases.player import Player
from proxy.cases.settings import needs_sockets
from proxy.kit.terminal import style_of
from proxy.wire.chat import Json
from proxy.wire.errors import ConfigurationError

# The outcomes of a file: in the summary, and in its own line with the color there.
_OUTCOMES: Final = {
    "same": ("as then", "as it was", "green"), "different": ("different", "differs", "red"),
    "not_played": ("not played", "is not played", "yellow"), "faulty": ("not playable", "cannot be played", "red"),
}  # fmt: skip
_MOST_SHOWN: Final = 20  # differences of one case; programs get them all


class ReplayResult(Struct, frozen=True):
    """The result of playing one file.

    Attributes:
        path: the file.
        plays: how often it was played, once for each surface and mode.
        differences: what is not as it was, with the name of the play.
        not_played: the reasons for which it was not played, such as a timeout.
        fault: why it could not be played.
    """

    path: str
    plays: int = 0
    differences: tuple[tuple[str, Difference], ...] = ()
    not_played: tuple[str, ...] = ()
    fault: str | None = None

    @property
    def outcome(self) -> str:
        """`same`, `different`, `not_played` or `faulty`."""
        if self.fault is not None:
            return "faulty"
        return "different" if self.differences else "not_played" if self.not_played else "same"


def replay(paths: Sequence[Path], *, as_json: bool = False) -> bool:
    """Play cases, and print what came of each; whether some were played, and nothing differs.

    Args:
        paths: files, and folders of files.
        as_json: whether to print JSON for programs.

    Raises:
        ConfigurationError: a path does not exist, or a folder has no case.
    """
    verdicts = []
    for path in case_format.files_in([*paths]):
        verdicts.append(played(path))
        if not as_json:
            _print(verdicts[-1])
    counts = Counter(verdict.outcome for verdict in verdicts)
    if as_json:
        cases = [*map(_as_json, verdicts)]
        told = {"cases": cases, **{name: counts[name] for name in _OUTCOMES}}
        print(orjson.dumps(told, option=orjson.OPT_INDENT_2, default=str).decode())
    else:
        summary = ", ".join(f"{counts[name]} {word}" for name, (word, *_) in _OUTCOMES.items() if counts[name])
        print(f"{len(verdicts)} {'case' if len(verdicts) == 1 else 'cases'}: {summary}")
    return "same" in counts and counts.keys() <= {"same", "not_played"}


def played(path: Path) -> ReplayResult:
    """Play one file. No fault of a case, or of the proxy that plays it, ends the others."""
    try:
        case = case_format.load(path)
    except ConfigurationError as exc:
        return ReplayResult(str(path), fault="; ".join(exc.faults))
    if reasons := case_format.not_played(case):
        return ReplayResult(str(path), not_played=reasons)
    plays = [*case_format.plays(case)]
    try:
        differences = asyncio.run(_differences(case, plays))
    except ConfigurationError as exc:
        return ReplayResult(str(path), len(plays), fault="; ".join(exc.faults))
    except Exception as exc:  # noqa: BLE001 - whatever a case does, the others are played
        return ReplayResult(str(path), len(plays), fault=f"{type(exc).__name__}: {exc}")
    return ReplayResult(str(path), len(plays), tuple(differences))


async def _differences(case: Json, plays: Sequence[case_format.Play]) -> list[tuple[str, Difference]]:
    servers, results = FakeServers(), PlayedResults()
    async with Mount(servers, results, over_sockets=needs_sockets(case)) as mount:
        player = Player(mount.start, servers, results)
        return [(play.name, one) for play in plays for one in await player.play(play)]


def _print(verdict: ReplayResult) -> None:
    style = style_of(sys.stdout)
    _, what, color = _OUTCOMES[verdict.outcome]
    print(f"{verdict.path}: {style(what, color)}")
    several = len({play for play, _ in verdict.differences}) > 1 or verdict.plays > 1
    shown = [f"{style(f'{play}: ', 'dim') if several else ''}{one}" for play, one in verdict.differences[:_MOST_SHOWN]]
    more = len(verdict.differences) - len(shown)
    fault = [verdict.fault] if verdict.fault else []
    for line in (*fault, *verdict.not_played, *shown, *([f"and {more} more differences"] if more > 0 else [])):
        print(f"  {line}")


def _as_json(verdict: ReplayResult) -> Json:
    return {
        "path": verdict.path,
        "outcome": verdict.outcome,
        "not_played_because": verdict.not_played,
        "fault": verdict.fault,
        "differences": [{"play": play, **to_builtins(one)} for play, one in verdict.differences],
    }
