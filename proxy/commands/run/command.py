"""`toolproxy run`: find or start a proxy, set an agent up for it, and become that agent.

Because this process becomes the agent, terminal, signals, working directory and exit code are the agent's own.
"""

import os
import secrets
import shutil
import signal
import sys
from collections.abc import Iterable, Iterator
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Final, NoReturn

import msgspec

from proxy.app import configuration
from proxy.commands.run import companion, last_words, place
from proxy.commands.run.agent import KEY_VARIABLE, Agent, Launch, ModelChoice, Setting
from proxy.commands.run.claude import CLAUDE
from proxy.commands.run.codex import CODEX
from proxy.commands.run.opencode import OPENCODE
from proxy.config import env_file
from proxy.server.checks import check_startable
from proxy.wire.errors import ConfigurationError

AGENTS: Final = {agent.name: agent for agent in (CLAUDE, CODEX, OPENCODE)}
_INTERRUPTED: Final = 130  # what a shell reports for a program that Ctrl-C has ended
_NO_KEY: Final = "unused"  # for a proxy that asks for none; agents send something
_KEY_BYTES: Final = 32
_OWN: Final = "for your own configuration: toolproxy init --config ~/.config/toolproxy/config.yaml"
_HOW_TO_GIVE_KEY: Final = f"set {KEY_VARIABLE}, or name the variable that has the key with --key-env"


def agents() -> Iterator[str]:
    """A line on each agent, with its program or how to install it."""
    for agent in AGENTS.values():
        found = shutil.which(agent.name, path=_absolute(os.environ.get("PATH", os.defpath)))
        yield f"{agent.name:<10}{agent.title:<13}{found or f'not installed: {_installation(agent)}'}"


class Order(msgspec.Struct, frozen=True):
    """The parsed command line of `toolproxy run`.

    Attributes:
        agent: the name of the agent, one of `AGENTS`.
        of_agent: the agent's own arguments.
        model: the model to use, whatever the user has set in the agent.
        config: the file; None: `place.configuration_file` says which.
        env_file: whether variables of the configuration come from the file `.env` beside it, too.
        key_variable: the variable with the key; None: `TOOLPROXY_KEY`, which need not be set.
        host: the address in the place of `server.host` of the configuration, if it is given.
        port: the port in the place of `server.port`, if it is given.
    """

    agent: str
    of_agent: tuple[str, ...]
    model: str | None
    config: Path | None
    env_file: bool
    key_variable: str | None
    host: str | None
    port: int | None

    @property
    def key(self) -> str | None:
        """The value of the variable with the key. Raises `ConfigurationError` where a named one is not set."""
        value = os.environ.get(self.key_variable or KEY_VARIABLE)
        if self.key_variable and not value:
            raise ConfigurationError([f"--key-env: {self.key_variable} is not set"])
        return value or None


def run(order: Order) -> NoReturn:
    """Become an agent that uses the proxy.

    Raises:
        ConfigurationError: the agent is not installed, the configuration cannot be served, a key is missing or
            refused, the model is unknown.
    """
    agent = AGENTS[order.agent]
    found = os.environ.get("PATH", os.defpath)
    path = _absolute(found)
    if path != found:
        _say("relative entries of PATH are ignored, because they name programs of the working directory")
    program = shutil.which(agent.name, path=path)
    if program is None:
        raise ConfigurationError([f"{agent.title} is not installed; this installs it: {_installation(agent)}"])
    place.without_working_directory()
    try:
        launch = _launch(agent, order)
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    sys.stderr.flush()
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these two, and the agent would inherit that
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execve(program, [agent.name, *launch.arguments], {**launch.environ, "PATH": path})  # noqa: S606 - it is what the user asks for
    except OSError as exc:
        raise ConfigurationError([f"{program} cannot be started: {exc.strerror}"]) from exc


def _launch(agent: Agent, order: Order) -> Launch:
    """The agent, set up for a proxy that serves."""
    path = place.configuration_file(order.config, os.environ)
    runs = place.folder_of_runs(os.environ)
    is_shipped = path == place.shipped()
    _say(f"configuration: {_below_home(path)}{', the shipped one' if is_shipped else ''}")
    if is_shipped:
        _say(_OWN)
    proxy = _proxy(order, path, runs)
    models = _models(proxy, order)
    launch = agent.launch(
        Setting(
            arguments=order.of_agent,
            environ=os.environ,
            directory=Path.cwd(),
            url=proxy.url,
            key=proxy.key,
            models=models,
            keep_private=partial(place.keep_private, runs, os.getpid()),
            is_of_run=proxy.log is not None,
        )
    )
    for sentence in models.replaced:
        _say(sentence)
    return launch


def _proxy(order: Order, path: Path, runs: Path) -> companion.Proxy:
    """The proxy that runs already at the configured address, or else one that is started for this run."""
    beside = path.with_name(env_file.NAME) if order.env_file else None
    read = partial(configuration.load, path, os.environ, env_file=beside)
    loaded, key = read(), order.key
    server = loaded.config.server
    if url := companion.running_at(order.host or server.host, server.port if order.port is None else order.port):
        _say(f"proxy: {url}, which is running already")
        return companion.Proxy(url, key or _NO_KEY)
    if not place.demands_key(loaded):
        key = f"tp_{secrets.token_urlsafe(_KEY_BYTES)}"
    if key is None:
        raise ConfigurationError([f"{path.name} demands a key of its callers, and none was given: {_HOW_TO_GIVE_KEY}"])
    folder = place.folder_of_work(path, runs)
    sys.path.insert(0, str(folder))  # tools of `type: python` are beside the configuration
    adapt = partial(place.for_one_run, key=key, runs=runs, declares_search=AGENTS[order.agent].declares_search)
    check_startable(adapt(loaded))
    log = place.log_file(order.agent, runs, now=datetime.now().astimezone(), pid=os.getpid())

    def said_at_the_end() -> Iterable[str]:
        with log.open("rb") as lines:
            yield from last_words.sentences(last_words.refusals_in(lines), loaded, path)
        with log.open("rb") as lines:
            if use := last_words.use_in(lines):
                yield use

    url = companion.start(lambda: adapt(read()), folder=folder, log=log, last_words=said_at_the_end)
    _say(f"proxy: {url}, for this run")
    _say(f"log: {_below_home(log)}")
    return companion.Proxy(url, key, log)


def _below_home(path: Path) -> str:
    """A path as a shell takes it, with `~` for the home folder, so that most fit a line of a terminal."""
    home = Path(os.environ.get("HOME") or "/")
    return f"~/{path.relative_to(home)}" if home != Path("/") and path.is_relative_to(home) else str(path)


def _models(proxy: companion.Proxy, order: Order) -> ModelChoice:
    """The models of a proxy, and the one to use.

    Raises:
        ConfigurationError: the proxy refuses the key, or does not know the model.
    """
    listed = proxy.models()
    if listed is None:
        how = f"that {order.key_variable or KEY_VARIABLE} has" if order.key else f'"{_NO_KEY}": {_HOW_TO_GIVE_KEY}'
        raise ConfigurationError([f"the proxy at {proxy.url} refuses the key {how}"])
    if order.model and not proxy.knows(order.model):
        raise ConfigurationError([f"--model: there is no {order.model!r} here, but {', '.join(listed)}"])
    ours = order.model or (listed[0] if listed else None)
    return ModelChoice(ours, listed, is_demanded=order.model is not None, knows=proxy.knows)


def _absolute(path: str) -> str:
    """The entries of a PATH that do not depend on the working directory, which may be a stranger's repository."""
    return os.pathsep.join(entry for entry in path.split(os.pathsep) if os.path.isabs(entry))  # noqa: PTH117 - a text


def _installation(agent: Agent) -> str:
    return f"npm install -g {agent.package}"


def _say(sentence: str) -> None:
    sys.stderr.write(f"toolproxy: {sentence}\n")
