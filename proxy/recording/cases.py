"""The recordings of the last requests, kept until somebody asks for one as a case; bounded in number and bytes.

In one process they are kept as they are, and become a file when they are asked for. With several workers another one
may be asked, so each writes its cases, masked, to the folder that the workers share.
"""

import asyncio
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from proxy.config.loaded import Loaded
from proxy.kit.last_entries import Folder, Memory
from proxy.kit.secrets import Secrets
from proxy.ports import Observer
from proxy.recording.case_file import CaseContext, encode
from proxy.recording.recording import MOST_BYTES as MOST_BYTES_OF_ONE
from proxy.recording.recording import Recording
from proxy.wire.chat import ToolSpec
from proxy.wire.errors import CaseTooLarge

Tools: TypeAlias = Mapping[str, ToolSpec]

MOST_BYTES: Final = 64 * 1024 * 1024
MOST_CASES: Final = 500
_PART_BYTES: Final = MOST_BYTES // 2  # a worker has two files
# Another worker may still be writing the case of a request that has just ended.
_WAIT_SECONDS, _LOOKS = 2.0, 8
_TOO_LARGE: Final = b"too large "


class _Kept(NamedTuple):
    recording: Recording
    context: CaseContext


class KeptCases:
    """The cases of all configurations of a process.

    Cases are made one at a time, in a thread beside the event loop: clients choose how large they are.

    Args:
        directory: where several workers share their cases; None: there is only one worker.
        version: of the proxy.
        observe: gets an event when a case could not be written.
        most_bytes: the bytes of all recordings together, those of open requests among them.
    """

    def __init__(
        self,
        directory: str | None = None,
        *,
        version: str = "",
        observe: Observer,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self.version = version
        self._observe = observe
        self._most_bytes = most_bytes
        self._open_bytes = 0
        self._lock = threading.Lock()  # the thread gives back the bytes of a recording that it has written
        self._kept: Memory[_Kept] = Memory(MOST_CASES, most_bytes, lambda kept: kept.recording.reserved)
        self._folder = Folder(Path(directory), "cases", part_bytes=_PART_BYTES) if directory else None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="toolproxy-cases")

    def reserve(self, size: int) -> bool:
        """Take so many bytes for an open recording, for which old ones are dropped; False: there are not so many."""
        with self._lock:
            if self._open_bytes + size > self._most_bytes:
                return False
            self._open_bytes += size
            self._kept.make_room(self._open_bytes)
            return True

    def add(self, recording: Recording, context: CaseContext) -> None:
        """Keep a recording that has ended, if it can be a case."""
        can_be_case = _can_be_case(recording)
        if self._folder is not None and can_be_case:
            self._thread.submit(self._write, self._folder, recording, context)
            return
        with self._lock:
            self._open_bytes -= recording.reserved
            if can_be_case:
                self._kept.add(_Kept(recording, context))

    async def find(self, request_id: str) -> bytes | None:
        """The case of the newest request with that id; None: it is not kept. Raises `CaseTooLarge`."""
        for _ in range(1 if self._folder is None else _LOOKS):
            case = await asyncio.get_running_loop().run_in_executor(self._thread, self._case, request_id)
            if case is not None or self._folder is None:
                return case
            await asyncio.sleep(_WAIT_SECONDS / _LOOKS)
        return None

    def _case(self, request_id: str) -> bytes | None:
        if self._folder is not None:
            return _newest(self._folder, _name_of(request_id))
        kept = [one for one in self._kept if one.recording.request_id == request_id]
        return encode(*kept[-1]) if kept else None

    def _write(self, folder: Folder, recording: Recording, context: CaseContext) -> None:
        try:
            line = _line_of(recording, context)
            folder.add(b"%s %018.6f %s" % (_name_of(recording.request_id), recording.began_at, line))
        except Exception:  # noqa: BLE001 - the disk may be full; the log has it, because nobody waits for this thread
            self._observe("case.failed", exc_info=True, request_id=recording.request_id)
        finally:
            with self._lock:
                self._open_bytes -= recording.reserved


class CasesUnder(NamedTuple):
    """The cases of requests that are answered by one configuration. Implements `ports.Cases`."""

    cases: KeptCases
    loaded: Loaded
    tools: Callable[[], Tools]
    secrets: Callable[[], Secrets]

    def reserve(self, size: int) -> bool:
        """Reserve memory for a recording of this size, if there is room. False: there is none."""
        return self.cases.reserve(size)

    def keep(self, recording: Recording) -> None:
        """Keep a recording that has ended."""
        self.cases.add(recording, CaseContext(self.loaded, self.tools(), self.secrets().known, self.cases.version))

    async def find(self, request_id: str) -> bytes | None:
        """The case of a request as JSON. None: it was not kept. Raises `CaseTooLarge`."""
        return await self.cases.find(request_id)


def _can_be_case(recording: Recording) -> bool:
    """Whether a recording is kept: not if its request was refused before it was read, or memory lacked for a part."""
    if recording.is_complete:
        return recording.method != "POST" or bool(recording.body)
    return recording.size > MOST_BYTES_OF_ONE  # it is said how large it is


def _name_of(request_id: str) -> bytes:
    return sha256(request_id.encode()).hexdigest()[:32].encode()


def _line_of(recording: Recording, context: CaseContext) -> bytes:
    """A case on one line: JSON, whose own line breaks become another white space, or the size of one too large."""
    try:
        return encode(recording, context).replace(b"\n", b"\r")
    except CaseTooLarge as exc:
        return _TOO_LARGE + str(exc.size).encode()


def _newest(entries: Iterable[bytes], name: bytes) -> bytes | None:
    """The newest case of that name. Raises `CaseTooLarge`."""
    found = max((entry for entry in entries if entry.startswith(name)), default=None)
    if found is None:
        return None
    _, _, case = found.split(b" ", 2)
    if case.startswith(_TOO_LARGE):
        raise CaseTooLarge(int(case.removeprefix(_TOO_LARGE)), MOST_BYTES_OF_ONE)
    return case.replace(b"\r", b"\n")
