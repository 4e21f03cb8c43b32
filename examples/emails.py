"""A check on the results of tools that takes e-mail addresses out: as a function, and as a server.

tools_check: emails:without_addresses                      # the function, within the proxy
tools_check: {url: "http://127.0.0.1:9100", timeout: 2}    # the server: python examples/emails.py --port 9100
"""

import argparse
import json
import re
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

# Addresses as people and pages write them. Each part is bounded, so that no text takes long.
ADDRESS = re.compile(r"[\w.!#$%&'*+/=?^`{|}~-]{1,64}@(?:[\w-]{1,63}\.){1,8}[a-zA-Z]{2,63}")
MOST_CHARACTERS = 1_000_000


def without_addresses(_: str, __: dict[str, Any], text: str) -> str | None:
    """The text with every address masked; None, which lets the result pass as it is, if there is none.

    The first two arguments are the name of the tool and the arguments of the call. What the function raises refuses the
    result, and so does a `proxy.Refuse("why")` that it returns.
    """
    if len(text) > MOST_CHARACTERS:
        raise ValueError("the result is too long to be looked through")
    masked, found = ADDRESS.subn("[address]", text)
    return masked if found else None


class Server(BaseHTTPRequestHandler):
    """Answers `{"tool", "arguments", "result"}` with an `action`: pass, replace (`result`) or refuse (`reason`)."""

    def do_POST(self) -> None:
        """Judge one result."""
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        try:
            text = without_addresses(asked["tool"], asked["arguments"], asked["result"])
        except ValueError as exc:
            self._answer({"action": "refuse", "reason": str(exc)})
            return
        self._answer({"action": "pass"} if text is None else {"action": "replace", "result": text})

    def _answer(self, verdict: dict[str, str]) -> None:
        body = json.dumps(verdict).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Log nothing: a line could say what was looked for."""


def main() -> None:
    """Serve until interrupted; prints the address once it accepts connections."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=9100)
    options = parser.parse_args()
    server = ThreadingHTTPServer((options.host, options.port), Server)
    print(f"http://{options.host}:{server.server_port}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
