"""The command `toolproxy`. Exit codes: 0 success, 1 a fault of configuration or start-up, 2 wrong usage."""

import argparse
import asyncio
import functools
import gc
import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from getpass import getpass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec
import orjson

from proxy import __version__
from proxy.config import env_file
from proxy.config.keys import SHORT_CLIENT_KEY
from proxy.config.loaded import Loaded
from proxy.config.messages import PATTERNS, did_you_mean
from proxy.config.model import Key
from proxy.config.redaction import Redact, redactor, secrets_of
from proxy.kit.terminal import style_of
from proxy.wire.errors import ConfigurationError

if TYPE_CHECKING:
    from proxy.commands.probe import Finding

_DEFAULT_CONFIG = "config.yaml"
_FAULT = 1
_USAGE = 2
_INVALID_CHOICE = re.compile(r"invalid choice: '(.*)' \(choose from (.*)\)")


class _Parser(argparse.ArgumentParser):
    """A parser whose complaints say what may have been meant."""

    def error(self, message: str) -> NoReturn:
        super().error(message + _meant(message))


def _meant(message: str) -> str:
    """What may have been meant by an argument that cannot be read, as the end of the message about it."""
    if choice := _INVALID_CHOICE.search(message):
        known = re.findall(r"[\w-]+", choice[2])
        of_agents = "; docs/agents.md has other agents" if "claude" in known else ""
        return did_you_mean(choice[1], known) + of_agents
    file = re.search(r"unrecognized arguments: .*?(\S+\.ya?ml)\b", message)
    return f"; the configuration is an option: --config {file[1]}" if file else ""


def main(argv: Sequence[str] | None = None) -> None:
    """Run a command and exit."""
    words, of_agent = _split(sys.argv[1:] if argv is None else argv)
    parser = _parser()
    if not words:
        parser.print_help(sys.stderr)
        sys.exit(_USAGE)
    arguments, unknown = parser.parse_known_args(_as_options(words))
    if unknown:
        agent = getattr(arguments, "agent", None)
        hint = f"; arguments of the agent follow a --: toolproxy run {agent} -- {shlex.join(unknown)}" if agent else ""
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
    arguments.of_agent = of_agent
    try:
        arguments.run(arguments)
    except ConfigurationError as exc:
        _complain(exc.faults)
        sys.exit(_FAULT)
    except KeyboardInterrupt:
        sys.exit(0)


def _complain(sentences: Sequence[str]) -> None:
    for sentence in sentences:
        print(f"toolproxy: {sentence}", file=sys.stderr)
    sys.stderr.flush()


def _split(words: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """The command's own arguments, and those after the `--` of `toolproxy run`, which go to the agent unchanged."""
    if words[:1] != ["run"] or "--" not in words:
        return words, ()
    at = words.index("--")
    return words[:at], words[at + 1 :]


def _as_options(words: Sequence[str]) -> Sequence[str]:
    """The words, with `help` and `version` as the options that they are here."""
    match list(words):
        case ["help", *command]:
            return [*command, "--help"]
        case ["version" | "-v" | "-V"]:
            return ["--version"]
        case _:
            return words


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="toolproxy",
        description="An OpenAI-compatible reverse proxy that runs tools transparently.",
        epilog="TOOLPROXY_CONFIG, TOOLPROXY_HOST, TOOLPROXY_PORT and TOOLPROXY_WORKERS do the same as the options.",
    )
    parser.add_argument("--version", action="version", version=f"toolproxy {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    serve = _command(commands, "serve", _serve, "run the proxy")
    _add_config(serve)
    watch = "reload the configuration when it, .env or clients_file changes"
    serve.add_argument("--watch", action="store_true", help=watch)
    _add_config_path(_command(commands, "init", _init, "write a starter configuration, unless there is one"))

    check = _command(commands, "check", _check, "check the configuration: what is wrong, and which keys are set")
    _add_config(check)
    probes = "also try every key: ask each upstream, search provider and MCP server, and Redis"
    check.add_argument("--probe", action="store_true", help=probes)

    _command(commands, "schema", _schema, "print the JSON Schema of the configuration, for editors")
    demo = _command(commands, "demo", _demo, "show a conversation with searches, without keys and network")
    demo.add_argument("--serve", action="store_true", help="keep it running, with a chat page to try")
    demo.add_argument("--port", type=_port, default=8080, help="port of the chat page; default: 8080; 0: any free port")

    _add_test_commands(commands)
    _add_run_command(commands)
    _add_key_commands(commands)
    what = "show what each client has used today, and what is left of its budget"
    spend = _command(commands, "spend", _spend, what)
    spend.add_argument("--client", metavar="NAME", help="show this client only")
    spend.add_argument("--month", action="store_true", help="show this month instead of today, in UTC")
    spend.add_argument("--json", action="store_true", help="print JSON")
    _add_config_path(spend)
    _add_no_env_file(spend)
    _command(commands, "hash-key", _hash_key, "read a client key and print its key_sha256")
    return parser


def _command(commands: Any, name: str, run: Callable[[argparse.Namespace], None], what: str) -> argparse.ArgumentParser:
    """Add a command, which calls `run` with its arguments."""
    parser: argparse.ArgumentParser = commands.add_parser(name, help=what)
    parser.set_defaults(run=run)
    return parser


def _add_run_command(commands: Any) -> None:
    run = commands.add_parser(
        "run",
        help="start a coding agent that uses this proxy",
        usage="toolproxy run [claude|codex|opencode] [options] [-- ARGUMENTS OF THE AGENT]",
        description="Without an agent, it lists the agents and which of them are installed.",
    )
    run.add_argument("agent", nargs="?", choices=("claude", "codex", "opencode"), metavar="claude|codex|opencode")
    run.add_argument("--model", help="default: the agent's own model if the proxy has it, else the proxy's first")
    run.add_argument(
        "--config", type=Path, help="default: TOOLPROXY_CONFIG, ~/.config/toolproxy/config.yaml, or the shipped file"
    )
    _add_no_env_file(run)
    run.add_argument(
        "--key-env", dest="key_variable", metavar="NAME", help="variable with the client's key; default: TOOLPROXY_KEY"
    )
    _add_address(run)
    run.set_defaults(run=_run)


def _add_test_commands(commands: Any) -> None:
    what = "run a scripted model server, for tests and load runs"
    mock = _command(commands, "mock-upstream", _mock_upstream, what)
    mock.add_argument("--host", default="127.0.0.1", help="address to listen on; default: 127.0.0.1")
    mock.add_argument("--port", type=_port, default=0, help="default: 0, any free port")
    mock.add_argument("--workers", type=_count, default=1, help="number of processes; default: 1")
    mock.add_argument(
        "--script", type=Path, metavar="FILE", help="YAML file with your conversations; default: the demo's"
    )

    again = _command(commands, "replay", _replay, "play recorded requests (cases) again, and show what differs")
    again.add_argument("paths", type=Path, nargs="+", metavar="PATH", help="a case, or a folder of cases")
    again.add_argument("--config", type=Path, help="no effect: each case has its own configuration")
    again.add_argument("--json", action="store_true", help="print JSON")


def _add_key_commands(commands: Any) -> None:
    key = commands.add_parser("key", help="add, list and remove client keys in clients_file")
    actions = key.add_subparsers(required=True, metavar="ACTION")
    for action, what, run in (
        ("add", "make a key for a new client and print it once", _add_key),
        ("list", "list the clients", _list_keys),
        ("remove", "remove a client and its key", _remove_key),
    ):
        command = _command(actions, action, run, what)
        if action != "list":
            command.add_argument("name", metavar="NAME", help="name of the client")
        _add_config_path(command)
        _add_no_env_file(command)


def _add_config_path(command: argparse.ArgumentParser) -> None:
    default = _environment("CONFIG") or _DEFAULT_CONFIG
    command.add_argument("--config", type=Path, default=Path(default), help=f"default: {_DEFAULT_CONFIG}")


def _add_no_env_file(command: argparse.ArgumentParser) -> None:
    what = "do not read variables from the .env file next to the configuration"
    command.add_argument("--no-env-file", dest="env_file", action="store_false", help=what)


def _add_config(command: argparse.ArgumentParser) -> None:
    _add_config_path(command)
    _add_no_env_file(command)
    where = "folder from which Python tools are imported; default: the working directory"
    command.add_argument("--app-dir", type=Path, default=Path(), help=where)
    _add_address(command)
    command.add_argument("--workers", type=_count, default=_environment("WORKERS"), help="number of processes")


def _add_address(command: argparse.ArgumentParser) -> None:
    command.add_argument("--host", default=_environment("HOST"), help="address to listen on")
    command.add_argument("--port", type=_port, default=_environment("PORT"), help="port to listen on; 0: any free port")


def _environment(name: str) -> str | None:
    """The value of a `TOOLPROXY_` variable; None if it is unset, empty, or an address that Kubernetes has set.

    For a Service called `toolproxy`, Kubernetes sets `TOOLPROXY_PORT=tcp://10.0.0.1:8080` in every container.
    """
    value = os.environ.get(f"TOOLPROXY_{name}", "").strip()
    return None if not value or value.startswith("tcp://") else value


def _number(what: str, least: int, most: int, text: str) -> int:
    if not text.isdecimal() or not least <= int(text) <= most:
        raise argparse.ArgumentTypeError(f"{text!r} is not {what} ({least} to {most})")
    return int(text)


_port = functools.partial(_number, "a port", 0, 65535)
_count = functools.partial(_number, "a number of processes", 1, 1024)


def _serve(arguments: argparse.Namespace) -> None:
    gc.disable()  # there is no garbage until the server runs; the server enables the collector again
    from proxy.server import process as server  # noqa: PLC0415 - `check` and `--help` need no web server

    _make_importable(arguments.app_dir)
    files = [arguments.config, *filter(None, [_env_file(arguments)])]
    server.serve(functools.partial(_configuration, arguments), watched=files if arguments.watch else ())


def _read_configuration(arguments: argparse.Namespace) -> Loaded:
    from proxy.app import configuration  # noqa: PLC0415 - `--help` needs no tools

    return configuration.load(arguments.config, os.environ, env_file=_env_file(arguments))


def _configuration(arguments: argparse.Namespace) -> Loaded:
    """The configuration file, overridden by the command line and its environment variables."""
    loaded = _read_configuration(arguments)
    said = {name: getattr(arguments, name) for name in ("host", "port", "workers")}
    overrides = {name: value for name, value in said.items() if value is not None}
    server = msgspec.structs.replace(loaded.config.server, **overrides)
    return msgspec.structs.replace(loaded, config=msgspec.structs.replace(loaded.config, server=server))


def _env_file(arguments: argparse.Namespace) -> Path | None:
    """The file `.env` next to the configuration, whether or not it exists; None with `--no-env-file`."""
    return arguments.config.with_name(env_file.NAME) if arguments.env_file else None


def _init(arguments: argparse.Namespace) -> None:
    from proxy.commands import starter  # noqa: PLC0415 - no other command needs it

    if not starter.write(arguments.config):
        schema = arguments.config.with_name(starter.SCHEMA)
        _complain([f"warning: {schema} already exists, and is not changed"])
    print(
        f"{arguments.config} is written. Now set ZAI_API_KEY or GMI_API_KEY, and SERPER_API_KEY for web search, "
        f"in the environment or in {arguments.config.with_name(env_file.NAME)} "
        f"(a form of it: {starter.VARIABLES}); then:"
    )
    option = "" if str(arguments.config) == _DEFAULT_CONFIG else f" --config {shlex.quote(str(arguments.config))}"
    print(f"  toolproxy check --probe{option}    # are the keys right?")
    print(f"  toolproxy serve{option}")


def _schema(_: argparse.Namespace) -> None:
    from proxy.commands import starter  # noqa: PLC0415 - as above

    print(starter.shipped(starter.SCHEMA), end="")


def _check(arguments: argparse.Namespace) -> None:
    """Print what is wrong, then what the configuration has, and the verdict last."""
    from proxy.commands import overview  # noqa: PLC0415 - `--help` needs no tools

    _make_importable(arguments.app_dir)
    try:
        loaded = _configuration(arguments)
        redact = redactor(secrets_of(loaded))  # a URL may contain a key, and an error message may quote a key
        faults, asked = _checked(loaded, redact, is_probed=arguments.probe)
    except ConfigurationError as exc:
        _complain(exc.faults)
        faults, asked = len(exc.faults), None
    print(overview.verdict(arguments.config.name, faults, asked), flush=True)
    if faults:
        sys.exit(_FAULT)


def _checked(loaded: Loaded, redact: Redact, *, is_probed: bool) -> tuple[int, int | None]:
    """Print the faults and the parts of a configuration; returns the numbers for the verdict.

    Raises:
        ConfigurationError: a tool cannot be made.
    """
    from proxy import app  # noqa: PLC0415 - `--help` needs neither tools nor a web server
    from proxy.commands import overview  # noqa: PLC0415 - as above
    from proxy.server.checks import check_startable  # noqa: PLC0415 - as above

    lines = overview.describe(loaded, app.origins_of(loaded))
    try:
        check_startable(loaded)
    except ConfigurationError as exc:
        faults, findings = list(exc.faults), None
    else:
        findings = _probed(loaded) if is_probed else None
        faults = [f"{loaded.place_of(one.path)}: {redact(one.message)}" for one in findings or () if one.is_fault]
    _complain([*faults, *(f"warning: {redact(warning)}" for warning in loaded.warnings)])
    style = style_of(sys.stdout)
    for line in [*lines, *overview.answers(findings or ())]:
        print(overview.tinted(redact(line), style))
    return len(faults), None if findings is None else len(findings)


def _probed(loaded: Loaded) -> "Sequence[Finding]":
    """The findings about every server."""
    from proxy import app  # noqa: PLC0415 - as above
    from proxy.commands import probe  # noqa: PLC0415 - as above

    clients = probe.ProbeClients(app.http_client_for, app.tool_client, app.SystemClock())
    return asyncio.run(probe.probe(loaded.config, clients))


def _make_importable(directory: Path) -> None:
    """Make modules in the directory importable, as uvicorn does. Python itself looks in the command's directory."""
    sys.path.insert(0, str(directory.resolve()))


def _demo(arguments: argparse.Namespace) -> None:
    from proxy.demo import serve, show  # noqa: PLC0415 - as above

    if arguments.serve:
        serve.main(port=arguments.port)
    else:
        show.main()


def _mock_upstream(arguments: argparse.Namespace) -> None:
    from proxy.mock import command  # noqa: PLC0415 - as above

    command.main(host=arguments.host, port=arguments.port, workers=arguments.workers, script=arguments.script)


def _run(arguments: argparse.Namespace) -> None:
    from proxy.commands.run import command  # noqa: PLC0415 - as above

    if arguments.agent is None:
        print("\n".join(command.agents()))
        return
    command.run(msgspec.convert(arguments, command.Order, from_attributes=True))


def _add_key(arguments: argparse.Namespace) -> None:
    from proxy.commands import key  # noqa: PLC0415 - as above

    loaded = _read_configuration(arguments)
    file = key.file_of(loaded, arguments.config)
    print(key.add_key(file, arguments.name, key.names_in(loaded)), flush=True)
    note = "" if loaded.needs_key else "; from then on every request needs a key"
    print(
        f"This key is shown only now; {file} has its hash. A running proxy takes it once it has read the file: with "
        f"--watch by itself, otherwise at SIGHUP{note}.",
        file=sys.stderr,
    )


def _list_keys(arguments: argparse.Namespace) -> None:
    from proxy.commands import key  # noqa: PLC0415 - as above

    for line in key.listed(_read_configuration(arguments)):
        print(line)


def _remove_key(arguments: argparse.Namespace) -> None:
    from proxy.commands import key  # noqa: PLC0415 - as above

    loaded = _read_configuration(arguments)
    file = key.file_of(loaded, arguments.config)
    key.remove_key(file, arguments.name, key.names_in(loaded))
    print(
        f"{arguments.name} is removed from {file}. A running proxy refuses its key once it has read the file: with "
        "--watch by itself, otherwise at SIGHUP.",
        file=sys.stderr,
    )


def _spend(arguments: argparse.Namespace) -> None:
    from proxy import app  # noqa: PLC0415 - as above
    from proxy.commands import spend  # noqa: PLC0415 - as above

    config = _read_configuration(arguments).config
    found = asyncio.run(spend.spend_of(config, app.SystemClock(), month=arguments.month, client=arguments.client))
    for line in [orjson.dumps(found).decode()] if arguments.json else spend.report(found):
        print(line)


def _replay(arguments: argparse.Namespace) -> None:
    from proxy.cases.replay import replay  # noqa: PLC0415 - as above

    if not replay(arguments.paths, as_json=arguments.json):
        sys.exit(_FAULT)


def _hash_key(_: argparse.Namespace) -> None:
    try:
        key = getpass("client key: ") if sys.stdin.isatty() else sys.stdin.readline()
        key = msgspec.convert(key.strip(), Key)
    except (msgspec.ValidationError, UnicodeError) as exc:
        raise ConfigurationError([f"the key {PATTERNS[Key]}"]) from exc
    if not key:
        raise ConfigurationError(["no key was given"])
    if len(key) < SHORT_CLIENT_KEY:
        _complain([f"warning: a key of fewer than {SHORT_CLIENT_KEY} characters can be guessed"])
    print(sha256(key.encode()).hexdigest())
