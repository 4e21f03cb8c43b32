"""What `toolproxy serve` prints on a terminal once it serves: what is usable, and three lines to paste."""

import json
from collections.abc import Iterator

from proxy.config.loaded import Loaded
from proxy.kit.terminal import Style, shortened

_LABEL, _WIDTH = 15, 103  # columns of the labels, and beside them
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
    yield "clients", shortened(loaded.callers, _WIDTH)
    # Entries that are disabled because their variables are not set, which is no fault.
    if unset := [f"{one.name} ({', '.join(one.variables)})" for one in loaded.disabled.values() if one.variables]:
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


def _offered(loaded: Loaded) -> Iterator[str]:
    """The tools that a model may be shown, in the order of the file; those without a key of their own come last."""
    yield from (name for name, tool in loaded.config.tools.items() if tool.offer != "never")
    for name, tool in loaded.answered_by_fallback.items():
        if tool.offer != "never":
            yield f"{name} (by {' or '.join(tool.fallbacks)})"
