"""Ports for servers that want to be told theirs."""

import random
import socket
from contextlib import suppress


def free_port() -> int:
    """One that the system gives to nobody else meanwhile: those that it chooses itself begin above."""
    while True:
        port = random.randint(15_000, 32_000)
        with socket.socket() as free, suppress(OSError):
            free.bind(("127.0.0.1", port))
            return port
