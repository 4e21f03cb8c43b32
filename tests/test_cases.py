"""Every case of tests/cases/, played against the program as it is shipped, on each surface and in each mode that it names.

Run one kind, or one file, with the reason of each failure:

    .venv/bin/python -m pytest -q tests/test_cases.py -k 03-index --runxfail

A test's name is `FILE-SURFACE-MODE`; `relay` is a chat completion with no server tool in play, `responses-id` goes on by
`previous_response_id`, `fold` compares the whole answer with the stream. Cases that the program does not yet handle are in
PENDING: take a line out once its cases pass. tests/cases/README.md says how a case is written.
"""

import pytest

from tests.player import case
from tests.player.play import Player

PENDING: tuple[str, ...] = (  # beginnings of tests' names
    "02-arguments-broken-",
    "02-arguments-mixed-",
    "02-arguments-own-",
    "11-types-http-",
    "11-types-mcp-",
    "15-fold-bad-arguments-",
    "15-fold-newlines-search-call-",
    "15-fold-repeat-beside-call-",
)


def _every_play():
    for path in sorted(case.FOLDER.glob("*.json")):
        for play in case.plays(case.load(path)):
            name = f"{path.stem}-{play.name}"
            marks = [pytest.mark.xfail(strict=False)] if name.startswith(PENDING) else []
            yield pytest.param(play, id=name, marks=marks)


@pytest.fixture(scope="module")
def anyio_backend():
    return "asyncio"


@pytest.fixture(scope="module")
async def player():
    async with Player() as one:
        yield one


@pytest.mark.parametrize("play", list(_every_play()))
async def test_a_case_has_the_outcome_that_it_expects(player, play):
    await player.play(play)
