"""A real redis-server on loopback, which tests may kill and start again."""

import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest

from tests.free_port import free_port

_START_SECONDS = 10


class RedisServer:
    """One server with nothing on disk: what it is started with again is empty."""

    def __init__(self, folder: Path, *, password: str = "", certificate: Path | None = None) -> None:
        self._folder = folder
        self._password = password
        self._certificate = certificate  # a file with a key beside it: TLS is spoken, and nothing else
        self._process = None
        self.port = free_port()
        self.url = f"redis://{f':{password}@' if password else ''}127.0.0.1:{self.port}/0"

    def start(self) -> "RedisServer":
        plain, tls = (0, self.port) if self._certificate else (self.port, 0)
        options = [
            "--port",
            str(plain),
            "--tls-port",
            str(tls),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
        ]
        options += ["--requirepass", self._password] if self._password else []
        if self._certificate:
            options += ["--tls-cert-file", str(self._certificate), "--tls-key-file", str(self._certificate)]
            options += ["--tls-auth-clients", "no"]
        self._process = subprocess.Popen(
            [executable(), *options], cwd=self._folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + _START_SECONDS
        while not self._answers():
            assert self._process.poll() is None, "redis-server has stopped: is its port taken?"
            assert time.monotonic() < deadline, "redis-server does not start"
            time.sleep(0.01)  # nothing tells when another program is ready
        return self

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                if self._certificate:
                    return True
                connection.sendall(b"PING\r\n")
                return connection.recv(1) in (b"+", b"-")
        except OSError:
            return False


def executable() -> str:
    """Where it is; without it the test is skipped, and the report says so."""
    found = shutil.which("redis-server")
    if found is None:
        pytest.skip("this machine has no redis-server")
    return found
