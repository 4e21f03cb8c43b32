"""Finds the count of tokens in a response that is relayed unchanged, of any API."""

import re
from typing import Any

import orjson

from proxy.wire.chat import Json

# Enough for the chunk of a stream that holds the usage, and for the chunks that follow.
_PART_BYTES = 8192
# No string in a JSON document can match this, because its quotation marks are escaped. Details are one level deep.
_USAGE = re.compile(rb'"usage"\s*:\s*(\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\})')


class UsageFinder:
    """Finds the last `usage` near either end of a response: of embeddings, legacy completions, images and the like.

    The vectors or texts between the two ends may have megabytes, and are not kept.

    Attributes:
        events: the number of server-sent events so far, without the end mark.
    """

    def __init__(self) -> None:
        self._head = b""
        self._tail = b""
        self.events = 0

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the response."""
        self.events += data.count(b"data:") - data.count(b"data: [DONE]")
        if len(self._head) < _PART_BYTES:
            self._head += data[: _PART_BYTES - len(self._head)]
        self._tail = (self._tail + data)[-_PART_BYTES:]

    def usage(self) -> Json | None:
        """The count in the form of Chat Completions; None if the response has none."""
        for part in (self._tail, self._head):
            for found in reversed(_USAGE.findall(part)):
                try:
                    counts: Json = orjson.loads(found)
                except orjson.JSONDecodeError:
                    continue
                return _as_chat(counts)
        return None


def _as_chat(counts: Json) -> Json:
    """A count in the form of Chat Completions.

    APIs for images and audio count `input_tokens` and `output_tokens`, rankings only `total_tokens`.
    """
    read: Any = counts.get("prompt_tokens", counts.get("input_tokens"))
    wrote: Any = counts.get("completion_tokens", counts.get("output_tokens"))
    if read is None and wrote is None:
        read, wrote = counts.get("total_tokens"), 0
    return {**counts, "prompt_tokens": read, "completion_tokens": wrote}
