"""What is measured: the upstream by itself, nginx and the proxy in front of it, and peers where installed."""

import os
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.processes import PYTHON, cores, first_line, running, wait_for

KEY = "bench-client-key"
ROOT = Path(__file__).resolve().parent.parent
PEERS = ROOT / ".venv-peers"

# As nginx is put in front of a streaming API: connections are kept on both sides, nothing is held back.
_NGINX = """
worker_processes 1;
daemon off;
pid {where}/nginx.pid;
error_log {where}/nginx.log warn;
worker_rlimit_nofile 20000;
events {{ worker_connections 15000; }}
http {{
  access_log off;
  client_body_temp_path {where}/body; proxy_temp_path {where}/proxy; fastcgi_temp_path {where}/f;
  uwsgi_temp_path {where}/u; scgi_temp_path {where}/s;
  upstream model {{ server 127.0.0.1:{upstream}; keepalive 1024; keepalive_requests 1000000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=8192;
    keepalive_requests 1000000000;
    client_max_body_size 100m;
    location / {{
      proxy_pass http://model;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
      proxy_read_timeout 600s;
    }}
  }}
{more}}}
"""
# The same again, in front of another server.
_NGINX_BESIDE = """
  server {{
    listen 127.0.0.1:{port} backlog=8192;
    client_max_body_size 100m;
    location / {{ proxy_pass http://127.0.0.1:{upstream}; proxy_http_version 1.1; proxy_buffering off; }}
  }}
"""

# As companies run it: a key with a rate and a number of open requests, every request logged. The limits are raised so
# that they count everything and refuse nothing.
_CONFIG = """
server: {{port: 0, max_concurrent_requests: {places}, workers: {workers}}}
clients: [{{name: bench, key: {key}, requests_per_minute: 1000000000, max_concurrent_requests: 1000000}}]
upstreams:
  model: {{base_url: "http://127.0.0.1:{upstream}/v1", api_key: bench-upstream-key, max_connections: 20000,
           transport: {transport}}}
models: {{"*": {{upstream: model}}}}
tools: {{current_time: {{type: clock}}}}
telemetry: {telemetry}
"""

_PEER_KEY = "sk-bench-client-key"
_PEER_HEADERS = {"authorization": f"Bearer {_PEER_KEY}"}
_LITELLM = """
model_list:
  - model_name: "*"
    litellm_params: {{model: "openai/*", api_base: "http://127.0.0.1:{upstream}/v1", api_key: bench-upstream-key}}
litellm_settings: {{num_retries: 0}}
"""


@dataclass(frozen=True, slots=True)
class Target:
    """Something that answers chat requests."""

    name: str
    port: int
    pid: int
    headers: dict[str, str] = field(default_factory=dict)


@contextmanager
def upstream() -> Iterator[Target]:
    """The upstream."""
    with running([PYTHON, "-m", "bench.upstream"], cores=cores()[1], cwd=ROOT) as process:
        yield Target("direct", int(first_line(process)), process.pid)


@contextmanager
def nginx(behind: Target, beside: tuple[int, int] | None = None) -> Iterator[Target | None]:
    """nginx; None where it is not installed. `beside`: another port to listen on, and that of the server behind it."""
    command = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if command is None:
        yield None
        return
    with tempfile.TemporaryDirectory() as where:
        port = free_port()
        more = _NGINX_BESIDE.format(port=beside[0], upstream=beside[1]) if beside else ""
        config = _NGINX.format(where=where, port=port, upstream=behind.port, more=more)
        Path(where, "nginx.conf").write_text(config)
        os.chmod(where, 0o755)  # noqa: PTH101, S103 - its workers run as another user
        arguments = ["-p", where, "-c", f"{where}/nginx.conf", "-e", f"{where}/nginx.log"]
        with running([command, *arguments], cores=cores()[0]) as process:
            wait_for("nginx", lambda: _answers(port))
            yield Target("nginx", port, process.pid)


@contextmanager
def proxy(
    behind: Target,
    *,
    workers: int = 1,
    transport: str = "auto",
    telemetry: str = "{}",
    places: int = 20000,
    pinned: bool = True,
) -> Iterator[Target]:
    """The proxy as shipped, logging to a file."""
    said = {"workers": workers, "transport": transport, "telemetry": telemetry, "places": places}
    with (
        tempfile.TemporaryDirectory() as where,
        serving(_CONFIG.format(upstream=behind.port, key=KEY, **said), Path(where), pinned=pinned) as target,
    ):
        yield target


@contextmanager
def serving(config: str, where: Path, *, pinned: bool = True) -> Iterator[Target]:
    """The proxy with any configuration that knows the key; its log is in `where`."""
    (where / "config.yaml").write_text(config)
    command = [PYTHON, "-m", "proxy", "serve", "--config", str(where / "config.yaml")]
    with running(command, cores=cores()[0] if pinned else None, log=where / "log", cwd=ROOT) as process:
        port = int(first_line(process).rpartition(":")[2].partition("/")[0])
        wait_for("the proxy", lambda: _answers(port))
        yield Target("proxy", port, process.pid, {"authorization": f"Bearer {KEY}"})


@contextmanager
def _litellm(behind: Target, where: Path) -> Iterator[Target]:
    config, port = where / "config.yaml", free_port()
    config.write_text(_LITELLM.format(upstream=behind.port))
    arguments = ["--config", str(config), "--port", str(port), "--host", "127.0.0.1", "--num_workers", "1"]
    environ = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR", "LITELLM_MASTER_KEY": _PEER_KEY}
    with _peer("litellm", arguments, port, where, environ) as process:
        yield Target("LiteLLM", port, process.pid, _PEER_HEADERS)


@contextmanager
def _smg(behind: Target, where: Path) -> Iterator[Target]:
    port, worker = free_port(), f"http://127.0.0.1:{behind.port}"
    arguments = ["launch", "--host", "127.0.0.1", "--port", str(port), "--worker-urls", worker, "--backend", "openai"]
    arguments += ["--disable-health-check", "--prometheus-port", str(free_port()), "--log-level", "warn"]
    with _peer("smg", arguments, port, where) as process:
        yield Target("smg", port, process.pid, _PEER_HEADERS)


@contextmanager
def _agentic_api(behind: Target, where: Path) -> Iterator[Target]:
    port, base = free_port(), f"http://127.0.0.1:{behind.port}/v1"
    arguments = ["--llm-api-base", base, "--openai-api-key", _PEER_KEY, "--skip-llm-ready-check"]
    arguments += ["--gateway-host", "127.0.0.1", "--gateway-port", str(port), "--db-url", "sqlite://state.db?mode=rwc"]
    with _peer("agentic-server", arguments, port, where) as process:
        yield Target("agentic-api", port, process.pid, _PEER_HEADERS)


@contextmanager
def _peer(
    command: str, arguments: Sequence[str], port: int, where: Path, environ: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """A command of the peers' environment that listens on a port."""
    started = [str(PEERS / "bin" / command), *arguments]
    with running(started, cores=cores()[0], environ=environ, log=where / "log", cwd=where) as process:
        wait_for(command, lambda: _answers(port))
        yield process


_PEERS = {"litellm": _litellm, "smg": _smg, "agentic-server": _agentic_api}


@contextmanager
def installed_peers(behind: Target) -> Iterator[list[Target]]:
    """The peers that are installed in their own environment."""
    with ExitStack() as stack:
        found = []
        for command, start in _PEERS.items():
            if (PEERS / "bin" / command).exists():
                where = Path(stack.enter_context(tempfile.TemporaryDirectory()))
                found.append(stack.enter_context(start(behind, where)))
        yield found


@contextmanager
def all_targets(*, peers: bool) -> Iterator[list[Target]]:
    """Those that can be had."""
    with ExitStack() as stack:
        behind = stack.enter_context(upstream())
        found = [stack.enter_context(other) for other in (nginx(behind), proxy(behind))]
        more = stack.enter_context(installed_peers(behind)) if peers else []
        yield [behind, *(target for target in found if target is not None), *more]


def start_up(behind: Target) -> float:
    """Seconds from the command to the first answer."""
    began = time.monotonic()
    with proxy(behind):
        return time.monotonic() - began


def _answers(port: int) -> bool:
    """Whether anything does: a 404 is an answer."""
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


def free_port() -> int:
    """A port on which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])
