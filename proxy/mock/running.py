"""A scripted upstream in a thread of this process, for tests that are synchronous or asynchronous."""

import asyncio
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self, TypeAlias

import msgspec
import uvicorn
import yaml

from proxy.mock.case_reading import Scripted, scripted_by
from proxy.mock.command import uvicorn_config
from proxy.mock.demo import DEMO
from proxy.mock.journal import Attempts, Memory
from proxy.mock.script import Script, parse
from proxy.mock.server import MockUpstream
from proxy.server.listener import address_of, listen

Turn: TypeAlias = "dict[str, Any] | str | Path"


class MockRequest(dict[str, Any]):
    """A request that the mock has received: an entry of its journal, in which fields of the body can be read directly.

    `request["body"]["messages"]` is also `request["messages"]`.
    """

    def __missing__(self, key: str) -> Any:
        """A field of the body. Raises `KeyError`."""
        body = self["body"]
        if not isinstance(body, Mapping):
            raise KeyError(key)
        return body[key]


class RunningMock:
    """A context manager that serves while it is open.

    Attributes:
        url: the base URL for SDKs and for `upstreams.NAME.base_url`.
    """

    def __init__(self) -> None:
        self._mock = MockUpstream(DEMO, journal=Memory(), attempts=Attempts())
        self._listener = listen("127.0.0.1", 0)
        self.url = f"{address_of(self._listener)}/v1"
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._server = _Server(uvicorn_config(self._mock), self._started)
        self._thread = threading.Thread(target=self._run, name="toolproxy-mock", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join()

    @property
    def requests(self) -> list[MockRequest]:
        """The requests so far, the oldest first."""
        return [MockRequest(entry) for entry in self._mock.journal]

    def script(self, *turns: Turn, **settings: Any) -> None:
        """Answer by another script from now on.

        Args:
            turns: the model's turns in order, each a mapping or its text; or one path of a script, of a case or of a
                folder of cases; or one whole script as a mapping or as YAML.
            settings: further keys of the script: `pace`, `delay`, `seed` ...; of cases `pace=True`, so that recorded
                answers take the time that they took then.

        Raises:
            ConfigurationError: with one line per fault.
        """
        self._mock.script, self._mock.cases = _script_of(turns, settings)
        self._mock.clear()

    def reset(self) -> None:
        """Forget the script and all requests."""
        self._mock.script, self._mock.cases = Scripted()
        self._mock.clear()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._server.serve([self._listener]))
        self._loop.close()


class _Server(uvicorn.Server):
    """uvicorn's server, which tells another thread when it serves, and leaves the signals to the main thread."""

    def __init__(self, config: uvicorn.Config, started: threading.Event) -> None:
        super().__init__(config)
        self._has_started = started

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        self._has_started.set()


def _script_of(turns: tuple[Turn, ...], settings: Mapping[str, Any]) -> Scripted:
    paths = [path for turn in turns if (path := _path_in(turn)) is not None]
    if paths and len(paths) == len(turns):
        found = scripted_by(paths, pace=settings.get("pace") is True)
        return found if found.cases is not None else Scripted(_with_settings(found.script, settings))
    match turns:
        case (str() as text,) if "conversations:" in text:
            return Scripted(_with_settings(parse(text), settings))
        case (dict() as whole,) if "conversations" in whole:
            return Scripted(parse(yaml.safe_dump({**whole, **settings})))
    steps = [{"text": turn} if isinstance(turn, str) else turn for turn in turns]
    return Scripted(parse(yaml.safe_dump({"conversations": [{"turns": steps}], **settings})))


def _path_in(turn: Turn) -> Path | None:
    if isinstance(turn, str):
        is_folder = "/" in turn and os.path.isdir(turn)  # noqa: PTH112 - which a text may be asked that is no path
        return Path(turn) if is_folder or turn.endswith((".yaml", ".yml", ".json")) else None
    return turn if isinstance(turn, Path) else None


def _with_settings(script: Script, settings: Mapping[str, Any]) -> Script:
    """A script with other settings. Raises `ConfigurationError`."""
    read = parse(yaml.safe_dump({"conversations": [{"turns": [{}]}], **settings}))
    return msgspec.structs.replace(script, **{name: getattr(read, name) for name in settings})
