"""The count of tokens in a response that is relayed as it comes, whatever API it is of."""

import re
from typing import Any

import orjson

from proxy.loop.chat import Json

# With room for the chunk that holds it in a stream, and for what follows it.
_PART_BYTES = 8192
# No string of a JSON document can hold this: a quotation mark in it is escaped. Details are one level deep.
_USAGE = re.compile(rb'"usage"\s*:\s*(\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\})')


class UsageFinder:
    """Finds the last `usage` near either end of a response: of embeddings, legacy completions, images and the like.

    The vectors or texts between may be megabytes, and are not kept.

    Attributes:
        events: of a stream of server-sent events so far, its end mark excepted.
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
        """The count in the words of Chat Completions; None: there is none."""
        for part in (self._tail, self._head):
            for found in reversed(_USAGE.findall(part)):
                try:
                    counts: Json = orjson.loads(found)
                except orjson.JSONDecodeError:
                    continue
                return _as_chat(counts)
        return None


def _as_chat(counts: Json) -> Json:
    """Images and audio are counted in `input_tokens` and `output_tokens`, rankings in `total_tokens` alone."""
    read: Any = counts.get("prompt_tokens", counts.get("input_tokens"))
    wrote: Any = counts.get("completion_tokens", counts.get("output_tokens"))
    if read is None and wrote is None:
        read = counts.get("total_tokens")
    named = {"prompt_tokens": read, "completion_tokens": wrote}
    return {**counts, **{name: count for name, count in named.items() if isinstance(count, int)}}
