"""`type: clock`: the current time, at which models would otherwise guess."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from proxy.config.model import ToolConfig
from proxy.loop.results import ToolError
from proxy.tools.tool import Tool
from proxy.tools.tool_type import Resources, ToolType
from proxy.wire.chat import Json

_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_TIME_ZONE = "IANA name such as Europe/Berlin or America/Vancouver; UTC if left out"


class ClockConfig(ToolConfig, tag="clock", frozen=True, kw_only=True):
    """`type: clock`: the current date and time."""


def clock_tool(name: str, _: ClockConfig, resources: Resources) -> Tool:
    """The tool of an entry."""

    async def run(arguments: Json) -> str:
        zone_name = arguments.get("timezone") or "UTC"
        try:
            zone = UTC if zone_name.upper() == "UTC" else ZoneInfo(zone_name)
        except (ZoneInfoNotFoundError, ValueError, OSError) as exc:
            message = f"There is no time zone named {zone_name!r}; use an IANA name such as Europe/Berlin."
            raise ToolError(message) from exc
        now = datetime.fromtimestamp(resources.clock.time(), zone)
        written = now.isoformat(" ", "seconds")  # 2026-01-31 09:30:00-08:00
        moment, offset = written[:19], written[19:].replace(":", "")
        return f"{_DAYS[now.weekday()]}, {moment} {zone_name} (UTC{offset})"

    return Tool(
        name=name,
        description="The current date, time and day of the week.",
        parameters={"type": "object", "properties": {"timezone": {"type": "string", "description": _TIME_ZONE}}},
        run=run,
    )


KIND = ToolType(config=ClockConfig, make=clock_tool)
