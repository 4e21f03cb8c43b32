"""The configuration that plays a case: only data is the case's own; every address, key and command is the player's."""

import sys
from collections.abc import Mapping
from pathlib import Path
from secrets import token_urlsafe
from typing import Any, Final

import orjson
from msgspec.structs import replace

from proxy.app.configuration import parse
from proxy.cases.played_tools import ADAPTED
from proxy.config.loaded import Loaded
from proxy.config.model import Config
from proxy.wire.chat import Json
from proxy.wire.errors import ConfigurationError

CLIENT_KEY: Final = f"tp_{token_urlsafe(32)}"
"""The key with which the player calls the proxy."""

_DEFAULTS: Final[Mapping[str, Any]] = {
    "upstreams": {"up": {}},
    "models": {"m": {"upstream": "up", "model": "up-m"}},
    "tools": {"web_search": {"type": "serper"}, "current_time": {"type": "clock", "offer": "on_request"}},
    "offer": {"mode": "always"},
}
_SERVER: Final = frozenset({"keepalive_seconds", "max_body_bytes"})
_UPSTREAM: Final = frozenset({"profile", "retries", "timeouts", "breaker", "cache_marks"})
_CLIENT: Final = frozenset({"models", "limits", "tool_events"})
_SHOWN_TO_MODELS: Final = frozenset({
    "description", "parameters", "method", "url", "query", "body", "result", "offer", "aliases", "prefix", "timeout",
    "retries", "max_calls", "cache_seconds", "fallback", "eager", "price",
})  # fmt: skip
_PUBLIC: Final = "https://api.z.ai/"  # where an upstream's address decides which advice it gives; it is never called
_MOST_KEYS: Final = 100
_UNBOUNDED: Final = 10**15
_NAME: Final = "replay"
_SCRIPT: Final = Path(__file__).with_name("mcp_server.py")


def needs_sockets(case: Json) -> bool:
    """Whether a case has MCP servers that the proxy's own client asks: only sockets and pipes reach them."""
    tools = case.get("config", {}).get("tools", {}).values()
    return any(tool["type"] == "mcp" and not tool.get("recorded") for tool in tools)


def settings_of(config: Json, servers: str, proxy: str, *, is_closed: bool) -> Loaded:
    """The configuration for a case's `config`.

    Args:
        config: of the case.
        servers: the URL of the fake servers.
        proxy: the name of the proxy for the fake servers.
        is_closed: whether every request ends in the fake servers, whatever its address.

    Raises:
        ConfigurationError: the case's configuration is not valid, or wants to be filled in from the environment.
    """
    merged = {**_DEFAULTS, **config}
    upstreams = merged["upstreams"].items()
    of_client = any(one.get("from_client") for _, one in upstreams)
    settings = {
        "server": {name: value for name, value in merged.get("server", {}).items() if name in _SERVER},
        "upstreams": {name: _upstream(name, one, servers, is_closed=is_closed) for name, one in upstreams},
        "models": {
            name: {key: value for key, value in model.items() if key != "tools"}
            for name, model in merged["models"].items()
        },
        "tools": {
            name: _tool(name, tool, servers, proxy)
            for name, tool in merged["tools"].items()
            if tool["type"] in ADAPTED and not tool.get("recorded")
        },
        "offer": merged["offer"],
        "limits": merged.get("limits", {}),
        "telemetry": {"log_level": "error", "metrics": False},
        **({} if of_client else {"clients": [_client(merged)]}),
    }
    text = orjson.dumps(settings).decode()
    if "${" in text:
        raise ConfigurationError(["config: nothing of a case is filled in from the environment; it may have no `${`"])
    loaded = parse(text, {}, name="config of the case")
    sources = {f"upstreams.{name}": (told["key_source"],) for name, told in upstreams if "key_source" in told}
    needed = {name for tool in merged["tools"].values() for name in (tool.get("recorded") or {}).get("needs", ())}
    return replace(
        loaded,
        config=_narrowed(loaded.config, merged),
        refers_to=frozenset(needed),
        key_variables=sources,
        is_for_one_run=bool(sources),
    )


def _narrowed(config: Config, told: Json) -> Config:
    """The configuration with the tools that client and models may use; a file could not name those of the player."""
    tools = told.get("client", {}).get("tools")
    clients = tuple(replace(one, tools=None if tools is None else tuple(tools)) for one in config.clients)
    models = {
        name: replace(model, tools=tuple(given)) if (given := told["models"][name].get("tools")) is not None else model
        for name, model in config.models.items()
    }
    return replace(config, clients=clients, models=models)


def _client(config: Json) -> Json:
    """The client whose requests are played. It may use what the recorded one might."""
    told = config.get("client", {})
    client = {name: value for name, value in told.items() if name in _CLIENT}
    left = told.get("tool_calls_left")
    if config.get("counts_use") or left is not None:
        calls = {} if left is None else {"tool_calls": max(1, left)}
        client["budget"] = {"per": "month", "tokens": _UNBOUNDED, **calls}
    return {"name": told.get("name", _NAME), "key": CLIENT_KEY, **client}


def _upstream(name: str, told: Json, servers: str, *, is_closed: bool) -> Json:
    kept = {key: value for key, value in told.items() if key in _UPSTREAM}
    is_public = is_closed and str(told.get("base_url")).startswith(_PUBLIC)
    address = told["base_url"] if is_public else f"{servers}/{name}/v1"
    key: Any = "from_client" if told.get("from_client") else "played-upstream"
    if "keys" in told:
        key = [f"played-upstream-{number}" for number in range(1, min(told["keys"], _MOST_KEYS) + 1)]
    return {"retries": 0, "breaker": {"failures": 1_000_000}, **kept, "base_url": address, "api_key": key}


def _tool(name: str, tool: Json, servers: str, proxy: str) -> Json:
    """A tool that the proxy's own code plays, served by the fake servers."""
    kept = {key: value for key, value in tool.items() if key in _SHOWN_TO_MODELS}
    match tool["type"]:
        case "serper":
            return {"type": "serper", "cache_seconds": 0, **kept, "api_key": "played-search", "base_url": servers}
        case "http":
            return {"type": "http", **kept, "url": f"{servers}/tool/{name}/{tool.get('url', '')}"}
        case "mcp":
            own = {key: value for key, value in kept.items() if key not in ("url", "description", "parameters")}
            if "ends" in tool:
                return {"type": "mcp", **own, "command": [sys.executable, str(_SCRIPT), str(tool["ends"])]}
            return {"type": "mcp", **own, "url": f"{servers}/mcp/{proxy}/{name}"}
    return {"type": tool["type"], **kept}
