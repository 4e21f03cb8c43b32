"""An upstream's answer in a case as the HTTP response that it is: status, headers, and pieces with their pauses."""

import asyncio
from base64 import b64decode
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, Final

import httpx
import orjson
from msgspec import Struct

from proxy.cases import turns
from proxy.wire.chat import Json

_PATIENCE: Final = 5.0  # seconds: a reader that stopped early when the case was recorded has to stop within them


class HttpReply(Struct, frozen=True):
    """An HTTP response of a fake server; its parts raise `httpx.HTTPError` where the body has no end."""

    status: int
    headers: Sequence[tuple[bytes, bytes]]
    parts: AsyncIterator[bytes]


async def parts_of(*parts: bytes) -> AsyncIterator[bytes]:
    """The parts of a body that is there already."""
    for part in parts:
        yield part


def json_reply(status: int, value: Any) -> HttpReply:
    """A response of JSON."""
    return HttpReply(status, [(b"content-type", b"application/json")], parts_of(orjson.dumps(value)))


async def reply_of(answer: Json, request: Json, failure: Exception | None) -> HttpReply:
    """The response to a request: a turn in short, or status, headers and pieces as they were recorded.

    Args:
        answer: of the case.
        request: the body of the request.
        failure: with which the answer ends; raised here if it has no piece before that.
    """
    streamed, model = request.get("stream") is True, str(request.get("model"))
    if "by_stream" in answer:
        answer = answer["by_stream"]["stream" if streamed else "whole"]
    pieces, kind = _pieces(answer, model, streamed=streamed)
    parts = _parts(answer, pieces, model, failure)
    first = await anext(parts, b"")
    headers = {"content-type": kind, **answer.get("headers", {})}
    lines = [(name.encode(), value.encode()) for name, value in headers.items() if value is not None]
    return HttpReply(answer.get("status", 200), lines, _body(first, parts, is_cut=bool(answer.get("cut"))))


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


def _pieces(answer: Json, model: str, *, streamed: bool) -> tuple[Iterable[Any], str]:
    """The pieces of an answer, and its content type."""
    if "pieces" in answer:
        return answer["pieces"], "text/event-stream"
    if {"body", "raw"} & answer.keys():
        return [content_of(answer).decode()], "application/json"
    if answer.get("form", "stream" if streamed else "whole") == "stream":
        return turns.pieces(answer), "text/event-stream"
    return [orjson.dumps(turns.whole(answer, model)).decode()], "application/json"


async def _parts(answer: Json, pieces: Iterable[Any], model: str, failure: Exception | None) -> AsyncIterator[bytes]:
    """The pieces of an answer with its pauses, `delay` and `pace`; a recorded one has none, or has those of 0.2."""
    has_pauses = "asked" not in answer
    if has_pauses:
        await asyncio.sleep(answer.get("delay", 0))
    for piece in pieces:
        if not isinstance(piece, int | float):
            yield turns.written(piece, model)
        if has_pauses:
            await asyncio.sleep(piece if isinstance(piece, int | float) else answer.get("pace", 0))
    if answer.get("left"):
        await asyncio.sleep(_PATIENCE)  # then, the rest was not read
        raise httpx.ReadError("The case has no more of this answer.")
    if failure is not None:
        raise failure


async def _body(first: bytes, rest: AsyncIterator[bytes], *, is_cut: bool) -> AsyncIterator[bytes]:
    if first:
        yield first
    async for part in rest:
        yield part
    if is_cut:
        raise httpx.RemoteProtocolError("The body has no end.")
