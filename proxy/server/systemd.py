"""Messages to systemd from a service with `Type=notify` (sd_notify(3)). Without systemd, nothing is sent."""

import os
import socket
import time
from contextlib import suppress


def notify(*states: str) -> None:
    """Send the state of this process to systemd, such as `READY=1`. A missing socket is no fault."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address[:1] not in ("/", "@"):
        return
    # An `@` means the zero byte of an abstract socket's name.
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto("\n".join(states).encode(), address.replace("@", "\0", 1) if address[0] == "@" else address)


def notify_reloading() -> None:
    """Tell systemd that a reload has begun. `READY=1` ends it."""
    notify("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")
