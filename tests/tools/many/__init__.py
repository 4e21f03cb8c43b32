"""260 tools, of four MCP servers and of HTTP APIs, and 200 tasks for them."""

from pathlib import Path

import orjson

from proxy.tools.tool import Tool

_FOLDER = Path(__file__).parent


def tool_of(name: str, description: str, parameters: dict[str, str], group: str | None) -> Tool:
    async def run(arguments):
        return f"{name} ran with {orjson.dumps(arguments).decode()}"

    properties = {one: {"type": "string", "description": text} for one, text in parameters.items()}
    return Tool(
        name=name,
        description=description,
        parameters={"type": "object", "properties": properties, "required": list(parameters)[:1]},
        run=run,
        group=group,
    )


def tools() -> dict[str, list[Tool]]:
    """The tools by server; those of `http` are of no server. A server's tools have its name before theirs."""
    found: dict[str, list[Tool]] = {}
    server = ""
    for line in _lines("tools.txt"):
        if line.startswith("["):
            server = line.strip("[]")
            found[server] = []
            continue
        name, description, parameters = [part.strip() for part in line.split("|")]
        listed = dict(one.split(": ", 1) for one in parameters.split("; ") if one)
        group = None if server == "http" else server
        found[server].append(tool_of(f"{group}_{name}" if group else name, description, listed, group))
    return found


def tasks() -> dict[str, list[tuple[str, str]]]:
    """Tasks, each with the name of the right tool without its server, by whether they share a stem with its texts."""
    found: dict[str, list[tuple[str, str]]] = {}
    for line in _lines("tasks.txt"):
        if line.startswith("["):
            found[line.strip("[]")] = current = []
            continue
        task, name = line.split(" | ")
        current.append((task, name))
    return found


def _lines(name: str) -> list[str]:
    return [line for line in (_FOLDER / name).read_text().splitlines() if line and not line.startswith("#")]
