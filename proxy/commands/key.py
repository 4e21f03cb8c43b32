"""`toolproxy key`: makes client keys, and keeps their hashes in the configuration's `clients_file`.

A change replaces the file as a whole, under a lock, so that a reader never sees half of it, and two commands at once
lose nothing.
"""

import errno
import fcntl
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from secrets import token_urlsafe
from tempfile import NamedTemporaryFile
from typing import Any, Final

from proxy.config.clients_file import NoClients, entries_in, text_of
from proxy.config.files import read_file
from proxy.config.loaded import Loaded
from proxy.config.model import ClientConfig
from proxy.kit.terminal import printable
from proxy.wire.errors import ConfigurationError

_PREFIX: Final = "tp_"
_KEY_BYTES: Final = 32  # of chance: 43 URL-safe characters


def file_of(loaded: Loaded, config: Path) -> Path:
    """The `clients_file` of a configuration, which was read from `config`. Raises `ConfigurationError`: it has none."""
    if loaded.clients_file is None:
        raise ConfigurationError([f"{config} has no file for clients; add this line to it: clients_file: clients.yaml"])
    return Path(loaded.clients_file.path)


def names_in(loaded: Loaded) -> dict[str, str]:
    """The names of all clients -> their places."""
    return {name: place for _, name, place in _clients_in(loaded)}


def listed(loaded: Loaded) -> Iterator[str]:
    """A line for each client: its name, its place, and why it cannot be used if that is so."""
    clients = [(printable(name), place, loaded.disabled.get(path)) for path, name, place in _clients_in(loaded)]
    width = max((len(name) for name, _, _ in clients), default=0)
    for name, place, disabled in clients:
        yield f"{name:{width}}  {place}{f'  disabled, {disabled.why}' if disabled else ''}"


def _clients_in(loaded: Loaded) -> Iterator[tuple[str, str, str]]:
    """Path, name and place of every client, including those that are disabled."""
    disabled = ((path, entry.entry) for path, entry in loaded.disabled.items())
    for path, client in (*loaded.clients(), *disabled):
        if isinstance(client, ClientConfig):
            yield path, client.name, loaded.place_of(path).partition(": ")[0]


def add_key(file: Path, name: str, known: Mapping[str, str]) -> str:
    """Make a key for a new client, and keep its hash in `clients_file`, which need not exist yet.

    `known` has the place of each client by its name.

    Raises:
        ConfigurationError: there is a client of that name, or the file cannot be read or written.
    """
    if not name.strip() or not name.isprintable() or "${" in name:
        raise ConfigurationError([f"{name!r} cannot be a client's name: it must be text without variables"])
    key = _PREFIX + token_urlsafe(_KEY_BYTES)

    def edit(entries: list[Any]) -> list[Any]:
        if name in known or name in map(_name_of, entries):
            place = known.get(name, file.name)
            raise ConfigurationError([f"there is already a client {name!r}, in {place}; nothing has changed"])
        return [*entries, {"name": name, "key_sha256": sha256(key.encode()).hexdigest()}]

    _change(file, edit)
    return key


def remove_key(file: Path, name: str, known: Mapping[str, str]) -> None:
    """Remove a client from the file; the arguments and faults are those of `add_key`."""

    def edit(entries: list[Any]) -> list[Any]:
        left = [entry for entry in entries if _name_of(entry) != name]
        if len(left) < len(entries):
            return left
        if name in known:
            raise ConfigurationError([f"the client {name!r} is in {known[name]}: remove it there"])
        raise ConfigurationError([f"there is no client {name!r} in {file}"])

    _change(file, edit)


def _name_of(entry: Any) -> object:
    """The name of an entry of the file, as it is written; it may be a variable."""
    return entry.get("name") if isinstance(entry, dict) else None


def _change(file: Path, edit: Callable[[list[Any]], list[Any]]) -> None:
    file = file.resolve()  # of a symbolic link, the file is replaced, not the link
    try:
        with _locked(file.parent):
            try:
                text = read_file(file).decode()
            except FileNotFoundError:
                text = ""
            _replace(file, text_of(edit(entries_in(text)), text))
    except NoClients as exc:
        raise ConfigurationError([f"{file}: {fault}" for fault in exc.faults]) from exc
    except UnicodeDecodeError as exc:
        raise ConfigurationError([f"{file}: is not UTF-8"]) from exc
    except OSError as exc:
        raise ConfigurationError([f"{file}: cannot be written: {_why(exc)}"]) from exc


def _why(exc: OSError) -> str:
    match exc.errno:
        case errno.EBUSY:
            return "it is mounted by itself; mount its folder instead"
        case errno.EPERM:
            return "it belongs to another user; run this as that user"
    return exc.strerror or type(exc).__name__


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Wait until no other process changes the file. The lock is the folder's: the file itself is replaced."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _replace(file: Path, text: str) -> None:
    """Write the file with mode 0600, for the owner of the one before, or of the folder."""
    written = NamedTemporaryFile("wb", dir=file.parent, prefix=f".{file.name}.", delete=False)  # noqa: SIM115 - below
    try:
        with written:
            written.write(text.encode())
            written.flush()
            os.fsync(written.fileno())
            owner = (file if file.exists() else file.parent).stat()
            if owner.st_uid != os.geteuid():
                os.fchown(written.fileno(), owner.st_uid, owner.st_gid)
        Path(written.name).replace(file)
    except BaseException:
        Path(written.name).unlink()
        raise
