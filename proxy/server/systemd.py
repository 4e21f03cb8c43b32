"""What systemd is told of a service with `Type=notify` (sd_notify(3)); without systemd, nothing is sent."""

import os
import socket
import time
from contextlib import suppress


def notify(*states: str) -> None:
    """Tell systemd about the state of this process, such as `READY=1`; a socket that is gone is no fault."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address[:1] not in ("/", "@"):
        return
    # An `@` stands for the zero byte of an abstract socket's name.
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto("\n".join(states).encode(), address.replace("@", "\0", 1) if address[0] == "@" else address)


def notify_reloading() -> None:
    """Tell systemd that a reload has begun; `READY=1` ends it."""
    notify("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")
