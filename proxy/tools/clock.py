"""`type: clock`: what time it is. Models do not know, and guess."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from proxy.core.chat import Json
from proxy.core.errors import ToolError
from proxy.ports import Clock
from proxy.tools.tool import Tool

DESCRIPTION = "The current date, time and day of the week."
PARAMETERS: Json = {
    "type": "object",
    "properties": {
        "timezone": {
            "type": "string",
            "description": "IANA name such as Europe/Berlin or America/Vancouver; UTC if left out",
        }
    },
}

_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_TIME = len("2026-01-01 00:00:00")


def clock_tool(name: str, clock: Clock) -> Tool:
    """A clock by that name."""

    async def run(arguments: Json) -> str:
        zone_name = arguments.get("timezone") or "UTC"
        try:
            zone = UTC if zone_name.upper() == "UTC" else ZoneInfo(zone_name)
        except (ZoneInfoNotFoundError, ValueError, OSError) as exc:
            told = f"There is no time zone named {zone_name!r}; use an IANA name such as Europe/Berlin."
            raise ToolError(told) from exc
        now = datetime.fromtimestamp(clock.time(), zone)
        moment = now.isoformat(" ", "seconds")
        time, offset = moment[:_TIME], moment[_TIME:].replace(":", "")
        return f"{_DAYS[now.weekday()]}, {time} {zone_name} (UTC{offset})"

    return Tool(name=name, description=DESCRIPTION, parameters=PARAMETERS, run=run)
