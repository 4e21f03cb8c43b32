"""What the layers of the middleware add to a response: headers, and what is done before its last byte."""

import asyncio

import pytest

from proxy.api.response import OutgoingResponse
from proxy.app import SystemClock
from proxy.ports import NoObserver


class Sent:
    """The server's `send`, and a response that goes through it."""

    def __init__(self):
        self.messages = []
        self.response = OutgoingResponse(self.send, "r-1", NoObserver(), SystemClock(), 0.0)

    async def send(self, message):
        self.messages.append(message)

    async def start(self, *headers):
        await self.response.send({"type": "http.response.start", "status": 200, "headers": list(headers)})

    async def body(self, data=b"", *, more=False):
        await self.response.send({"type": "http.response.body", "body": data, "more_body": more})


async def test_a_header_of_a_layer_replaces_the_applications():
    sent = Sent()
    sent.response.headers += [(b"x-rate", b"9")]
    await sent.start((b"X-Rate", b"1"), (b"x-kept", b"1"))
    assert sent.messages[0]["headers"] == [(b"x-kept", b"1"), (b"x-rate", b"9"), (b"x-request-id", b"r-1")]


async def test_the_endings_come_before_the_last_byte_the_latest_first_and_once():
    sent = Sent()

    def ending(name):
        async def end():
            sent.messages.append(name)

        return end

    sent.response.before_end += [ending("lease"), ending("booking")]
    await sent.start()
    await sent.body(b"one", more=True)
    await sent.body(b"two")
    await sent.response.settle()
    assert [message if isinstance(message, str) else message.get("body") for message in sent.messages] == [
        None,
        b"one",
        "booking",
        "lease",
        b"two",
    ]
    assert sent.response.is_complete


async def test_an_ending_that_is_cancelled_is_awaited_once_more():
    sent, begun, released = Sent(), asyncio.Event(), []

    async def release():
        begun.set()
        await asyncio.sleep(60 if not released else 0)

    sent.response.before_end.append(release)
    await sent.start()
    sending = asyncio.ensure_future(sent.body())
    await begun.wait()
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    released.append(True)
    await sent.response.settle()
    assert sent.response.before_end == []
