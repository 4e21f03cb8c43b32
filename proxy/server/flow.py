"""The flow of a client's connection, in both directions."""

import asyncio

# Bytes of a body that may wait for their reader. With more, reading pauses. uvicorn has the same limit.
HIGH_WATER = 64 * 1024


class Flow:
    """Pauses reading while a body is not taken or too many requests wait, and aborts if the client reads nothing.

    Attributes:
        write_paused: whether the buffer of the transport is full. `drain` waits until it has room.
        send_timer: runs while the client is watched for reading; otherwise None.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, send_timeout: float) -> None:
        self.write_paused = False
        self.send_timer: asyncio.TimerHandle | None = None
        self._transport = transport
        self._loop = loop
        self._send_timeout = send_timeout
        self._read_paused = False
        self._is_full = False  # as many requests wait as may
        self._writable = asyncio.Event()
        self._unsent = 0

    def pause_reading(self) -> None:
        """Read nothing until `resume_reading`."""
        if not self._read_paused:
            self._read_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Continue reading. This has no effect while the connection is full."""
        if self._read_paused and not self._is_full:
            self._read_paused = False
            self._transport.resume_reading()

    def fill(self) -> None:
        """Read nothing until `make_room`. `resume_reading` has no effect before that."""
        self._is_full = True
        self.pause_reading()

    def make_room(self) -> None:
        """Continue reading if the connection was full."""
        if self._is_full:
            self._is_full = False
            self.resume_reading()

    def pause_writing(self) -> None:
        """The buffer of the transport is full."""
        self.write_paused = True
        self._writable.clear()
        self.watch_sending()

    def resume_writing(self) -> None:
        """The client reads, or has left."""
        self.write_paused = False
        self._writable.set()
        if self.send_timer is not None:
            self.send_timer.cancel()
            self.send_timer = None

    async def drain(self) -> None:
        """Wait while writing is paused."""
        await self._writable.wait()

    def watch_sending(self) -> None:
        """Abort the connection if the client reads none of the bytes buffered now for `send_timeout` seconds."""
        if self.send_timer is not None:
            self.send_timer.cancel()
        unsent = self._unsent = self._transport.get_write_buffer_size()
        self.send_timer = self._loop.call_later(self._send_timeout, self._check_sending) if unsent else None

    def _check_sending(self) -> None:
        if self._transport.get_write_buffer_size() >= self._unsent:
            self._transport.abort()
        else:
            self.watch_sending()
