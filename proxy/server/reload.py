r"""Reloading: when the configuration is read again, which parts can take effect, and what happens with a faulty one.

    SIGHUP, or with `--watch` another content of the file --> read and checked --> handed to the application
                                                                              \-> faulty: logged, nothing changes
    with `--watch` no file any more --> logged, nothing changes
    SIGHUP, since the terminal is gone (`hangup`) --> the process stops as at SIGTERM

Other files, such as `.env` or `clients_file`, need not exist: a missing file counts as another content. If the file of
clients is gone, its clients are gone too, and callers still need a key.

If signals arrive while a configuration is read, it is read once more.
"""

import asyncio
import hashlib
import signal
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final, Literal, TypeAlias

import msgspec

from proxy.config.files import read_file
from proxy.config.loaded import ClientsFile, Loaded
from proxy.config.model import Value
from proxy.ports import Clock, Observer
from proxy.server import systemd
from proxy.server.hangup import Hangup
from proxy.wire.errors import ConfigurationError

_TICK_SECONDS: Final = 0.1
_LOOK_SECONDS: Final = 1.0


News: TypeAlias = Literal["changed", "gone", "hung up"]
"""What has become of the configuration's file, for which a signal counts as a change, or of the terminal."""


class FileWatch:
    """Whether the content of a file has changed, and has then stayed the same for one look: editors write in pieces.

    The watch follows the name: a replaced file is noticed, and so is a symbolic link to another file, as in a
    Kubernetes ConfigMap. A file that comes back has changed, even with the same content.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = self._stat()
        self._latest = self._known = self._digest()

    @classmethod
    def since(cls, path: Path, digest: bytes | None) -> "FileWatch":
        """The watch of a file that was read with this content; None if there was no file."""
        watch = cls(path)
        watch._known = digest
        return watch

    def look(self) -> News | None:
        """Look at the file. There is news once for each new content, and once when the file is gone."""
        if (stat := self._stat()) != self._seen:
            self._seen, before, self._latest = stat, self._latest, self._digest()
            if self._latest != before:
                return None
        if self._latest == self._known:
            return None
        self._known = self._latest
        return "gone" if self._latest is None else "changed"

    def _stat(self) -> tuple[int, int, int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size

    def _digest(self) -> bytes | None:
        try:
            return hashlib.sha256(read_file(self._path)).digest()
        except FileNotFoundError:
            return None
        except OSError as exc:  # the reader of the configuration says why
            return str(exc).encode()


class Trigger:
    """Whether the configuration should be read again, because of a signal or a changed file.

    `now` is the time in seconds. Without a `hangup`, each signal asks for a reload.
    """

    def __init__(self, *, now: Callable[[], float], hangup: Hangup | None = None) -> None:
        self._now = now
        self._hangup = hangup
        self._is_asked = False
        self._watch: FileWatch | None = None
        self._beside: list[FileWatch] = []
        self._clients: tuple[str, FileWatch] | None = None
        self._looks_at = 0.0

    def ask(self, *_: object) -> None:
        """Request a reload. This is the signal handler."""
        self._is_asked = True
        if self._hangup is not None:
            self._hangup.signal()

    def watch(self, path: Path, *beside: Path) -> None:
        """Watch the file, and other files that need not exist, for changes of their present content."""
        self._watch = FileWatch(path)
        self._beside = [FileWatch(one) for one in beside]

    def watch_clients(self, file: ClientsFile | None) -> None:
        """If files are watched, watch the file of clients too, for changes of the content that was read."""
        if file is None or self._watch is None:
            self._clients = None
        elif self._clients is None or self._clients[0] != file.path:
            self._clients = (file.path, FileWatch.since(Path(file.path), file.digest))

    def take(self) -> News | None:
        """The reason to do something now, if there is one. Looks at the files about once a second."""
        was_asked, self._is_asked = self._is_asked, False
        if self._hangup is not None and self._hangup.look():
            return "hung up"
        news: News | None = None
        if self._watch is not None and self._now() >= self._looks_at:
            self._looks_at = self._now() + _LOOK_SECONDS
            news = self._watch.look()
            for beside in (*self._beside, *(self._clients or ())[1:]):
                news = "changed" if beside.look() else news
        return "changed" if was_asked else news


class Reloads:
    """Reads the configuration again, and reports the result.

    Args:
        loaded: the configuration in force.
        load: reads the file, with the overrides of the command line.
        check: raises `ConfigurationError` for a configuration that cannot replace the one in force.
        trigger: says when to read the configuration.
        observe: takes the events.

    Attributes:
        loaded: the configuration in force.
    """

    def __init__(
        self,
        loaded: Loaded,
        *,
        load: Callable[[], Loaded],
        check: Callable[[Loaded, Loaded], None],
        trigger: Trigger,
        observe: Observer,
    ) -> None:
        self.loaded = loaded
        trigger.watch_clients(loaded.clients_file)
        self._load = load
        self._check = check
        self._trigger = trigger
        self._observe = observe

    def reload(self) -> Loaded | None:
        """The configuration, if a reload is due and the file is valid. It is in force from then on."""
        if not self._is_due():
            return None
        systemd.notify_reloading()
        try:
            loaded, needs_restart = self._read()
        except ConfigurationError as exc:
            self._refuse(exc)
            return None
        self._accept(loaded, needs_restart)
        return loaded

    async def run(self, apply: Callable[[Loaded], Awaitable[None]], clock: Clock) -> None:
        """Reload on each request, until cancelled. `apply` puts a valid configuration in force."""
        while True:
            await clock.sleep(_TICK_SECONDS)
            if not self._is_due():
                continue
            systemd.notify_reloading()
            try:
                loaded, needs_restart = await asyncio.to_thread(self._read)
                await apply(loaded)
            except ConfigurationError as exc:
                self._refuse(exc)
            else:
                self._accept(loaded, needs_restart)

    def _is_due(self) -> bool:
        """Whether a reload is due."""
        news = self._trigger.take()
        if news == "gone":
            self._observe("configuration.gone")
        if news == "hung up":
            signal.raise_signal(signal.SIGTERM)  # whose handler stops one process and the supervisor of several alike
        return news == "changed"

    def _read(self) -> tuple[Loaded, list[str]]:
        """The configuration of the file, as `keep_fixed` returns it.

        A bug must not end a process that serves, so every exception becomes a `ConfigurationError`.
        """
        try:
            found = keep_closed(self._load(), self.loaded)
            loaded, needs_restart = keep_fixed(found, self.loaded)
            self._check(loaded, self.loaded)
        except ConfigurationError:
            raise
        except Exception as exc:
            raise ConfigurationError([f"it cannot be used: {type(exc).__name__}"]) from exc
        return loaded, needs_restart

    def _accept(self, loaded: Loaded, needs_restart: Sequence[str]) -> None:
        before, self.loaded = self.loaded, loaded
        self._trigger.watch_clients(loaded.clients_file)
        for where in needs_restart:
            self._observe("configuration.needs_restart", where=where)
        report(loaded, self._observe, before=before)
        self._observe("configuration.reloaded")
        systemd.notify("READY=1")

    def _refuse(self, error: ConfigurationError) -> None:
        self._observe("configuration.refused", faults=list(error.faults))
        systemd.notify("READY=1")


def keep_closed(loaded: Loaded, before: Loaded) -> Loaded:
    """A configuration that still requires a key from callers, although its file of clients is gone."""
    file, known = loaded.clients_file, before.clients_file
    if file is None or known is None or file.path != known.path or not known.closes:
        return loaded
    return msgspec.structs.replace(loaded, clients_file=msgspec.structs.replace(file, closes=True))


def keep_fixed(loaded: Loaded, before: Loaded) -> tuple[Loaded, list[str]]:
    """A configuration with the previous values of settings that need a restart, and the paths of these settings."""
    config, changed = loaded.config, []
    for section in type(config).__struct_fields__:
        found, known = getattr(config, section), getattr(before.config, section)
        fixed = found.needs_restart if isinstance(found, Value) else ()
        kept = {name: value for name in fixed if (value := getattr(known, name)) != getattr(found, name)}
        if kept:
            changed += [loaded.place_of(f"{section}.{name}") for name in kept]
            config = msgspec.structs.replace(config, **{section: msgspec.structs.replace(found, **kept)})
    return msgspec.structs.replace(loaded, config=config), changed


def report(loaded: Loaded, observe: Observer, *, before: Loaded | None = None, tells_unset: bool = True) -> None:
    """Log the disabled entries of a configuration, and its warnings.

    Args:
        loaded: the configuration.
        observe: takes the events.
        before: the configuration that was in force; entries that it had disabled for the same reason are not logged.
        tells_unset: whether to log entries that are disabled only because a variable has no value. The banner of a
            terminal names them too.
    """
    known = {} if before is None else before.disabled
    for where, entry in loaded.disabled.items():
        if (where in known and known[where].why == entry.why) or (not tells_unset and entry.variables):
            continue
        observe("configuration.disabled", where=where, why=entry.why, fallback=" or ".join(entry.instead) or None)
    for warning in loaded.warnings:
        observe("configuration.doubtful", why=warning)
