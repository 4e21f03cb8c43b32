"""The last requests, kept in memory: so many of them, and so many bytes, whatever they were."""

from collections import deque
from typing import Final

import orjson

from proxy.core.chat import Json
from proxy.telemetry.story import Story

MOST_REQUESTS: Final = 500
MOST_BYTES: Final = 8 * 1024 * 1024


class Recent:
    """Implements `story.Reader` and `ports.History`."""

    def __init__(self, *, most_requests: int = MOST_REQUESTS, most_bytes: int = MOST_BYTES) -> None:
        self._most_requests = most_requests
        self._most_bytes = most_bytes
        self._open: dict[int, Story] = {}
        self._kept: deque[bytes] = deque()
        self._bytes = 0

    def begun(self, story: Story) -> None:
        """It is open, and shown as far as it has come; looking at the pages themselves is no news."""
        if not str(story.fields.get("path")).startswith("/debug"):
            self._open[id(story)] = story

    def ended(self, story: Story) -> None:
        """It is kept, and the oldest make room."""
        if self._open.pop(id(story), None) is None:
            return
        data = orjson.dumps(story.as_json(), default=str, option=orjson.OPT_NON_STR_KEYS)
        self._kept.append(data)
        self._bytes += len(data)
        while len(self._kept) > self._most_requests or self._bytes > self._most_bytes:
            self._bytes -= len(self._kept.popleft())

    def latest(self) -> list[Json]:
        """Open requests and the last ones that were answered, the newest first."""
        stories = [orjson.loads(data) for data in self._kept] + [story.as_json() for story in self._open.values()]
        return sorted(stories, key=lambda story: -story["began_at"])

    def find(self, request_id: str) -> Json | None:
        """The newest request of that id, if it is still remembered."""
        return next((story for story in self.latest() if story["request_id"] == request_id), None)
