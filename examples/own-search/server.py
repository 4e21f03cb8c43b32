"""A search service for two documents, with its own format of answers."""

import json
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.parse import parse_qs, urlsplit

DOCUMENTS = [
    {"link": "https://wiki.example/drais", "name": "Karl von Drais", "summary": "Inventor of the bicycle, in 1817."},
    {"link": "https://wiki.example/bread", "name": "Bread", "summary": "Flour, water, time."},
]


class Search(BaseHTTPRequestHandler):
    """Finds documents with a word of the query."""

    def do_GET(self) -> None:
        """Answer a query."""
        words = parse_qs(urlsplit(self.path).query).get("q", [""])[0].lower().split()
        hits = [one for one in DOCUMENTS if any(word in one["summary"].lower() for word in words)]
        body = json.dumps({"hits": hits}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


server = HTTPServer(("127.0.0.1", 0), Search)
print(f"http://127.0.0.1:{server.server_port}", flush=True)
server.serve_forever()
