"""An upstream's answer in a case as the HTTP response that it is: status, headers, and pieces with their pauses."""

from base64 import b64decode
from collections.abc import Iterator, Sequence
from typing import Any

import orjson
from msgspec import Struct

from proxy.cases import turns
from proxy.wire.chat import Json


class HttpReply(Struct, frozen=True):
    """An HTTP response.

    Attributes:
        answer: the answer of the case that it is.
        status: the status.
        headers: the headers.
        parts: the pieces of the body, and between them pauses in seconds.
    """

    answer: Json
    status: int
    headers: Sequence[tuple[bytes, bytes]]
    parts: Sequence[bytes | float]


def reply_of(answer: Json, request: Json) -> HttpReply:
    """The response to a request: a turn in short, or status, headers and pieces as they were recorded."""
    streamed, model = request.get("stream") is True, str(request.get("model"))
    if "by_stream" in answer:
        answer = answer["by_stream"]["stream" if streamed else "whole"]
    parts, kind = _parts(answer, model, streamed=streamed)
    headers = {"content-type": kind, **answer.get("headers", {})}
    return HttpReply(
        answer,
        answer.get("status", 200),
        [(name.encode(), value.encode()) for name, value in headers.items() if value is not None],
        [*_timed(answer, (part if isinstance(part, int | float) else turns.written(part, model) for part in parts))],
    )


def content_of(holder: Json) -> bytes:
    """The bytes of a body: `body` as JSON, `raw` as text, `base64`."""
    if "body" in holder:
        return orjson.dumps(holder["body"])
    return b64decode(holder["base64"]) if "base64" in holder else holder.get("raw", "").encode()


def parsed(body: bytes) -> Any:
    """A body as JSON; None if it is something else."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return None


def _parts(answer: Json, model: str, *, streamed: bool) -> tuple[Sequence[Any], str]:
    """The pieces of an answer, and its content type."""
    if "pieces" in answer:
        return answer["pieces"], "text/event-stream"
    if {"body", "raw"} & answer.keys():
        return [content_of(answer).decode()], "application/json"
    if answer.get("form", "stream" if streamed else "whole") == "stream":
        return [*turns.pieces(answer)], "text/event-stream"
    return [orjson.dumps(turns.whole(answer, model)).decode()], "application/json"


def _timed(answer: Json, parts: Iterator[bytes | float]) -> Iterator[bytes | float]:
    """The parts of an answer with its pauses, `delay` and `pace`; a recorded one has none, or has those of 0.2."""
    if "asked" in answer:
        yield from (part for part in parts if isinstance(part, bytes))
        return
    yield answer.get("delay", 0)
    for part in parts:
        yield part
        if isinstance(part, bytes):
            yield answer.get("pace", 0)
