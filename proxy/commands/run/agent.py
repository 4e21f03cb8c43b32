"""What the three agents share: who they are, what they are told of the proxy, and whose choice of a model holds."""

import os
import re
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

import orjson

from proxy.kit.terminal import shortened
from proxy.wire.errors import ConfigurationError

Json: TypeAlias = dict[str, Any]

PROVIDER: Final = "toolproxy"
"""The name of the proxy as a provider of models, in agents that have several."""
KEY_VARIABLE: Final = "TOOLPROXY_KEY"
_PROXY_VARIABLES: Final = ("NO_PROXY", "no_proxy")
_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
_MOST_BYTES: Final = 1024 * 1024  # of a file of settings: a person has written it
_LONGEST_NAME: Final = 80  # characters of a model's name in a sentence
_STRING: Final = r'"(?:[^"\\]|\\.)*+"?'
# Comments, and commas before a closing bracket. A text or a comment without an end reaches to the end of the file, so
# that no part of it is looked at twice.
_COMMENT: Final = re.compile(rf"({_STRING})|//[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
_LAST_COMMA: Final = re.compile(rf"({_STRING})|,(?=\s*+[\]}}])", re.DOTALL)


@dataclass(slots=True)
class ModelChoice:
    """Whose choice of a model holds: the user's, if the proxy knows it and `--model` was not given; otherwise ours.

    Attributes:
        ours: the model of `--model`, or the first one that the proxy lists; None: it lists none, only patterns.
        listed: the models that the proxy lists.
        is_demanded: whether `--model` was given.
        knows: whether the proxy has a model of this name.
        replaced: a sentence for each model of the user's in whose place ours stands.
    """

    ours: str | None
    listed: Sequence[str]
    is_demanded: bool
    knows: Callable[[str], bool]
    replaced: list[str] = field(default_factory=list)

    def choose(self, users: str | None, where: str, *, instead: str | None = None) -> str:
        """The model to use.

        Args:
            users: the model that the user has set, if any.
            where: the setting, for the sentence about a model that is replaced.
            instead: what is used where the user's is not; by default, ours.

        Raises:
            ConfigurationError: the user has set no model that the proxy knows, and there is none of ours.
        """
        instead = instead or self.ours
        if users and not self.is_demanded and self.knows(users):
            return users
        if instead is None:
            raise ConfigurationError(["no model has a plain name in the configuration: choose one with --model"])
        if not users or users == instead:
            return instead
        why = "--model says otherwise" if self.is_demanded else "no model of this proxy"
        self.replaced.append(f"{where} is {shortened(repr(users), _LONGEST_NAME)} ({why}): {instead} is used instead")
        return instead


@dataclass(frozen=True, slots=True)
class Setting:
    """The arguments and environment of an agent, and the proxy's address, key and models for it.

    Attributes:
        arguments: of the agent, as the user gave them.
        environ: the environment of the command.
        directory: the working directory.
        url: the address of the proxy, without `/v1`.
        key: the proxy's key.
        models: the models to use.
        keep_private: writes a file that only this user may read, and returns its path.
        is_of_run: whether the proxy serves this agent alone, by the configuration of `place.for_one_run`.
    """

    arguments: Sequence[str]
    environ: Mapping[str, str]
    directory: Path
    url: str
    key: str
    models: ModelChoice
    keep_private: Callable[[str, bytes], Path]
    is_of_run: bool = False


@dataclass(frozen=True, slots=True)
class Launch:
    """The arguments and the environment of an agent that uses the proxy."""

    arguments: list[str]
    environ: dict[str, str]


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent that `toolproxy run` knows.

    Attributes:
        name: the program.
        title: its name as its makers write it.
        package: what `npm install -g` installs it from.
        launch: how it is made to use the proxy.
        declares_search: whether it declares a search to its server, and shows what that has searched for. One that does
            not is given the tools over MCP, whose calls it shows.
    """

    name: str
    title: str
    package: str
    launch: Callable[[Setting], Launch]
    declares_search: bool = True


def without_http_proxy(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that keep an agent from asking an HTTP proxy for an address on this machine."""
    found = next((environ[name] for name in _PROXY_VARIABLES if environ.get(name)), "")
    hosts = [host for host in found.split(",") if host.strip()]
    return dict.fromkeys(_PROXY_VARIABLES, ",".join([*hosts, *(host for host in _LOOPBACK if host not in hosts)]))


def read_json(path: Path) -> Json:
    """An object from a file of an agent's settings, which may have comments; {} where there is none or it is broken."""
    return parse_json(read_text(path))


def read_text(path: Path) -> str:
    """The text of a regular file of at most 1 MiB; "" of anything else.

    The folder may be a stranger's: a pipe would be waited for, and a device may have no end.
    """
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY), "rb") as file:  # noqa: PTH123 - see above
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode) or found.st_size > _MOST_BYTES:
                return ""
            return file.read(_MOST_BYTES).decode()
    except (OSError, UnicodeDecodeError):
        return ""


def parse_json(text: str) -> Json:
    """An object from a text that may have comments and trailing commas; {} where it is none, or nested too deep."""
    try:
        found = orjson.loads(_LAST_COMMA.sub(r"\1", _COMMENT.sub(r"\1 ", text)))
        orjson.dumps(found)  # takes fewer levels than are read
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):
        return {}
    return found if isinstance(found, dict) else {}


def object_in(container: Json, key: str) -> Json:
    """The object under a key; {} where there is none."""
    found = container.get(key)
    return found if isinstance(found, dict) else {}


def text_in(container: Mapping[str, Any], key: str) -> str | None:
    """The text under a key; None where there is none, an empty one, or one that no process can be given."""
    found = container.get(key)
    return found if isinstance(found, str) and found and "\0" not in found else None


def option_at(arguments: Sequence[str], *names: str) -> tuple[int, str, str] | None:
    """The last use of an option with a value: its index, what stands before the value in that argument, and the value.

    `--model X` is found at X, and `--model=X` at itself. What follows a bare `--` is no option.
    """
    found = None
    end = list(arguments).index("--") if "--" in arguments else len(arguments)
    for at, argument in enumerate(arguments[:end]):
        name, equals, value = argument.partition("=")
        if name not in names:
            continue
        if equals:
            found = (at, f"{name}=", value)
        elif at + 1 < end:
            found = (at + 1, "", arguments[at + 1])
    return found


def home_of(environ: Mapping[str, str]) -> Path:
    """The user's home directory."""
    return Path(environ.get("HOME") or Path.home())


def folder_of(variable: str, default: Path, environ: Mapping[str, str]) -> Path:
    """The folder that a variable names, if it names one by an absolute path (as XDG demands), or the default."""
    named = Path(environ.get(variable, ""))
    return named if named.is_absolute() else default
