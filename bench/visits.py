"""Visitors of every kind, at the same time and for as long as it is wanted; each answer is judged.

patient   asks and reads to the end: chat and responses, whole and streamed, looped and handed through, all models
guest     comes back: mixed turns, stored responses
leaver    goes at any moment, politely or not
slow      reads a long stream slowly, or not at all
mute      connects and says nothing, or half of a request, or drips
rude      has no key, too long a body, no JSON, no such model, or asks too often
"""

import asyncio
import random
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import httpx
import orjson

from bench.faulty import FAULTS
from bench.judging import Answer, Ask, fault_of

KEY, HASTY_KEY = "soak-client-key", "soak-hasty-key"
MAX_BODY = 1_000_000
# The slowest lawful answer takes some eight: three attempts with a second between them, a silence of two seconds in
# each of two turns, a tool that hangs for one.
BOUND_SECONDS = 20.0
_SLOW_SECONDS = 90.0
_CHAT, _RESPONSES = "/v1/chat/completions", "/v1/responses"
_GOOD = frozenset({200})
# What may become of a fault: it is gone at the next attempt, or it is told; or the upstream is left alone for a while.
# It has two seconds to answer, which on a busy machine it may need for other reasons.
_STATUSES: Mapping[str, frozenset[int]] = {
    **dict.fromkeys(FAULTS, frozenset({200, 502, 504})),
    "limited": frozenset({200, 429, 502, 504}),
    "refused": frozenset({200, 400, 502, 504}),
    "gone": frozenset({502}),
}
_MODELS = (*("well", "tools", "rescued") * 4, "gone", *FAULTS)
_WEIGHTS = {"patient": 60, "guest": 8, "leaver": 15, "slow": 1, "mute": 3, "rude": 13}
_ASK_USER = {
    "name": "ask_user", "description": "Asks.", "parameters": {"type": "object", "properties": {"word": {}}},
}  # fmt: skip


class Visitors:
    """All of them; `seen` counts what they met, `broken` says what should not have been."""

    def __init__(self, port: int) -> None:
        self.seen: Counter[str] = Counter()
        self.broken: list[str] = []
        self._port = port
        # Not kept until the proxy's idle timeout: a request that goes out as the connection is closed meets a reset.
        kept = httpx.Limits(max_connections=None, keepalive_expiry=2)
        self._client = self._made(limits=kept)
        small = [(socket.SOL_SOCKET, socket.SO_RCVBUF, 32768)]
        self._narrow = self._made(transport=httpx.AsyncHTTPTransport(socket_options=small, limits=kept))

    def _made(self, **options: Any) -> httpx.AsyncClient:
        url = f"http://127.0.0.1:{self._port}"
        return httpx.AsyncClient(base_url=url, timeout=httpx.Timeout(None), trust_env=False, **options)

    async def aclose(self) -> None:
        """Close what they have kept open."""
        await self._client.aclose()
        await self._narrow.aclose()

    async def come(self, many: int, seed: str, stop: asyncio.Event) -> None:
        """So many at a time, until `stop`."""
        async with asyncio.TaskGroup() as group:
            for number in range(many):
                group.create_task(Visitor(self, random.Random(f"{seed}:{number}")).stay(stop))  # noqa: S311 - dice

    async def ask(self, ask: Ask, *, pace: float = 0.0) -> Answer:
        """Ask, and read to the end; `pace`: seconds between two reads."""
        client = self._narrow if pace else self._client
        async with client.stream("POST", ask.path, content=ask.body, headers=ask.headers) as response:
            parts, whole = [], True
            try:
                async for part in response.aiter_raw():
                    parts.append(part)
                    await asyncio.sleep(pace)
            except httpx.RemoteProtocolError:
                whole = False
        return Answer(response.status_code, response.headers, b"".join(parts), whole)

    async def judged(self, ask: Ask, kind: str, *, pace: float = 0.0, bound: float = BOUND_SECONDS) -> Answer | None:
        """The same; what is wrong with the answer is remembered. None where there is none."""
        try:
            async with asyncio.timeout(bound):
                answer = await self.ask(ask, pace=pace)
            fault = fault_of(ask, answer)
        except TimeoutError:
            fault = f"no end within {bound} s"
        except httpx.HTTPError as exc:
            fault = repr(exc)
        if fault is None:
            self.seen[f"{kind}: {answer.status}"] += 1
            return answer
        self.seen[f"{kind}: broken"] += 1
        self.broken.append(f"{kind} {ask.path} {ask.body[:200]!r} {dict(ask.headers)}: {fault[:1000]}")
        return None

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A bare connection."""
        return await asyncio.open_connection("127.0.0.1", self._port)

    async def get(self, path: str, *, method: str = "GET") -> httpx.Response:
        """A request without a body."""
        return await self._client.request(method, path, headers={"authorization": f"Bearer {KEY}"})


class Visitor:
    """One of them, with dice of its own."""

    def __init__(self, visitors: Visitors, dice: random.Random) -> None:
        self._all = visitors
        self._dice = dice

    async def stay(self, stop: asyncio.Event) -> None:
        """One visit after the other."""
        kinds, weights = list(_WEIGHTS), list(_WEIGHTS.values())
        while not stop.is_set():
            (kind,) = self._dice.choices(kinds, weights)
            visit: Callable[[], Awaitable[None]] = getattr(self, f"_{kind}")
            await visit()
            await asyncio.sleep(self._dice.random() / 20)

    # -- requests --

    def chat(self, model: str, *, messages: list[Any] | None = None, stream: bool | None = None, **more: Any) -> Ask:
        """A chat completion."""
        word = self._word()
        body = {"model": model, "messages": messages or [{"role": "user", "content": f"Say {word}"}], **more}
        return self._made(_CHAT, body, word, model, stream=stream)

    def response(self, model: str, **more: Any) -> Ask:
        """A response."""
        word = self._word()
        body = {"model": model, "input": f"Say {word}", "store": self._coin(), **more}
        return self._made(_RESPONSES, body, word, model, stream=None)

    def _made(self, path: str, body: dict[str, Any], word: str, model: str, *, stream: bool | None) -> Ask:
        body["stream"] = self._coin() if stream is None else stream
        headers = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
        return Ask(path, orjson.dumps(body), word, _STATUSES.get(model, _GOOD), headers)

    def _any(self) -> Ask:
        model = self._dice.choice(_MODELS)
        ask = self.chat(model) if self._coin() else self.response(model)
        if model != "tools" and ask.path == _CHAT and self._coin():
            return replace(ask, headers={**ask.headers, "x-server-tools": "none"})
        return ask

    def _word(self) -> str:
        return f"word-{self._dice.getrandbits(48):012x}"

    def _coin(self) -> bool:
        return self._dice.random() < 0.5  # noqa: PLR2004 - a coin

    # -- visits --

    async def _patient(self) -> None:
        ask = self._any()
        model = orjson.loads(ask.body)["model"]
        await self._all.judged(ask, model)

    async def _guest(self) -> None:
        await (self._return_with_a_result() if self._coin() else self._return_to_a_response())

    async def _return_with_a_result(self) -> None:
        tools = [{"type": "function", "function": _ASK_USER}]
        ask = self.chat("mixed", tools=tools, stream=False)
        answer = await self._all.judged(ask, "mixed turn")
        if answer is None:
            return
        message = orjson.loads(answer.body)["choices"][0]["message"]
        (call,) = message["tool_calls"]
        result = {"role": "tool", "tool_call_id": call["id"], "content": ask.word}
        messages = [*orjson.loads(ask.body)["messages"], message, result]
        back = self.chat("mixed", messages=messages, tools=tools)
        await self._all.judged(replace(back, word=ask.word), "its result")

    async def _return_to_a_response(self) -> None:
        answer = await self._all.judged(replace(self.response("well", store=True, stream=False)), "stored")
        if answer is None or not answer.body.startswith(b"{"):
            return
        identity = orjson.loads(answer.body)["id"]
        await self._all.judged(self.response("tools", previous_response_id=identity), "continued")
        for method in ("GET", "DELETE"):
            found = await self._all.get(f"{_RESPONSES}/{identity}", method=method)
            self._all.seen[f"{method}: {found.status_code}"] += 1

    async def _leaver(self) -> None:
        ask = self._any() if self._coin() else self.chat("long", stream=True)
        with suppress(TimeoutError, httpx.HTTPError):
            async with asyncio.timeout(self._dice.random()):
                await self._all.ask(ask)
        self._all.seen["leaver"] += 1

    async def _slow(self) -> None:
        ask = self.chat("long", stream=True)
        if self._coin():
            await self._all.judged(ask, "slow reader", pace=0.1, bound=_SLOW_SECONDS)
            return
        _, writer = await self._all.connect()
        writer.write(_on_the_wire(ask))
        await asyncio.sleep(1 + 14 * self._dice.random())  # reads nothing at all
        await self._hang_up(writer)
        self._all.seen["reads nothing"] += 1

    async def _mute(self) -> None:
        reader, writer = await self._all.connect()
        request = _on_the_wire(self._any())
        writer.write(request[: self._dice.choice((0, 20, request.index(b"\r\n\r\n") + 9, len(request) - 1))])
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(self._dice.random() * 10):
                while await reader.read(1000):
                    pass
        await self._hang_up(writer)
        self._all.seen["mute"] += 1

    async def _hang_up(self, writer: asyncio.StreamWriter) -> None:
        if self._coin():
            writer.transport.abort()
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    async def _rude(self) -> None:
        ask = self.chat("well")
        wrong = {**ask.headers, "authorization": "Bearer soak-client-kez"}
        hasty = {**ask.headers, "authorization": f"Bearer {HASTY_KEY}"}
        kind, ask = self._dice.choice((
            ("wrong key", _refused(ask, 401, headers=wrong)),
            ("no JSON", _refused(ask, 400, body=ask.body[:-1])),
            ("no such model", _refused(self.chat("unheard-of"), 404)),
            ("too large", _refused(ask, 413, body=ask.body[:-1] + b" " * MAX_BODY + b"}")),
            ("hasty", replace(ask, headers=hasty, statuses=frozenset({200, 429}))),
        ))  # fmt: skip
        await self._all.judged(ask, kind)


def _refused(ask: Ask, status: int, **changes: Any) -> Ask:
    return replace(ask, statuses=frozenset({status}), **changes)


def _on_the_wire(ask: Ask) -> bytes:
    headers = {"host": "soak", "content-length": str(len(ask.body)), **ask.headers}
    lines = [f"POST {ask.path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    return "\r\n".join(lines).encode() + ask.body
