"""The proxy beside an agent: one that is running already, or one of this run.

A proxy of this run is a child of the process that becomes the agent. It is in a session of its own, so that no signal
of the terminal reaches it, and ends when its parent has ended, however that came to pass.
"""

import http.client
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn
from urllib.parse import quote, urlsplit

import orjson

from proxy.config.loaded import Loaded
from proxy.server.port_owner import is_all_of_user
from proxy.wire.errors import ConfigurationError

_TIMEOUT: Final = 5.0  # of an answer from this machine, which takes milliseconds
_PARENT_SECONDS: Final = 0.25  # between two looks whether the agent is still there
_END_SECONDS: Final = 5.0  # for the proxy to end by itself
_SAID: Final = b"toolproxy is serving at "
_LOG_LINES: Final = 5  # of the log of a proxy that did not start
_REPORT: Final = {"status", "upstreams", "tools", "state"}  # the keys of our /readyz
_ANY: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - where one is reached that listens everywhere


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy that can be asked for its models.

    Attributes:
        url: its address, without `/v1`.
        key: the key for it.
        log: the file with its log; None: it was running already.
    """

    url: str
    key: str
    log: Path | None = None

    def models(self) -> list[str] | None:
        """The models that the key may use, in the order of the configuration; None: the key is refused.

        Raises:
            ConfigurationError: the proxy gives no such answer.
        """
        status, answer = _get(self.url, "/v1/models", self.key)
        if status == http.HTTPStatus.UNAUTHORIZED:
            return None
        if status != http.HTTPStatus.OK or not isinstance(answer, dict):
            raise ConfigurationError([f"the proxy at {self.url} answers {status} when asked for its models"])
        return [str(model["id"]) for model in answer["data"]]

    def knows(self, name: str) -> bool:
        """Whether it has a model of this name, which a pattern may cover."""
        return _get(self.url, f"/v1/models/{quote(name, safe='/')}", self.key)[0] == http.HTTPStatus.OK


def running_at(host: str, port: int) -> str | None:
    """The address of a proxy that answers at the configured address, if the process belongs to this user."""
    host = _ANY.get(host, host)
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    if not port or not is_all_of_user(port, os.geteuid()):
        return None
    try:
        status, answer = _get(url, "/readyz")
    except ConfigurationError:
        return None
    is_ours = status == http.HTTPStatus.OK and isinstance(answer, dict) and answer.keys() >= _REPORT
    return url if is_ours else None


def start(load: Callable[[], Loaded], *, folder: Path, log: Path, last_words: Callable[[], Iterable[str]]) -> str:
    """Start a proxy as a child of this process; returns its address once it accepts connections.

    Args:
        load: reads the configuration.
        folder: the proxy's working directory.
        log: the file for its log.
        last_words: what the proxy says on this process's standard error when the agent has ended.

    Raises:
        ConfigurationError: it did not start; with the last lines of its log.
    """
    parent = os.getpid()
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    if os.fork() == 0:
        _serve(load, folder, log, writing, end=partial(_end_with, parent, last_words))
    os.close(writing)
    with open(reading, "rb") as pipe:  # noqa: PTH123 - a descriptor
        line = pipe.readline()
    if not line.startswith(_SAID):
        try:
            last = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LOG_LINES:]
        except OSError as exc:  # it has ended before it had a log
            last = [f"{log} cannot be read: {exc.strerror}"]
        raise ConfigurationError(["the proxy did not start:", *last])
    return line.removeprefix(_SAID).decode().strip().removesuffix("/v1")


def _serve(load: Callable[[], Loaded], folder: Path, log: Path, writing: int, end: Callable[[int], None]) -> NoReturn:
    """Serve until `end`, in a thread of its own, ends this process. No exception reaches the code of the parent."""
    from proxy.server import process  # noqa: PLC0415 - imported before, by the check of the configuration

    status = 1
    try:
        os.setsid()
        os.chdir(folder)
        said = os.dup(2)
        _redirect(writing, log)
        threading.Thread(target=end, args=(said,), daemon=True).start()
        process.serve(load)
        status = 0
    except ConfigurationError as exc:
        sys.stderr.write("".join(f"toolproxy: {fault}\n" for fault in exc.faults))
    except Exception:  # noqa: BLE001 - whatever it is, the log has it, and the parent's code is not gone on with
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def _redirect(writing: int, log: Path) -> None:
    """Read nothing, say the line with the address to the parent, and write anything else to the log."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(writing, 1)
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 2)
    os.close(writing)


def _end_with(parent: int, last_words: Callable[[], Iterable[str]], said: int) -> None:
    """Say the last words, and end this process, when its parent has ended: another process is its parent then."""
    _await_end(parent)
    with suppress(OSError), open(said, "w", encoding="utf-8") as terminal:
        terminal.writelines(f"toolproxy: {sentence}\n" for sentence in last_words())
    for _ in range(2):  # nobody waits for an answer any more: the second signal ends what is open
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_PARENT_SECONDS)
    time.sleep(_END_SECONDS)
    os._exit(1)


def _await_end(parent: int) -> None:
    """Wait until the parent has ended: at once where the system tells it, so that the prompt of a shell comes later."""
    if sys.platform == "linux":
        # An error: it has ended already, or the kernel is too old.
        with suppress(OSError), open(os.pidfd_open(parent), "rb") as process:  # noqa: PTH123 - a descriptor
            if os.getppid() == parent:
                select.select([process], [], [])
    while os.getppid() == parent:
        time.sleep(_PARENT_SECONDS)


def _get(url: str, path: str, key: str = "") -> tuple[int, Any]:
    """The status and the JSON of an answer. No HTTP proxy of the environment is asked for this machine's address.

    Raises:
        ConfigurationError: there is no answer.
    """
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=_TIMEOUT)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {key}"} if key else {})
        response = connection.getresponse()
        body = response.read()
    except (OSError, http.client.HTTPException) as exc:
        raise ConfigurationError([f"the proxy at {url} does not answer: {exc}"]) from exc
    finally:
        connection.close()
    try:
        return response.status, orjson.loads(body)
    except orjson.JSONDecodeError:
        return response.status, None
