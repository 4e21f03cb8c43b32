"""Codex: a provider of its own on the command line, which beats its files. That one also is spared a WebSocket."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

import orjson

from proxy.commands.run.agent import (
    KEY_VARIABLE,
    PROVIDER,
    Agent,
    Launch,
    Setting,
    folder_of,
    home_of,
    option_at,
    read_text,
    text_in,
    without_http_proxy,
)

_MODEL_OPTIONS: Final = ("-m", "--model")
_CONFIG_OPTIONS: Final = ("-c", "--config")
_PROFILE_OPTIONS: Final = ("-p", "--profile")
# Codex repeats a request after any error, a refused key among them: five times by default, which takes seven seconds.
_RETRIES: Final = 3
_Toml: TypeAlias = str | int | Mapping[str, str | int]


def _launch(setting: Setting) -> Launch:
    arguments = list(setting.arguments)
    files = _files(setting)
    provider: dict[str, str | int] = {
        "name": PROVIDER,
        "base_url": f"{setting.url}/v1",
        "wire_api": "responses",
        "env_key": KEY_VARIABLE,
        "stream_max_retries": _RETRIES,
    }
    settings: dict[str, _Toml] = {
        "model_provider": PROVIDER,
        f"model_providers.{PROVIDER}": provider,
        "model": _model(setting, arguments, files),
    }
    if review := text_in(files, "review_model"):
        settings["review_model"] = setting.models.choose(review, "review_model")
    if "web_search" not in files:
        settings["web_search"] = "live"  # by default Codex asks for cached pages only, which no search here has
    options = [part for name, value in settings.items() for part in ("-c", f"{name}={_toml(value)}")]
    environ = {**setting.environ, **without_http_proxy(setting.environ), KEY_VARIABLE: setting.key}
    return Launch([*options, *arguments], environ)


def _model(setting: Setting, arguments: list[str], files: Mapping[str, Any]) -> str:
    """The model to use. An argument that names an unknown one is changed: Codex takes each only once, and ours last."""
    if found := option_at(arguments, *_MODEL_OPTIONS):
        at, before, named = found
        model = setting.models.choose(named, "--model")
        arguments[at] = before + model
        return model
    for at, argument in enumerate(arguments):
        key, equals, value = argument.partition("=")
        if key.strip() == "model" and equals and at and arguments[at - 1] in _CONFIG_OPTIONS:
            model = setting.models.choose(value.strip().strip("\"'"), "-c model")
            arguments[at] = f"model={_toml(model)}"
            return model
    return setting.models.choose(text_in(files, "model"), "`model` of config.toml")


def _files(setting: Setting) -> dict[str, Any]:
    """The user's settings: `config.toml`, and over it the profile that an argument names."""
    folder = folder_of("CODEX_HOME", home_of(setting.environ) / ".codex", setting.environ)
    settings = _read(folder / "config.toml")
    if profile := option_at(setting.arguments, *_PROFILE_OPTIONS):
        settings |= _read(folder / f"{profile[2]}.config.toml")
    return settings


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(read_text(path))
    except (tomllib.TOMLDecodeError, RecursionError):
        return {}  # Codex itself says what is wrong with it


def _toml(value: _Toml) -> str:
    """A text, a number, or an inline table. A JSON string is a TOML string (https://toml.io/en/v1.0.0#string)."""
    if isinstance(value, str | int):
        return orjson.dumps(value).decode()
    return "{" + ", ".join(f"{name} = {_toml(inner)}" for name, inner in value.items()) + "}"


CODEX: Final = Agent("codex", "Codex", "@openai/codex", _launch)
