"""The container image as orchestrators run it: `make image-test`, with podman or docker; not a part of the suite.

IMAGE is the image, ENGINE the command, and ENGINE_OPTIONS are further options of its `run`. The network is the machine's.
"""

import asyncio
import os
import re
import shlex
from contextlib import asynccontextmanager

import httpx
import openai
import pytest

from tests.fakes import FakeUpstream, chunk, stream, whole
from tests.free_port import free_port
from tests.serving import serving

ENGINE = os.environ.get("ENGINE", "podman")
IMAGE = os.environ.get("IMAGE", "toolproxy")
OPTIONS = shlex.split(os.environ.get("ENGINE_OPTIONS", ""))
HARDENED = ("--read-only", "--tmpfs=/tmp", "--cap-drop=ALL", "--security-opt=no-new-privileges", "--network=host")
ASK = {"model": "glm-4.7", "messages": [{"role": "user", "content": "Hi"}]}
KEY = "a-key-of-this-test"
# The user of the image, and one that it knows nothing of, in group 0 as OpenShift has it.
USERS = pytest.mark.parametrize("user", ["10001:10001", "54321:0"])
WORKERS = pytest.mark.parametrize("workers", [1, 4])


async def engine(*arguments, status=0):
    """What a command of the engine prints."""
    process = await asyncio.create_subprocess_exec(
        ENGINE, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    printed, error = await process.communicate()
    assert process.returncode == status, error.decode()
    return printed.decode().strip()


class Container:
    """The image with its own configuration, which the environment points at an upstream."""

    def __init__(self, upstream, *, user, workers=1, options=()):
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        environ = {
            "TOOLPROXY_HOST": "127.0.0.1",
            "TOOLPROXY_PORT": self.port,
            "TOOLPROXY_WORKERS": workers,
            "TOOLPROXY_KEY": KEY,
            "ZAI_BASE_URL": upstream,
            "ZAI_API_KEY": "upstream-key",
            "HTTP_PROXY": "http://127.0.0.1:9",  # the discard port: a health check that went there would fail
        }
        settings = [f"--env={name}={value}" for name, value in environ.items()]
        self._run = [*OPTIONS, *HARDENED, *settings, f"--user={user}", *options]

    @asynccontextmanager
    async def running(self):
        self._id = await engine("run", "--detach", *self._run, IMAGE)
        try:
            await self._reaches(200)
            yield self
        finally:
            print(await engine("logs", self._id))
            await engine("rm", "--force", "--volumes", self._id)

    async def _reaches(self, status):
        """Wait until /readyz answers with a status."""
        async with asyncio.timeout(30), httpx.AsyncClient() as client:
            while await self._status(client) != status:  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    async def _status(self, client):
        try:
            return (await client.get(f"{self.url}/readyz")).status_code
        except httpx.TransportError:
            return None

    def sdk(self):
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key=KEY, max_retries=0)

    async def inside(self, *command, status=0):
        return await engine("exec", self._id, *command, status=status)

    async def terminate(self):
        """Send SIGTERM, and return when the proxy no longer calls itself ready."""
        await engine("kill", "--signal=TERM", self._id)
        await self._reaches(503)

    async def restart(self):
        await engine("kill", "--signal=KILL", self._id)
        await engine("wait", self._id)
        await engine("start", self._id)
        await self._reaches(200)

    async def exit_status(self):
        return int(await engine("wait", self._id))


@USERS
@WORKERS
async def test_a_hardened_container_answers_and_an_open_stream_outlives_sigterm(user, workers):
    goes_on = asyncio.Event()
    answer = stream(chunk({"content": "One"}), goes_on, chunk({"content": " two"}), chunk({}, "stop"))
    upstream = FakeUpstream([whole("Hi"), answer])
    async with (
        serving(upstream, lifespan="off") as url,
        Container(url, user=user, workers=workers).running() as container,
        container.sdk() as client,
    ):
        got = await client.chat.completions.create(**ASK)
        assert got.choices[0].message.content == "Hi"
        await container.inside("healthcheck")
        parts = aiter(await client.chat.completions.create(**ASK, stream=True))
        words = [(await anext(parts)).choices[0].delta.content]
        await container.terminate()
        goes_on.set()
        words += [part.choices[0].delta.content async for part in parts if part.choices]
        assert "".join(word or "" for word in words) == "One two"
        assert await container.exit_status() == 0


@USERS
async def test_nothing_can_be_written_but_what_has_to_be(user):
    async with Container("http://127.0.0.1:9", user=user).running() as container:
        await container.inside("test", "-w", "/tmp")
        await container.inside("test", "-w", "/var/lib/toolproxy")
        for path in ("/", "/opt/toolproxy", "/etc/toolproxy", "/usr/lib"):
            await container.inside("test", "-w", path, status=1)
        status = await container.inside("cat", "/proc/1/status")
        assert re.findall(r"^(Cap(?:Eff|Prm|Bnd)):\t(\w+)$", status, re.MULTILINE) == [
            ("CapPrm", "0" * 16),
            ("CapEff", "0" * 16),
            ("CapBnd", "0" * 16),
        ]
        assert "NoNewPrivs:\t1" in status


@USERS
@WORKERS
async def test_what_was_answered_outlives_a_kill_of_the_container(user, workers):
    async with (
        serving(FakeUpstream([whole("Hi")]), lifespan="off") as url,
        Container(url, user=user, workers=workers).running() as container,
        container.sdk() as client,
    ):
        kept = await client.responses.create(model=ASK["model"], input="Hi")
        await container.restart()
        assert (await client.responses.retrieve(kept.id)).output_text == "Hi"


async def test_the_image_has_tini_and_compiled_modules_and_no_pip():
    async with Container("http://127.0.0.1:9", user="54321:0").running() as container:
        assert await container.inside("cat", "/proc/1/comm") == "tini"
        compiled = "import json, os, proxy.app as app; print(*(os.path.exists(m.__cached__) for m in (json, app)))"
        assert await container.inside("python", "-c", compiled) == "True True"
        for module in ("pip", "ensurepip", "setuptools"):
            await container.inside("python", "-c", f"import {module}", status=1)


async def test_the_health_check_costs_milliseconds_and_knows_health_from_illness():
    checked = await engine("image", "inspect", "--format", "{{.Config.Healthcheck.Test}}", IMAGE)
    assert checked == "[CMD healthcheck]"
    many = "time for i in {1..50}; do healthcheck || exit 1; done"
    async with Container("http://127.0.0.1:9", user="54321:0").running() as container:
        took = await container.inside("bash", "-c", f"TIMEFORMAT=%R; {{ {many}; }} 2>&1")
        assert float(took) / 50 < 0.05
        await container.inside("env", "TOOLPROXY_PORT=9", "healthcheck", status=1)
