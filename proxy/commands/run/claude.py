"""Claude Code: variables of the process, and the same ones by `--settings`, which beat those of its settings files."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import orjson

from proxy.commands.run.agent import (
    Agent,
    Json,
    Launch,
    ModelChoice,
    Setting,
    folder_of,
    home_of,
    object_in,
    option_at,
    parse_json,
    read_json,
    text_in,
    without_http_proxy,
)

_MODEL: Final = "ANTHROPIC_MODEL"
_HAIKU: Final = "ANTHROPIC_DEFAULT_HAIKU_MODEL"
_SMALL: Final = "ANTHROPIC_SMALL_FAST_MODEL"  # the older name of the model for titles and summaries; it beats `_HAIKU`
_ALIASES: Final = {
    "opus": "ANTHROPIC_DEFAULT_OPUS_MODEL",
    "sonnet": "ANTHROPIC_DEFAULT_SONNET_MODEL",
    "haiku": _HAIKU,
    "fable": "ANTHROPIC_DEFAULT_FABLE_MODEL",
}
_EVERY_ALIAS: Final = (*_ALIASES, "opusplan", "best", "default", "inherit")  # the last four lead to the others
_SUBAGENTS: Final = "CLAUDE_CODE_SUBAGENT_MODEL"
_LARGE_CONTEXT: Final = "[1m]"  # not part of the name that is sent
_TOKEN: Final = "ANTHROPIC_AUTH_TOKEN"  # noqa: S105 - the name of a variable
_HELPER: Final = "apiKeyHelper"
_SEARCH: Final = "WebSearch"  # its tool, which sends a request that declares `web_search`, and is shown
# Other keys, and the switches to other clouds, whose addresses and keys would be used in the place of ours.
_ELSEWHERE: Final = (
    "ANTHROPIC_API_KEY",
    "CLAUDE_CODE_USE_ANTHROPIC_AWS",
    "CLAUDE_CODE_USE_BEDROCK",
    "CLAUDE_CODE_USE_FOUNDRY",
    "CLAUDE_CODE_USE_GATEWAY",
    "CLAUDE_CODE_USE_MANTLE",
    "CLAUDE_CODE_USE_VERTEX",
)


def _launch(setting: Setting) -> Launch:
    arguments, given = _without_settings(setting)
    layers = [given, *map(read_json, _files(setting))]
    files = _variables(layers)
    users = {**setting.environ, **files}
    variables = {
        "ANTHROPIC_BASE_URL": setting.url,
        **_models(setting, users, arguments, layers),
        **dict.fromkeys(_ELSEWHERE, ""),
    }
    private = {_TOKEN: setting.key, **without_http_proxy(setting.environ)}
    environ = {name: value for name, value in setting.environ.items() if name not in _ELSEWHERE}
    environ |= {name: value for name, value in variables.items() if value} | private
    # Everybody on this machine may read a command line. So the process's own variables have the key and the user's
    # proxies; where a settings file would beat one of them, or the user's own `--settings` may hold secrets, a private
    # file has it all.
    is_beaten = not private.keys().isdisjoint(files)
    beating = {_TOKEN: setting.key, **without_http_proxy(users)} if is_beaten else {}
    merged = {**given, "env": {**object_in(given, "env"), **variables, **beating}}
    if any(text_in(layer, _HELPER) for layer in layers):
        merged[_HELPER] = ""  # a command whose output Claude Code would send as a key beside ours
    # Where a search is run by the proxy, nobody is asked whether it may; a rule of the user's stays.
    if setting.is_of_run:
        permissions = object_in(given, "permissions")
        allowed = permissions.get("allow")
        rules = [*(allowed if isinstance(allowed, list) else []), _SEARCH]
        merged["permissions"] = {**permissions, "allow": rules}
    text = orjson.dumps(merged)
    settings = str(setting.keep_private("claude", text)) if is_beaten or given else text.decode()
    return Launch(["--settings", settings, *arguments], environ)


def _files(setting: Setting) -> Iterator[Path]:
    """The settings files, the one that beats the others first (https://code.claude.com/docs/en/settings)."""
    yield setting.directory / ".claude" / "settings.local.json"
    yield setting.directory / ".claude" / "settings.json"
    yield folder_of("CLAUDE_CONFIG_DIR", home_of(setting.environ) / ".claude", setting.environ) / "settings.json"


def _without_settings(setting: Setting) -> tuple[list[str], Json]:
    """The user's arguments without `--settings`, and what that says: a second one would replace it, not add to it."""
    arguments = list(setting.arguments)
    given: Json = {}
    while found := option_at(arguments, "--settings"):
        at, before, value = found
        given = given or (parse_json(value) if value.lstrip().startswith("{") else read_json(setting.directory / value))
        del arguments[at if before else at - 1 : at + 1]
    return arguments, given


def _variables(layers: list[Json]) -> dict[str, str]:
    """The variables that settings set, the first layer's before all others."""
    found: dict[str, str] = {}
    for layer in reversed(layers):
        variables = object_in(layer, "env")
        found |= {name: value for name in variables if (value := text_in(variables, name)) is not None}
    return found


def _models(setting: Setting, users: Mapping[str, str], arguments: list[str], layers: list[Json]) -> dict[str, str]:
    """The model for each role. An argument that names an unknown model is changed."""
    models = setting.models
    of_files = next(filter(None, (text_in(layer, "model") for layer in layers)), None)
    if found := option_at(arguments, "--model"):
        at, before, named = found
        main = _or_alias(models, named, "--model")
        arguments[at] = before + main
    elif users.get(_MODEL):
        main = _or_alias(models, users[_MODEL], _MODEL)
    else:
        main = _or_alias(models, of_files, "`model` of its settings")
    behind = None if main in _EVERY_ALIAS else main
    roles = {name: models.choose(users.get(name), name, instead=behind) for name in _ALIASES.values()}
    small = models.choose(users.get(_SMALL), _SMALL, instead=roles[_HAIKU])
    subagents = _or_alias(models, users.get(_SUBAGENTS), _SUBAGENTS, instead=roles.get(_ALIASES.get(main, ""), behind))
    return {_MODEL: main, **roles, _SMALL: small, _SUBAGENTS: subagents}


def _or_alias(models: ModelChoice, users: str | None, where: str, *, instead: str | None = None) -> str:
    """A model that may be an alias, which stays: it leads to a role."""
    if users and not models.is_demanded:
        name = users.removesuffix(_LARGE_CONTEXT)
        if name in _EVERY_ALIAS or models.knows(name):
            return users
    return models.choose(users, where, instead=instead)


CLAUDE: Final = Agent("claude", "Claude Code", "@anthropic-ai/claude-code", _launch)
