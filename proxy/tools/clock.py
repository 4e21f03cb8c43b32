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
        return f"{now:%A, %Y-%m-%d %H:%M:%S} {zone_name} (UTC{now:%z})"

    return Tool(name=name, description=DESCRIPTION, parameters=PARAMETERS, run=run)
