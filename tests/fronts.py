"""What stands in front of the proxy: real nginx, HAProxy and Caddy, with the configurations of deploy/."""

import asyncio
import os
import pwd
import shutil
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.free_port import free_port

DEPLOY = Path(__file__).parent.parent / "deploy"
_USER = pwd.getpwuid(os.geteuid()).pw_name  # who may write into a test's folder
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"  # where servers are, for those who are not root


def found(command):
    return pytest.mark.skipif(shutil.which(command, path=_PATH) is None, reason=f"there is no {command} here")


@asynccontextmanager
async def nginx(tmp_path, *replicas):
    """The URL of nginx in front of one replica or two."""
    port = free_port()
    site = _shipped("nginx/toolproxy.conf", replicas, {"listen 80;": f"listen 127.0.0.1:{port};"})
    (tmp_path / "toolproxy.conf").write_text(site)
    temporary = "".join(
        f"{kind}_temp_path {tmp_path}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    main = tmp_path / "nginx.conf"
    main.write_text(
        f"daemon off; user {_USER}; pid {tmp_path}/pid; error_log {tmp_path}/error.log; events {{}}\n"
        f"http {{ access_log off; {temporary} include {tmp_path}/toolproxy.conf; }}\n"
    )
    command = ["nginx", "-p", str(tmp_path), "-c", str(main)]
    async with _front(tmp_path, command, check=[*command, "-t"], port=port) as url:
        yield url


@asynccontextmanager
async def haproxy(tmp_path, *replicas):
    """The URL of HAProxy in front of one replica or two."""
    port = free_port()
    config = tmp_path / "haproxy.cfg"
    config.write_text(_shipped("haproxy/haproxy.cfg", replicas, {"bind :80": f"bind 127.0.0.1:{port}"}))
    command = ["haproxy", "-f", str(config)]
    async with _front(tmp_path, command, check=[*command, "-c"], port=port) as url:
        yield url


@asynccontextmanager
async def caddy(tmp_path, *replicas):
    """The URL of Caddy in front of one replica or two."""
    port = free_port()
    site = _shipped("caddy/Caddyfile", replicas, {"toolproxy.example.com": f"http://:{port}"})
    config = tmp_path / "Caddyfile"
    config.write_text(f"{{\n\tadmin off\n\tdefault_bind 127.0.0.1\n}}\n{site}")
    command = ["caddy", "run", "--adapter", "caddyfile", "--config", str(config)]
    check = ["caddy", "validate", *command[2:]]
    async with _front(tmp_path, command, check=check, port=port) as url:
        yield url


@asynccontextmanager
async def _front(home, command, *, check, port):
    environ = {**os.environ, "PATH": _PATH, "HOME": str(home)}
    checked = await asyncio.create_subprocess_exec(
        *check, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, env=environ
    )
    said, _ = await checked.communicate()
    assert checked.returncode == 0, said.decode()
    with (home / "front.log").open("wb") as log:
        running = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log, env=environ)
    try:
        await _reachable(port)
        yield f"http://127.0.0.1:{port}"
    finally:
        running.terminate()
        await running.wait()


def _shipped(path, replicas, changed):
    """A configuration of deploy/ with these replicas (one stands for both), and changed where a test has to."""
    first, *others = [url.removeprefix("http://") for url in replicas]
    text = (DEPLOY / path).read_text()
    for before, after in {"127.0.0.1:8080": first, "127.0.0.1:8081": [first, *others][-1], **changed}.items():
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
