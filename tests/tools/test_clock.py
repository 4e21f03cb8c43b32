import pytest

from proxy.loop.results import ToolError
from proxy.tools.kinds.clock import ClockConfig, clock_tool
from proxy.tools.tool_type import Resources
from tests.fakes import FakeClock


def told_by_clock(arguments):
    return clock_tool("current_time", ClockConfig(), Resources(client=None, clock=FakeClock())).run(arguments)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({}, "Tuesday, 2023-11-14 22:13:20 UTC (UTC+0000)"),
        ({"timezone": "utc"}, "Tuesday, 2023-11-14 22:13:20 utc (UTC+0000)"),
        ({"timezone": "America/Vancouver"}, "Tuesday, 2023-11-14 14:13:20 America/Vancouver (UTC-0800)"),
    ],
)
async def test_the_time_is_told_where_it_was_asked_for(arguments, told):
    assert await told_by_clock(arguments) == told


@pytest.mark.parametrize("name", ["Mars/Olympus", "../../etc/passwd", "America", "\x00"])
async def test_a_zone_that_does_not_exist_is_told(name):
    with pytest.raises(ToolError, match="no time zone"):
        await told_by_clock({"timezone": name})
