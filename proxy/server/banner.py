"""The text that `toolproxy serve` prints on a terminal at start: what is usable, and three lines to paste."""

import json
from collections.abc import Iterator

from proxy.config.loaded import Disabled, Loaded
from proxy.config.model import ClientConfig
from proxy.kit.terminal import Style, shortened
from proxy.tools.catalog import answered_by_fallback

_LABEL, _WIDTH = 15, 103  # columns of the labels, and beside them
_ANYONE = "none configured: anyone {} may call (set TOOLPROXY_KEY)"
_NOBODY = "none in clients_file: nobody may call (toolproxy key add NAME)"
_QUESTION = "What is new in Python? Search the web."


def banner(url: str, loaded: Loaded, style: Style) -> str:
    """The lines below the address.

    Args:
        url: where the proxy serves, without `/v1`.
        loaded: the configuration that it serves.
        style: of the terminal.
    """
    lines = [f"  {style(f'{label:<{_LABEL}}', 'dim')}{text}" if label else "" for label, text in _rows(url, loaded)]
    return "\n".join(["", *lines, "", ""])


def _rows(url: str, loaded: Loaded) -> Iterator[tuple[str, str]]:
    config = loaded.config
    models = [name for name, model in config.models.items() if model.upstream in config.upstreams]
    yield "models", shortened(", ".join(models) or "none", _WIDTH)
    yield "tools", shortened(", ".join(_offered(loaded)) or "none", _WIDTH)
    anyone = _ANYONE.format("who reaches this address" if config.server.allow_anonymous else "on this machine")
    nobody = _NOBODY if loaded.needs_key else anyone
    yield "clients", shortened(", ".join(client.name for client in config.clients) or nobody, _WIDTH)
    if unset := _without_key(loaded):
        yield "without a key", shortened(", ".join(unset), _WIDTH)
    if not config.server.allow_anonymous and not loaded.needs_key:
        yield "pages", f"{url}/chat, {url}/debug"
    yield "", ""
    key = "YOUR_KEY" if loaded.needs_key else "unused"
    model = next((name for name in models if "*" not in name), "MODEL")
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": _QUESTION}]})
    yield "OpenAI SDKs", f"export OPENAI_BASE_URL={url}/v1 OPENAI_API_KEY={key}"
    yield "Claude Code", f"ANTHROPIC_BASE_URL={url} ANTHROPIC_AUTH_TOKEN={key} ANTHROPIC_MODEL={model} claude"
    yield "curl", f"curl {url}/v1/chat/completions -H 'Authorization: Bearer {key}' --json '{body}'"


def _without_key(loaded: Loaded) -> list[str]:
    """The entries that are disabled because their variables are not set, as `name (VARIABLE)`; that is no fault."""
    unset = {path: entry for path, entry in loaded.disabled.items() if entry.variables}
    return [f"{_name(path, entry)} ({', '.join(entry.variables)})" for path, entry in unset.items()]


def _name(path: str, entry: Disabled) -> str:
    """The name of an entry: that of a client is not in its path, such as `clients[0]`."""
    if isinstance(entry.entry, ClientConfig):
        return f"client {entry.entry.name}"
    return path.partition(".")[2] or path


def _offered(loaded: Loaded) -> Iterator[str]:
    """The tools that a model may be offered, in the order of the file. Tools without a key come last."""
    yield from (name for name, tool in loaded.config.tools.items() if tool.offer != "never")
    for name, tool in answered_by_fallback(loaded):
        if tool.offer != "never":
            yield f"{name} (by {' or '.join(tool.fallbacks)})"
