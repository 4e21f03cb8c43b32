"""The text that `toolproxy serve` prints on a terminal at start: what is usable, and three lines to paste."""

import json
from collections.abc import Iterable, Iterator
from itertools import zip_longest

from proxy.config.loaded import Loaded
from proxy.kit.terminal import Style, wrapped

_LABEL, _WIDTH = 15, 63  # columns of the labels, and beside them: with the margin, 80
_LINES = 3  # of one list
_QUESTION = "What is new in Python? Search the web."


def banner(url: str, loaded: Loaded, style: Style) -> str:
    """The lines below the address, with a `url` without `/v1`."""
    lines = [
        f"  {style(f'{label:<{_LABEL}}', 'dim')}{line}"
        for row, text in _rows(url, loaded)
        for label, line in zip_longest([row], text, fillvalue="")
    ]
    return "\n".join(["", *(line.rstrip() for line in lines), "", ""])


def _rows(url: str, loaded: Loaded) -> Iterator[tuple[str, list[str]]]:
    """The label of each row, and its lines. A disabled entry whose variables are not set is no fault."""
    config = loaded.config
    models = [name for name, model in config.models.items() if model.upstream in config.upstreams]
    yield "models", _listed(models)
    yield "tools", _listed(_offered(loaded))
    yield "clients", wrapped(loaded.callers, _WIDTH, _LINES)
    if unset := [f"{one.name} ({', '.join(one.variables)})" for one in loaded.disabled.values() if one.variables]:
        yield "without a key", _listed(unset)
    if not config.server.allow_anonymous and not loaded.needs_key:
        yield "pages", [f"{url}/chat, {url}/debug"]
    yield "", [""]
    key = "YOUR_KEY" if loaded.needs_key else "unused"
    model = next((name for name in models if "*" not in name), "MODEL")
    yield "OpenAI SDKs", _command(f"export OPENAI_BASE_URL={url}/v1", f"OPENAI_API_KEY={key}")
    agent = f"ANTHROPIC_AUTH_TOKEN={key} ANTHROPIC_MODEL={model} claude"
    yield "Claude Code", _command(f"ANTHROPIC_BASE_URL={url}", agent)
    with_key = [f"-H 'Authorization: Bearer {key}'"] if loaded.needs_key else []
    body = f'{{"model": {json.dumps(model)},\n "messages": [{{"role": "user",\n  "content": "{_QUESTION}"}}]}}'
    # Not `--json`, which curl has since 7.82: Debian 11 and Ubuntu 22.04 have an older one.
    options = [*with_key, "-H 'Content-Type: application/json'", f"-d '{body}'"]
    yield "curl", _command(f"curl {url}/v1/chat/completions", *options)


def _listed(names: Iterable[str]) -> list[str]:
    unbroken = ", ".join(name.replace(" ", "\xa0") for name in names)
    return [line.replace("\xa0", " ") for line in wrapped(unbroken or "none", _WIDTH, _LINES)]


def _command(*parts: str) -> list[str]:
    """A command for a shell, in as many lines as its parts have."""
    return " \\\n  ".join(parts).splitlines()


def _offered(loaded: Loaded) -> Iterator[str]:
    """The tools that a model may be offered, in the order of the file. Tools without a key come last."""
    yield from (name for name, tool in loaded.config.tools.items() if tool.offer != "never")
    for name, tool in loaded.answered_by_fallback.items():
        if tool.offer != "never":
            yield f"{name} (by {' or '.join(tool.fallbacks)})"
