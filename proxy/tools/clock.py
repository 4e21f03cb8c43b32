"""`type: clock`: what time it is. Models do not know, and guess."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import orjson

from proxy.loop.chat import Json
from proxy.loop.errors import ToolError
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
        # "2026-01-01T00:00:00+00:00", written in a quarter of the time that `isoformat` takes
        moment = orjson.dumps(now, option=orjson.OPT_OMIT_MICROSECONDS).decode()
        day, time, offset = moment[1:11], moment[12:20], moment[20:-1].replace(":", "")
        return f"{_DAYS[now.weekday()]}, {day} {time} {zone_name} (UTC{offset})"

    return Tool(name=name, description=DESCRIPTION, parameters=PARAMETERS, run=run)
