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
    """One way to play a case.

    `surface` is chat, relay, responses or messages; `chained` continues on Responses by `previous_response_id`, not by
    sending all items again. `mode` is whole, stream, or fold: whole and then streamed, and the two compared.
    """

    case: dict[str, Any]
    surface: str
    mode: str
    chained: bool = False

    @property
    def name(self) -> str:
        return f"{self.surface}{'-id' if self.chained else ''}-{self.mode}"


def load(path: Path) -> dict[str, Any]:
    """The case in a file. Raises `AssertionError` where it is not in the format."""
    case = orjson.loads(path.read_bytes())
    faults = [f"/{'/'.join(map(str, fault.instance_path))}: {fault.message}" for fault in _VALIDATOR.iter_errors(case)]
    assert not faults, f"{path.name} does not follow docs/case.schema.json: {faults[:3]}"
    return case


def plays(case: dict[str, Any]) -> Iterator[Play]:
    """All ways to play a case."""
    continues = any({"results", "text"} & exchange.get("ask", {}).keys() for exchange in case["exchanges"][1:])
    for surface in case.get("surfaces") or [surface_of(case["exchanges"][0]["request"]["path"])]:
        for mode in case.get("modes") or ["as_asked"]:
            yield Play(case, surface, mode)
            if continues and surface == "responses":
                yield Play(case, surface, mode, chained=True)


def surface_of(path: str) -> str:
    """The surface of a request that is written out."""
    return {"responses": "responses", "messages": "messages"}.get(path.rsplit("/", 1)[-1], "chat")
