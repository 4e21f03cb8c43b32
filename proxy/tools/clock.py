"""`type: clock`: what time it is. Models do not know, and guess."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from proxy.core.chat import Json, ToolSpec
from proxy.core.errors import ToolError
from proxy.ports import Clock
from proxy.tools.registry import Tool

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


def clock_tool(spec: ToolSpec, clock: Clock, *, timeout: float | None) -> Tool:
    """A clock under the name of `spec`."""

    async def run(arguments: Json) -> str:
        name = arguments.get("timezone") or "UTC"
        try:
            zone = UTC if name.upper() == "UTC" else ZoneInfo(name)
        except (ZoneInfoNotFoundError, ValueError, OSError) as exc:
            raise ToolError(f"There is no time zone named {name!r}; use an IANA name such as Europe/Berlin.") from exc
        now = datetime.fromtimestamp(clock.time(), zone)
        return f"{now:%A, %Y-%m-%d %H:%M:%S} {name} (UTC{now:%z})"

    return Tool(spec=spec, run=run, timeout=timeout)
