"""An upstream that has every fault there is, and the service of a tool, which is no better: for `python -m bench.soak`.

What it does is in the name of the model that it is asked for; it says the word that it finds in the request.

well            an answer, whole or as a stream
long            a stream of 1 MB, for those who read slowly
tools           asks for `current_time` and `lookup` first; given their results, the answer
mixed           asks for `current_time` and the client's own `ask_user` first
FAULT           more often than not that fault, else as `well`; in half of all cases after a turn of `tools`

    python -m bench.faulty SEED      prints its port; serves until it is told to stop
"""

import asyncio
import random
import re
import socket
import struct
import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import orjson
import uvloop

WORD = re.compile(r"word-[0-9a-f]{12}")
FAULTS = (
    "status", "limited", "refused", "silent", "stalled", "reset", "cut", "unfinished", "truncated", "garbage", "html",
    "apologetic", "endless",
)  # fmt: skip
_OFTEN = 0.6
# Less than the proxy keeps an idle connection for: so both kinds of end are met.
_IDLE_SECONDS = 2.0
_LONG = 50  # pieces, of 20 KB each
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER with no time: closed with a reset


class Conversation:
    """One connection of the proxy's."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, dice: random.Random) -> None:
        self._reader = reader
        self._writer = writer
        self._dice = dice
        self._word = ""
        self._stream = False

    async def hold(self) -> None:
        """Requests and answers, until one of both goes."""
        try:
            while await self._answer_one():
                pass
        except (OSError, asyncio.IncompleteReadError, TimeoutError):
            pass
        finally:
            self._writer.close()

    async def _answer_one(self) -> bool:
        """Answer the next request; False where the connection ends with it."""
        async with asyncio.timeout(_IDLE_SECONDS):
            head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        length = re.search(r"content-length: *(\d+)", head, re.IGNORECASE)
        body = await self._reader.readexactly(int(length[1]) if length else 0)
        if head.startswith("GET"):
            return await self._look_up(head)
        asked = orjson.loads(body)
        self._word = WORD.findall(body.decode())[-1]
        self._stream = bool(asked.get("stream"))
        kind = asked["model"]
        if kind not in FAULTS:
            return await self._well(asked, kind)
        if self._dice.random() > _OFTEN:
            return await self._well(asked, "well")
        if self._dice.random() < 0.5 and asked.get("tools") and asked["messages"][-1]["role"] != "tool":  # noqa: PLR2004
            return await self._well(asked, "tools")
        fault: Callable[[], Awaitable[bool]] = getattr(self, f"_{kind}")
        return await fault()

    # -- as it should be --

    async def _well(self, asked: Any, kind: str) -> bool:
        """A turn that is whole."""
        word = self._word
        calls = _calls(kind, word) if asked["messages"][-1]["role"] != "tool" else []
        if not self._stream:
            return await self._json(200, completion(word, calls))
        await self._send(_STREAM)
        for event in events(word, calls, pieces=_LONG if kind == "long" else self._dice.randrange(1, 20)):
            await self._send(_chunked(event))
            await asyncio.sleep(0 if kind == "long" else self._dice.random() / 50)
        return await self._send(b"0\r\n\r\n")

    async def _look_up(self, head: str) -> bool:
        """The tool's service."""
        word = WORD.findall(head)[0]
        match self._dice.randrange(10):
            case 0:
                return await self._json(500, {"error": "out of order"})
            case 1:
                return await self._silent()
            case 2:
                return await self._reset()
            case 3:
                return await self._json(200, {"found": word, "more": "x" * 200_000})
            case 4:
                await asyncio.sleep(self._dice.random() / 2)
        return await self._json(200, {"found": word})

    # -- as it should not --

    async def _status(self) -> bool:
        return await self._json(self._dice.choice((500, 502, 503, 529)), {"error": {"message": "no", "code": "busy"}})

    async def _limited(self) -> bool:
        wait = self._dice.choice(("0", "1", "60"))
        return await self._json(429, {"error": {"message": "slower", "code": "1302"}}, f"retry-after: {wait}\r\n")

    async def _refused(self) -> bool:
        return await self._json(400, {"error": {"message": "not like that", "code": "1210"}})

    async def _silent(self) -> bool:
        await self._reader.read(1)  # until the proxy has enough
        return False

    async def _stalled(self) -> bool:
        await self._begin()
        return await self._silent()

    async def _reset(self) -> bool:
        if self._dice.random() < 0.5:  # noqa: PLR2004
            await self._begin()
        self._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        return False

    async def _cut(self) -> bool:
        await self._begin()
        return False

    async def _unfinished(self) -> bool:
        if not self._stream:
            return await self._cut()
        await self._begin()
        return await self._send(b"0\r\n\r\n")

    async def _truncated(self) -> bool:
        body = orjson.dumps(completion(self._word, []))
        broken = body[: self._dice.randrange(1, len(body))]
        if self._stream:
            await self._begin()
            return await self._send(_chunked(b"data: " + broken + b"\n\n") + b"0\r\n\r\n")
        return await self._whole(200, "application/json", broken)

    async def _garbage(self) -> bool:
        noise = self._dice.randbytes(self._dice.randrange(1, 5000))
        if self._stream:
            await self._send(_STREAM)
            return await self._send(_chunked(b"data: " + noise + b"\n\n" + noise) + b"0\r\n\r\n")
        return await self._whole(200, "application/json", noise)

    async def _html(self) -> bool:
        return await self._whole(200, "text/html", b"<html>We are moving</html>")

    async def _apologetic(self) -> bool:
        error = {"error": {"message": "sorry", "code": "1234"}}
        if not self._stream:
            return await self._json(200, error)
        await self._begin()
        return await self._send(_chunked(b"data: " + orjson.dumps(error) + b"\n\n") + b"0\r\n\r\n")

    async def _endless(self) -> bool:
        """An event that is longer than anybody may keep it."""
        await self._send(_STREAM)
        for _ in range(9):  # MiB; an event may have eight
            await self._send(_chunked(b"x" * (1 << 20)))
        return await self._silent()

    async def _begin(self) -> None:
        """Some of an answer."""
        if not self._stream:
            body = orjson.dumps(completion(self._word, []))
            await self._send(_head(200, "application/json", len(body)) + body[: self._dice.randrange(len(body))])
            return
        some = list(events(self._word, [], pieces=10))[: self._dice.randrange(1, 9)]
        await self._send(_STREAM + b"".join(map(_chunked, some)))

    # -- on the wire --

    async def _json(self, status: int, payload: Any, more: str = "") -> bool:
        return await self._whole(status, "application/json", orjson.dumps(payload), more)

    async def _whole(self, status: int, kind: str, body: bytes, more: str = "") -> bool:
        return await self._send(_head(status, kind, len(body), more) + body)

    async def _send(self, data: bytes) -> bool:
        self._writer.write(data)
        await self._writer.drain()
        return True


_STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def _head(status: int, kind: str, length: int, more: str = "") -> bytes:
    return f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n{more}\r\n".encode()


def _chunked(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _calls(kind: str, word: str) -> list[dict[str, Any]]:
    names = {"tools": ("current_time", "lookup"), "mixed": ("current_time", "ask_user")}.get(kind, ())
    arguments = {"current_time": "{}"}
    return [
        {
            "id": f"call_{at}",
            "type": "function",
            "function": {"name": name, "arguments": arguments.get(name, f'{{"word": "{word}"}}')},
        }
        for at, name in enumerate(names)
    ]


def completion(word: str, calls: list[dict[str, Any]]) -> dict[str, Any]:
    """A whole answer."""
    message = {"role": "assistant", "content": None if calls else f"It is {word}."}
    if calls:
        message["tool_calls"] = calls  # type: ignore[assignment]
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    return {"id": "up-1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage}


def events(word: str, calls: list[dict[str, Any]], *, pieces: int) -> Iterator[bytes]:
    """The same as a stream."""
    yield _event({"role": "assistant", "content": ""})
    if calls:
        yield _event({"tool_calls": [{"index": at, **call} for at, call in enumerate(calls)]})
    else:
        yield _event({"content": "It is "})
        yield _event({"content": f"{word}."})
        for _ in range(pieces):
            yield _event({"content": " And so on." + (" " * 20_000 if pieces == _LONG else "")})
    yield _event({}, "tool_calls" if calls else "stop")
    yield b"data: [DONE]\n\n"


def _event(delta: dict[str, Any], reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    chunk = {"id": "up-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    return b"data: " + orjson.dumps(chunk) + b"\n\n"


async def _serve(seed: str) -> None:
    dice = random.Random(seed)  # noqa: S311 - faults, not secrets

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await Conversation(reader, writer, dice).hold()

    server = await asyncio.start_server(hold, "127.0.0.1", 0, backlog=1024)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(sys.argv[1]))
