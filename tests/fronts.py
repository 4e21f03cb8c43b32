"""What stands in front of the proxy: real nginx, real HAProxy, with the configurations of deploy/."""

import asyncio
import os
import shutil
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.free_port import free_port

DEPLOY = Path(__file__).parent.parent / "deploy"
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"  # where servers are, for those who are not root


def found(command):
    return pytest.mark.skipif(shutil.which(command, path=_PATH) is None, reason=f"there is no {command} here")


@asynccontextmanager
async def nginx(tmp_path, *replicas):
    """The URL of nginx in front of one replica."""
    port = free_port()
    snippet = (DEPLOY / "nginx" / "toolproxy.conf").read_text()
    (address,) = _addresses(replicas)
    (tmp_path / "toolproxy.conf").write_text(
        _replaced(snippet, {"127.0.0.1:8080": address, "listen 80;": f"listen 127.0.0.1:{port};"})
    )
    temporary = "".join(
        f"{kind}_temp_path {tmp_path}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    main = tmp_path / "nginx.conf"
    main.write_text(
        f"daemon off; pid {tmp_path}/pid; error_log {tmp_path}/error.log; events {{}}\n"
        f"http {{ access_log off; {temporary} include {tmp_path}/toolproxy.conf; }}\n"
    )
    command = ["nginx", "-p", str(tmp_path), "-c", str(main)]
    async with _front(command, check=[*command, "-t"], port=port) as url:
        yield url


@asynccontextmanager
async def haproxy(tmp_path, *replicas):
    """The URL of HAProxy in front of one replica or two."""
    port = free_port()
    addresses = _addresses(replicas)
    snippet = (DEPLOY / "haproxy" / "haproxy.cfg").read_text()
    config = tmp_path / "haproxy.cfg"
    changed = {"127.0.0.1:8080": addresses[0], "127.0.0.1:8081": addresses[-1], "bind :80": f"bind 127.0.0.1:{port}"}
    config.write_text(_replaced(snippet, changed))
    command = ["haproxy", "-f", str(config)]
    async with _front(command, check=[*command, "-c"], port=port) as url:
        yield url


@asynccontextmanager
async def _front(command, *, check, port):
    environ = {**os.environ, "PATH": _PATH}
    quiet = {"stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.STDOUT, "env": environ}
    checked = await asyncio.create_subprocess_exec(*check, **quiet)
    said, _ = await checked.communicate()
    assert checked.returncode == 0, said.decode()
    running = await asyncio.create_subprocess_exec(*command, **{**quiet, "stdout": asyncio.subprocess.DEVNULL})
    try:
        await _reachable(port)
        yield f"http://127.0.0.1:{port}"
    finally:
        running.terminate()
        await running.wait()


def _addresses(urls):
    return [url.removeprefix("http://") for url in urls]


def _replaced(text, changed):
    for before, after in changed.items():
        assert before in text
        text = text.replace(before, after)
    return text


async def _reachable(port):
    async with asyncio.timeout(10):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.02)
            else:
                writer.close()
                return
