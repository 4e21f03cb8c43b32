"""The configuration of a run, and where its log and state lie: never in the working directory.

That may be a stranger's repository, whose `config.yaml` and `.env` must change nothing.
"""

import os
import stat
import sys
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec

from proxy.commands import starter
from proxy.commands.run.agent import folder_of, home_of
from proxy.config.loaded import Loaded
from proxy.config.model import ClientConfig, StateConfig, TelemetryConfig, ToolConfig
from proxy.loop.offer import SEARCH
from proxy.stores.sqlite.database import SCHEME
from proxy.telemetry.workers import is_running
from proxy.wire.errors import ConfigurationError

_NAME: Final = "toolproxy"
_OF_RUNS: Final = "toolproxy.db"
_ONLY_THIS_USER: Final = 0o700
_MOST_LOGS: Final = 20  # of runs that have ended


def configuration_file(chosen: Path | None, environ: Mapping[str, str]) -> Path:
    """The configuration to use: the chosen one, that of `TOOLPROXY_CONFIG`, the user's own, or the shipped one.

    Raises:
        ConfigurationError: the variable has a relative path, which the working directory would decide.
    """
    if chosen is not None:
        return chosen.absolute()
    if named := environ.get("TOOLPROXY_CONFIG", "").strip():
        if not Path(named).is_absolute():
            raise ConfigurationError(
                [f"TOOLPROXY_CONFIG is the relative path {named!r}: give its whole path, or use --config"]
            )
        return Path(named)
    own = folder_of("XDG_CONFIG_HOME", home_of(environ) / ".config", environ) / _NAME / starter.CONFIGURATION
    return own if own.exists() else shipped()


def shipped() -> Path:
    """The shipped configuration."""
    return starter.place(starter.CONFIGURATION)


def folder_of_runs(environ: Mapping[str, str]) -> Path:
    """The folder of logs and state, made if it is not there. Only this user may read it: a log may hold conversations.

    Raises:
        ConfigurationError: it cannot be made, or belongs to another user.
    """
    folder = folder_of("XDG_STATE_HOME", home_of(environ) / ".local" / "state", environ) / _NAME
    try:
        folder.mkdir(mode=_ONLY_THIS_USER, parents=True, exist_ok=True)
        found = folder.stat()
        if found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) & ~_ONLY_THIS_USER:
            folder.chmod(_ONLY_THIS_USER)
    except OSError as exc:
        raise ConfigurationError([f"{folder} cannot be created for log and state: {exc.strerror}"]) from exc
    if found.st_uid != os.geteuid():
        raise ConfigurationError([f"{folder} belongs to another user: set XDG_STATE_HOME to a folder of your own"])
    return folder


def folder_of_work(configuration: Path, runs: Path) -> Path:
    """Where the proxy of a run works: what a configuration names by relative paths is beside it.

    The shipped one of an installed package has nothing beside it but the package itself.
    """
    return runs if configuration.parent == starter.PACKAGE else configuration.parent


def without_working_directory() -> None:
    """Import nothing from the working directory, which `python -m` puts first."""
    here = Path.cwd()
    sys.path[:] = [entry for entry in sys.path if entry and Path(entry).resolve() != here]


def log_file(agent: str, runs: Path, *, now: datetime, pid: int) -> Path:
    """The log of a run; the oldest ones beyond a number are removed."""
    logs = runs / "logs"
    logs.mkdir(mode=_ONLY_THIS_USER, exist_ok=True)
    for old in sorted(logs.glob("*.log"))[: -_MOST_LOGS + 1]:
        old.unlink(missing_ok=True)
    return logs / f"{now:%Y%m%d-%H%M%S}-{agent}-{pid}.log"


def keep_private(runs: Path, pid: int, name: str, content: bytes) -> Path:
    """Write a file that only this user may read, for a process; those of processes that have ended are removed."""
    for old in runs.glob(f"{name}-*.json"):
        owner = old.stem.rpartition("-")[2]
        if owner.isdecimal() and not is_running(int(owner)):
            old.unlink(missing_ok=True)
    path = runs / f"{name}-{pid}.json"
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:  # noqa: PTH123 - its mode
        file.write(content)
    return path


def for_one_run(loaded: Loaded, *, key: str, runs: Path, declares_search: bool) -> Loaded:
    """The configuration of a proxy for one run: a free port of loopback, one process, a key, state in our folder.

    Its tools are offered so that the agent shows what it searches for, and no request for a title is offered any. The
    proxy demands `key`, unless the configuration itself demands keys. The state is kept in the folder `runs`, unless
    the configuration names another place by an absolute path or a URL. For `declares_search`, see `Agent`.
    """
    config = loaded.config
    hidden = {SEARCH} if declares_search else config.tools.keys()
    has_callers = demands_key(loaded)
    config = msgspec.structs.replace(
        config,
        server=msgspec.structs.replace(
            config.server, host="127.0.0.1", port=0, workers=1, mcp=config.server.mcp or not declares_search
        ),
        tools={name: _declared(tool) if name in hidden else tool for name, tool in config.tools.items()},
        state=_state(loaded, runs),
        telemetry=_telemetry(config.telemetry),
        clients=config.clients if has_callers else (ClientConfig(name="run", key=key, admin=True),),
    )
    return msgspec.structs.replace(loaded, config=config, for_agent=True, is_for_one_run=not has_callers)


def _telemetry(telemetry: TelemetryConfig) -> TelemetryConfig:
    """A log in which `last_words` finds refused keys."""
    level = "warning" if telemetry.log_level == "error" else telemetry.log_level
    return msgspec.structs.replace(telemetry, log_format="json", log_level=level)


def _declared(tool: ToolConfig) -> ToolConfig:
    """A tool that is offered only where a request declares it."""
    return tool if tool.offer == "never" else msgspec.structs.replace(tool, offer="declared")


def demands_key(loaded: Loaded) -> bool:
    """Whether requests must bring a key: of a client, or the one that an upstream with `from_client` is given."""
    return loaded.needs_key or loaded.config.forwards_client_keys


def _state(loaded: Loaded, runs: Path) -> StateConfig:
    url = loaded.config.state.url
    if "state.url" not in loaded.places:
        url = f"{SCHEME}{runs / _OF_RUNS}"  # what is in memory would end with the run, and a session goes on tomorrow
    elif url.startswith(SCHEME) and not url.startswith(f"{SCHEME}/"):
        url = f"{SCHEME}{runs / Path(url.removeprefix(SCHEME)).name}"
    return msgspec.structs.replace(loaded.config.state, url=url)
