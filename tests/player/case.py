"""A case file, and the ways in which it is played: once for each surface and mode that it names.

The format is described by docs/case.schema.json; a file that does not follow it is not played.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema_rs
import orjson

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tests" / "cases"
SCHEMA = orjson.loads((ROOT / "docs" / "case.schema.json").read_bytes())
_VALIDATOR = jsonschema_rs.Draft202012Validator(SCHEMA)


@dataclass(frozen=True, slots=True)
class Play:
    """One way to play a case: on a surface of the format, whole, streamed, or both and compared (`fold`)."""

    case: dict[str, Any]
    surface: str
    mode: str

    @property
    def name(self) -> str:
        return f"{self.surface}-{self.mode}"


def load(path: Path) -> dict[str, Any]:
    """The case in a file. Raises `AssertionError` where it is not in the format."""
    case = orjson.loads(path.read_bytes())
    faults = [f"/{'/'.join(map(str, fault.instance_path))}: {fault.message}" for fault in _VALIDATOR.iter_errors(case)]
    assert not faults, f"{path.name} does not follow docs/case.schema.json: {faults[:3]}"
    return case


def plays(case: dict[str, Any]) -> Iterator[Play]:
    """All ways to play a case."""
    surfaces = case.get("surfaces") or [surface_of(case["exchanges"][0]["request"]["path"])]
    return (Play(case, surface, mode) for surface in surfaces for mode in case.get("modes") or ["as_asked"])


def surface_of(path: str) -> str:
    """The surface of a request that is written out."""
    return {"responses": "responses", "messages": "messages"}.get(path.rsplit("/", 1)[-1], "chat")
