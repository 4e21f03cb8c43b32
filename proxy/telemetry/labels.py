"""Values of metric labels, bounded in number: a client may send any path and any model name."""

from collections.abc import Iterable, Mapping
from typing import Final

OTHER: Final = "other"
NONE: Final = "none"

_ROUTES: Final = frozenset({
    "/chat/completions", "/responses", "/debug", "/v1/audio/speech", "/v1/audio/transcriptions",
    "/v1/audio/translations", "/v1/batches", "/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/files",
    "/v1/images/edits", "/v1/images/generations", "/v1/models", "/v1/moderations", "/v1/rerank", "/v1/responses",
})  # fmt: skip
_ROUTES_WITH_ID: Final = ("/v1/responses/", "/responses/", "/v1/models/", "/debug/requests/")

_UPSTREAM_ERRORS: Final = frozenset({
    "upstream_error", "upstream_timeout", "overloaded", "invalid_api_key", "account_not_usable", "permission_denied",
    "insufficient_quota", "rate_limit_exceeded", "model_not_found", "context_length_exceeded", "content_filter",
})  # fmt: skip
_ERRORS_BY_STATUS: Final[Mapping[int, str]] = {
    401: "invalid_api_key",
    402: "insufficient_quota",
    403: "permission_denied",
    404: "model_not_found",
    408: "upstream_timeout",
    429: "rate_limit_exceeded",
}
_FIRST_SERVER_ERROR = 500


class AllowedLabels:
    """A label with a fixed set of values: any other name becomes "other", and None becomes "none"."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names: dict[object, str] = {None: NONE, **{name: name for name in names}}

    def __call__(self, name: object) -> str:
        """The label's value for a name."""
        return self._names.get(name, OTHER)


class FirstSeenLabels:
    """A label whose values are not known at start: the first `most` names are values, any later one becomes "other"."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._seen: set[str] = set()

    def __call__(self, name: object) -> str:
        """The label's value for a name."""
        text = str(name)
        if text not in self._seen:
            if len(self._seen) >= self._most:
                return OTHER
            self._seen.add(text)
        return text


def route_of(path: str) -> str:
    """A path as one of the routes, or "other"."""
    if path in _ROUTES:
        return path
    return next((f"{prefix}{{id}}" for prefix in _ROUTES_WITH_ID if path.startswith(prefix)), OTHER)


def upstream_error(code: object, status: object) -> str:
    """The kind of an upstream's error: its code where we know that code, else what its status stands for."""
    if code in _UPSTREAM_ERRORS:
        return str(code)
    if not isinstance(status, int) or status >= _FIRST_SERVER_ERROR:
        return "upstream_error"
    return _ERRORS_BY_STATUS.get(status, "invalid_request")
