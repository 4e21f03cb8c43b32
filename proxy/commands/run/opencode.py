"""opencode: a provider in its inline configuration, the variable `OPENCODE_CONFIG_CONTENT`, which beats its files."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import orjson

from proxy.commands.run.agent import (
    PROVIDER,
    Agent,
    Json,
    Launch,
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

_INLINE: Final = "OPENCODE_CONFIG_CONTENT"
_PREFIX: Final = f"{PROVIDER}/"
# Of a model that opencode has no data on, it takes no pictures; whether this one does, the proxy says.
_ABILITIES: Final[Json] = {"attachment": True, "modalities": {"input": ["text", "image"], "output": ["text"]}}


def _launch(setting: Setting) -> Launch:
    arguments = list(setting.arguments)
    inline = parse_json(setting.environ.get(_INLINE) or "{}")
    users: Json = {}
    for layer in (*map(read_json, _files(setting)), inline):
        users = _merged(users, layer)
    if argument := option_at(arguments, "-m", "--model"):
        at, before, named = argument
        main = _model(setting, named, "--model")
        arguments[at] = before + main
    else:
        main = _model(setting, text_in(users, "model"), "`model`")
    settings: Json = {
        "model": main,
        "small_model": _model(setting, text_in(users, "small_model"), "`small_model`", instead=main),
        "agent": {
            name: {"model": _model(setting, model, f"the model of the agent {name}", instead=main)}
            for name in object_in(users, "agent")
            if (model := text_in(object_in(object_in(users, "agent"), name), "model"))
        },
    }
    names = [settings["model"], settings["small_model"], *(agent["model"] for agent in settings["agent"].values())]
    listed = dict.fromkeys([*setting.models.listed, *(name.removeprefix(_PREFIX) for name in names)])
    known = object_in(object_in(object_in(users, "provider"), PROVIDER), "models")
    settings["provider"] = {
        PROVIDER: {
            "npm": "@ai-sdk/openai-compatible",
            "name": PROVIDER,
            "options": {"baseURL": f"{setting.url}/v1", "apiKey": setting.key},
            "models": {name: _abilities(object_in(known, name)) for name in listed},
        }
    }
    settings |= _providers(users)
    if setting.is_of_run:
        headers = {"Authorization": f"Bearer {setting.key}"}
        settings["mcp"] = {
            PROVIDER: {"type": "remote", "url": f"{setting.url}/mcp", "headers": headers, "oauth": False}
        }
    environ = {
        **setting.environ,
        **without_http_proxy(setting.environ),
        _INLINE: orjson.dumps(_merged(inline, settings)).decode(),
    }
    return Launch(arguments, environ)


def _model(setting: Setting, users: str | None, where: str, *, instead: str | None = None) -> str:
    """A model as opencode names it, `toolproxy/NAME`. The user may have left out the name of the provider."""
    name = users.removeprefix(_PREFIX) if users else None
    short = instead.removeprefix(_PREFIX) if instead else None
    return _PREFIX + setting.models.choose(name, where, instead=short)


def _abilities(users: Json) -> Json:
    """The abilities of a model of which the user says nothing."""
    return {key: value for key, value in _ABILITIES.items() if key not in users}


def _providers(users: Json) -> Json:
    """The lists of providers that the user permits or forbids, so that ours is permitted."""
    providers = {}
    if isinstance(enabled := users.get("enabled_providers"), list) and PROVIDER not in enabled:
        providers["enabled_providers"] = [*enabled, PROVIDER]
    if isinstance(disabled := users.get("disabled_providers"), list) and PROVIDER in disabled:
        providers["disabled_providers"] = [name for name in disabled if name != PROVIDER]
    return providers


def _files(setting: Setting) -> Iterator[Path]:
    """The configuration files, the one that is beaten by the others first (https://opencode.ai/docs/config)."""
    folder = folder_of("XDG_CONFIG_HOME", home_of(setting.environ) / ".config", setting.environ) / "opencode"
    for name in ("config.json", "opencode.json", "opencode.jsonc"):
        yield folder / name
    if named := setting.environ.get("OPENCODE_CONFIG"):
        yield setting.directory / named
    for within in ("", ".opencode"):
        for parent in reversed([setting.directory, *setting.directory.parents]):
            yield parent / within / "opencode.json"
            yield parent / within / "opencode.jsonc"


def _merged(below: Json, above: Json) -> Json:
    """Two configurations as opencode merges them: objects key by key, anything else replaced."""
    both = {
        key: _merged(below[key], value) if isinstance(value, dict) and isinstance(below.get(key), dict) else value
        for key, value in above.items()
    }
    return {**below, **both}


OPENCODE: Final = Agent("opencode", "opencode", "opencode-ai", _launch, declares_search=False)
