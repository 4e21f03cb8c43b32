"""Every case of tests/cases/, played against the program as it is shipped, on each surface and in each mode that it names.

Run one kind, or one file, with the reason of each failure:

    .venv/bin/python -m pytest -q tests/test_cases.py -k 03-index --runxfail

A test's name is `FILE-SURFACE-MODE`; `relay` is a chat completion with no server tool in play, `responses-id` goes on by
`previous_response_id`, `fold` compares the whole answer with the stream. tests/cases/README.md says how a case is written.
"""

from pathlib import Path

import orjson
import pytest

from proxy.cases import case_format as case
from proxy.cases import replay
from proxy.cases.expectations import WORDS
from proxy.cases.settings import needs_sockets
from proxy.cases.turns import DONE
from proxy.wire.errors import ConfigurationError
from tests.player.sdks import SdkPlayer

FOLDER = Path(__file__).parent / "cases"
CASES = {path.stem: case.load(path) for path in sorted(FOLDER.glob("*.json"))}


def _every_play():
    for name, one in CASES.items():
        if "recorded" not in one:  # those are played without sockets
            for play in case.plays(one):
                yield pytest.param(play, id=f"{name}-{play.name}")


@pytest.fixture(scope="module")
def anyio_backend():
    return "asyncio"


@pytest.fixture(scope="module")
async def player():
    async with SdkPlayer() as one:
        yield one


@pytest.mark.parametrize("play", list(_every_play()))
async def test_a_case_has_the_outcome_that_it_expects(player, play):
    await player.play(play)


def test_the_same_cases_play_without_sockets():
    found = [replay.played(FOLDER / f"{name}.json") for name, one in CASES.items() if not needs_sockets(one)]
    assert [(one.path, *map(str, one.differences), one.fault) for one in found if one.outcome != "same"] == []


async def test_a_case_whose_expectation_does_not_hold_fails_and_names_its_exchange(player):
    one = case.load(FOLDER / "06-name-glm.json")
    one["exchanges"][1]["expect"] = {"searches": ["another"]}
    with pytest.raises(
        AssertionError, match=r"^exchange 2, expect \(close key\), searches: .*another.* then, .*searches: "
    ):
        await player.play(next(case.plays(one)))


async def test_a_recorded_answer_is_compared_with_the_answer_of_today(player):
    pieces = [
        {"delta": {"role": "assistant", "content": "It"}},
        {"delta": {"content": " rains."}, "finish_reason": "stop"},
        DONE,
    ]
    request = {
        "path": "/v1/chat/completions",
        "body": {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "stream": True},
    }
    exchange = {"request": request, "upstream": [{"pieces": pieces}], "got": {"status": 200, "pieces": pieces}}
    one = {"title": "A recorded case", "why": "It was reported.", "exchanges": [exchange]}
    await player.play(next(case.plays(one)))
    exchange["upstream"] = [{"text": "It snows."}]
    with pytest.raises(AssertionError, match="It snows"):
        await player.play(next(case.plays(one)))


def test_a_file_that_is_no_case_is_refused_with_the_place_of_the_fault(tmp_path):
    path = tmp_path / "case.json"
    path.write_text('{"title": "t", "why": "w", "exchanges": [{"expect": {"txt": "x"}}]}')
    with pytest.raises(ConfigurationError, match="/exchanges/0/expect: Additional properties"):
        case.load(path)


@pytest.mark.parametrize(
    "tool",
    [
        {"type": "mcp", "command": ["x"]},
        {"type": "python", "function": "os:system"},
        {"type": "http", "headers": {"x": "${HOME}"}},
    ],
)
def test_a_case_brings_no_command_no_function_and_no_headers(tmp_path, tool):
    path = tmp_path / "case.json"
    path.write_bytes(orjson.dumps({"title": "t", "why": "w", "config": {"tools": {"x": tool}}, "exchanges": [{}]}))
    with pytest.raises(ConfigurationError, match="/config/tools/x: Additional properties"):
        case.load(path)


def test_the_schema_describes_every_word_of_expect():
    assert case.schema()["$defs"]["expect"]["properties"].keys() - {"on"} == WORDS
