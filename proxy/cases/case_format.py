"""A case file, and the ways in which it is played: once for each surface and mode that it names.

The format is described by docs/case.schema.json; a file that does not follow it is not played.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import jsonschema_rs
import orjson

from proxy.wire.chat import Json
from proxy.wire.errors import ConfigurationError

_PACKAGE: Final = Path(__file__).parent.parent
_MOST_FAULTS: Final = 5
MOST_BYTES: Final = 32 * 1024 * 1024
"""The size of a case file; a recorded one has at most a quarter of it."""


@dataclass(frozen=True, slots=True)
class Play:
    """One way to play a case.

    Attributes:
        case: the case.
        surface: the surface of the format.
        mode: `whole`, `stream`, `fold` for both, compared, or `as_asked`.
    """

    case: Json
    surface: str
    mode: str

    @property
    def name(self) -> str:
        """The surface and the mode."""
        return f"{self.surface}-{self.mode}"


def load(path: Path) -> Json:
    """The case in a file.

    Raises:
        ConfigurationError: the file cannot be read or is no case, with the place of each fault.
    """
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ConfigurationError([f"{path}: is too large for a case"])
        case = orjson.loads(path.read_bytes())
    except OSError as exc:
        raise ConfigurationError([f"{path}: cannot be read: {exc.strerror}"]) from exc
    except orjson.JSONDecodeError as exc:
        raise ConfigurationError([f"{path}: is not JSON: {exc.msg} (line {exc.lineno})"]) from exc
    faults = [
        f"{path}: /{'/'.join(map(str, fault.instance_path))}: {fault.message[:500]}"
        for fault in _validator().iter_errors(case)
    ]
    if faults:
        raise ConfigurationError(faults[:_MOST_FAULTS])
    found: Json = case
    return found


def files_in(paths: list[Path]) -> list[Path]:
    """The case files among some paths, those below folders included. Raises `ConfigurationError` for none."""
    found: list[Path] = []
    for path in paths:
        below = sorted(path.rglob("*.json")) if path.is_dir() else [path]
        if not below:
            raise ConfigurationError([f"{path}: there is no case in this folder"])
        found += below
    return found


def plays(case: Json) -> Iterator[Play]:
    """All ways to play a case."""
    first = case["exchanges"][0]
    surfaces = case.get("surfaces") or [surface_of(first["request"]["path"]) if "request" in first else "chat"]
    return (Play(case, surface, mode) for surface in surfaces for mode in case.get("modes") or ["as_asked"])


def not_played(case: Json) -> tuple[str, ...]:
    """The reasons for which no replay can bring about what a recorded case met."""
    left = any(event["event"] == "left" for exchange in case["exchanges"] for event in exchange.get("events", ()))
    old = ["the client left before its answer was complete"] if left else []
    missing = [f"{part} was cut" for part in case.get("cut", ())]
    return (*case.get("not_played", ()), *old, *missing)


def surface_of(path: str) -> str:
    """The surface of a request that is written out; `other` for what is passed through."""
    end = path.partition("?")[0].removeprefix("/v1").strip("/")
    return {"chat/completions": "chat", "responses": "responses", "messages": "messages"}.get(end, "other")


@cache
def schema() -> Json:
    """The JSON Schema of cases: in the package, where a wheel has a copy, or in the documents of a checkout."""
    name = "case.schema.json"
    path = next(path for path in (_PACKAGE / name, _PACKAGE.parent / "docs" / name) if path.exists())
    found: Json = orjson.loads(path.read_bytes())
    return found


@cache
def _validator() -> jsonschema_rs.Draft202012Validator:
    return jsonschema_rs.Draft202012Validator(schema())
