"""A server that runs Python code for `serves: code_interpreter`. Each run is a separate process with limits.

    POST /run {"code": "print(6 * 7)"}  ->  {"stdout": "42", "stderr": "", "return_code": 0}

The limits are for accidents and do not isolate the code: README.md says where to run this server.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from threading import BoundedSemaphore
from typing import Any

SECONDS = 10  # of a run; half of them of processor time
MEMORY = 1024 * 1024  # KiB of address space
FILES = 32 * 1024  # blocks of 512 bytes for each file that the code writes, including its output
OUTPUT = 100_000  # bytes of each stream that are returned
LONGEST_CODE = 1024 * 1024  # bytes
# Limits that the process cannot raise. Then the program, isolated (-I): Python ignores variables and the user's files.
LIMITS = {"t": SECONDS // 2, "v": MEMORY, "f": FILES, "n": 64, "c": 0}
LIMITED = " && ".join([*(f"ulimit -{name} {most}" for name, most in LIMITS.items()), 'exec "$0" -I main.py'])

ROOM = BoundedSemaphore(4)  # runs at the same time; others wait


def run(code: str) -> dict[str, Any]:
    """What the code printed, and how it ended."""
    with ROOM, TemporaryDirectory() as folder, TemporaryFile() as out, TemporaryFile() as err:
        Path(folder, "main.py").write_text(code, "utf-8", "replace")
        process = subprocess.Popen(
            ["/bin/sh", "-c", LIMITED, sys.executable],
            cwd=folder,
            env={"HOME": folder, "TMPDIR": folder, "LANG": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
        note = ""
        try:
            process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            note = f"\n[ended: it took longer than {SECONDS} seconds]"
        with suppress(ProcessLookupError):  # the processes that it has left behind, or itself
            os.killpg(process.pid, signal.SIGKILL)
        ended = process.wait()
        return {"stdout": read(out), "stderr": read(err) + note, "return_code": ended if ended >= 0 else 128 - ended}


def read(stream: Any) -> str:
    """The beginning of what was written to a stream."""
    stream.seek(0)
    text = stream.read(OUTPUT + 1)
    shown = text[:OUTPUT].decode("utf-8", "replace")
    return f"{shown}\n[cut]" if len(text) > OUTPUT else shown


class Server(BaseHTTPRequestHandler):
    """Runs the code of each `POST /run`."""

    def do_POST(self) -> None:
        """Run the code of one request."""
        length = int(self.headers.get("content-length") or 0)
        if self.path != "/run" or not 0 < length <= LONGEST_CODE:
            self._answer(404 if self.path != "/run" else 413, {"error": "POST /run with at most a megabyte of JSON"})
            return
        try:
            code = json.loads(self.rfile.read(length))["code"]
        except (ValueError, KeyError, TypeError):
            self._answer(400, {"error": 'the body is no {"code": "..."}'})
            return
        self._answer(200, run(str(code)))

    def _answer(self, status: int, answer: dict[str, Any]) -> None:
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


def main() -> None:
    """Serve until interrupted; prints the address once it accepts connections."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=9200)
    options = parser.parse_args()
    server = ThreadingHTTPServer((options.host, options.port), Server)
    print(f"http://{options.host}:{server.server_port}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
