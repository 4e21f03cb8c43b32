"""The recordings of the last requests, kept until somebody asks for one as a case; bounded in number and bytes.

In one process they are kept as they are, and become a file when they are asked for. With several workers, whoever is
asked may be another one, so each writes its cases, masked, to the folder that the workers share.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from proxy.config.loaded import Loaded
from proxy.kit.recording import Recording
from proxy.kit.secrets import Secrets
from proxy.ports import Observer
from proxy.telemetry.case_file import CaseContext, encode
from proxy.wire.chat import ToolSpec

Tools: TypeAlias = Mapping[str, ToolSpec]

MOST_BYTES: Final = 64 * 1024 * 1024
MOST_CASES: Final = 500
# Another worker may still be writing the case of a request that has just ended.
_WAIT_SECONDS, _LOOKS = 2.0, 20


class _Kept(NamedTuple):
    recording: Recording
    context: CaseContext


class Cases:
    """The cases of all configurations of a process.

    Args:
        directory: where several workers share their cases; None: there is only one worker.
        version: of the proxy.
        observe: gets an event when a case could not be written.
        most_bytes: the bytes of all recordings together, those of open requests among them.
        most_cases: the number of complete ones.
    """

    def __init__(
        self,
        directory: str | None = None,
        *,
        version: str = "",
        observe: Observer,
        most_bytes: int = MOST_BYTES,
        most_cases: int = MOST_CASES,
    ) -> None:
        self.version = version
        self._most_bytes = most_bytes
        self._most_cases = most_cases
        self._bytes = 0
        self._lock = threading.Lock()  # the writer gives back the bytes of what it has written
        self._kept: deque[_Kept] = deque()
        self._folder = _Folder(Path(directory), most_bytes, most_cases, observe) if directory else None

    def reserve(self, size: int) -> bool:
        """Take so many bytes for a recording, for which the oldest ones are dropped; False: there are not so many."""
        with self._lock:
            while self._bytes + size > self._most_bytes and self._kept:
                self._bytes -= self._kept.popleft().recording.size
            if self._bytes + size > self._most_bytes:
                return False
            self._bytes += size
            return True

    def under(self, loaded: Loaded, tools: Callable[[], Tools], secrets: Callable[[], Secrets]) -> "CasesUnder":
        """The cases of requests that are answered by a configuration, with the tools and secrets of the moment."""
        return CasesUnder(self, loaded, tools, secrets)

    def add(self, recording: Recording, context: CaseContext) -> None:
        """Keep a complete recording; one whose request was refused before it was read has nothing to play."""
        if recording.method == "POST" and not recording.body.pieces:
            self._release(recording)
        elif self._folder is not None:
            self._folder.write(recording, context, self._release)
        else:
            with self._lock:
                self._kept.append(_Kept(recording, context))
                while len(self._kept) > self._most_cases:
                    self._bytes -= self._kept.popleft().recording.size

    async def find(self, request_id: str) -> bytes | None:
        """The case of the newest request with that id; None: it is not kept."""
        if self._folder is not None:
            return await self._folder.read(request_id)
        found = next((one for one in reversed(self._kept) if one.recording.request_id == request_id), None)
        return None if found is None else await asyncio.to_thread(encode, *found)

    def _release(self, recording: Recording) -> None:
        with self._lock:
            self._bytes -= recording.size


class CasesUnder(NamedTuple):
    """The cases of requests that are answered by one configuration. Implements `ports.Cases`."""

    cases: Cases
    loaded: Loaded
    tools: Callable[[], Tools]
    secrets: Callable[[], Secrets]

    def reserve(self, size: int) -> bool:
        """See `Cases.reserve`."""
        return self.cases.reserve(size)

    def keep(self, recording: Recording) -> None:
        """Keep a recording that is complete."""
        self.cases.add(recording, CaseContext(self.loaded, self.tools(), self.secrets().known, self.cases.version))

    async def find(self, request_id: str) -> bytes | None:
        """See `Cases.find`."""
        return await self.cases.find(request_id)


class _Folder:
    """Cases as files, of which each worker writes its own in a thread and bounds their number and size."""

    def __init__(self, directory: Path, most_bytes: int, most_cases: int, observe: Observer) -> None:
        self._directory = directory
        self._most_bytes = most_bytes
        self._most_cases = most_cases
        self._observe = observe
        self._written: deque[tuple[Path, int]] = deque()
        self._bytes = 0
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="toolproxy-cases")

    def write(self, recording: Recording, context: CaseContext, written: Callable[[Recording], None]) -> None:
        """Write a case soon, and call `written` then."""

        def work() -> None:
            try:
                self._write(_name_of(recording.request_id), encode(recording, context))
            except Exception:  # noqa: BLE001 - the disk may be full; the log has it, because nobody waits for this thread
                self._observe("case.failed", exc_info=True, request_id=recording.request_id)
            finally:
                written(recording)

        self._thread.submit(work)

    def _write(self, name: str, content: bytes) -> None:
        path = self._directory / name
        unfinished = path.with_suffix(".part")
        unfinished.write_bytes(content)
        unfinished.replace(path)
        self._written.append((path, len(content)))
        self._bytes += len(content)
        while len(self._written) > self._most_cases or self._bytes > self._most_bytes:
            oldest, size = self._written.popleft()
            self._bytes -= size
            oldest.unlink(missing_ok=True)

    async def read(self, request_id: str) -> bytes | None:
        """The case of a request, whichever worker has answered it."""
        path = self._directory / _name_of(request_id)
        for _ in range(_LOOKS):
            with suppress(FileNotFoundError):
                return await asyncio.to_thread(path.read_bytes)
            await asyncio.sleep(_WAIT_SECONDS / _LOOKS)
        return None


def _name_of(request_id: str) -> str:
    return f"case-{sha256(request_id.encode()).hexdigest()[:32]}.json"
