"""A scripted upstream in a thread of this process, for tests that are synchronous or asynchronous."""

import asyncio
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self, TypeAlias

import msgspec
import uvicorn
import yaml

from proxy.mock.command import uvicorn_config
from proxy.mock.demo import DEMO
from proxy.mock.script import Script, load, parse
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
        self._mock = MockUpstream()
        self._listener = listen("127.0.0.1", 0)
        self.url = f"{address_of(self._listener)}/v1"
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
            turns: the model's turns in order, each a mapping or its text; or one whole script as a path, as a mapping
                or as YAML.
            settings: further keys of the script: `pace`, `delay`, `seed` ...

        Raises:
            ConfigurationError: with one line per fault.
        """
        self._mock.script = _script_of(turns, settings)
        self._mock.clear()

    def reset(self) -> None:
        """Forget the script and all requests."""
        self._mock.script = DEMO
        self._mock.clear()

    def _run(self) -> None:
        asyncio.run(self._server.serve([self._listener]))


class _Server(uvicorn.Server):
    """uvicorn's server, which tells another thread when it serves, and leaves the signals to the main thread."""

    def __init__(self, config: uvicorn.Config, started: threading.Event) -> None:
        super().__init__(config)
        self._has_started = started

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        self._has_started.set()


def _script_of(turns: tuple[Turn, ...], settings: Mapping[str, Any]) -> Script:
    match turns:
        case (Path() as path,):
            return _with_settings(load(path), settings)
        case (str() as text,) if text.endswith((".yaml", ".yml")):
            return _with_settings(load(Path(text)), settings)
        case (str() as text,) if "conversations:" in text:
            return _with_settings(parse(text), settings)
        case (dict() as whole,) if "conversations" in whole:
            return parse(yaml.safe_dump({**whole, **settings}))
    steps = [{"text": turn} if isinstance(turn, str) else turn for turn in turns]
    return parse(yaml.safe_dump({"conversations": [{"turns": steps}], **settings}))


def _with_settings(script: Script, settings: Mapping[str, Any]) -> Script:
    """A script with other settings. Raises `ConfigurationError`."""
    read = parse(yaml.safe_dump({"conversations": [{"turns": [{}]}], **settings}))
    return msgspec.structs.replace(script, **{name: getattr(read, name) for name in settings})
