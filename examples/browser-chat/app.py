"""Serves the page at the origin that the configuration permits, until it is interrupted."""

import os
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

handler = partial(SimpleHTTPRequestHandler, directory=Path(__file__).parent)
server = ThreadingHTTPServer(("127.0.0.1", 8090), handler)
print(f"open http://127.0.0.1:8090/?proxy={os.environ.get('PROXY_URL', 'http://127.0.0.1:8080')}", flush=True)
try:
    server.serve_forever()
except KeyboardInterrupt:
    pass
