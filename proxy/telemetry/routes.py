"""Paths as a known few: what is counted by route, and what a trace is called by, is not for strangers to choose."""

from typing import Final

OTHER: Final = "other"

ROUTES: Final = frozenset({
    "/chat/completions", "/responses", "/debug", "/v1/audio/speech", "/v1/audio/transcriptions",
    "/v1/audio/translations", "/v1/batches", "/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/files",
    "/v1/images/edits", "/v1/images/generations", "/v1/models", "/v1/moderations", "/v1/rerank", "/v1/responses",
})  # fmt: skip
_BELOW: Final = ("/v1/responses/", "/responses/", "/v1/models/", "/debug/requests/")


def route_of(path: str) -> str:
    """A path as one of a known few."""
    if path in ROUTES:
        return path
    below = next((prefix for prefix in _BELOW if path.startswith(prefix)), None)
    if below:
        return f"{below}{{id}}"
    return OTHER
