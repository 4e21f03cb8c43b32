"""The bounds of one upstream turn. An upstream that passes one of them has failed, whatever else it has sent.

Every call is parsed, decided upon, answered and sent back in the next turn, so a turn without bounds would hold up all
other requests for as long as its model likes.
"""

from typing import Final

from proxy.wire.errors import UpstreamError

MOST_CALLS: Final = 128
"""The calls of one turn, the server's, the client's and leaked ones. OpenAI bounds the tools of a request likewise."""

MOST_ARGUMENT_BYTES: Final = 1024 * 1024
"""The arguments of one call. A model's whole output of 131,072 tokens is about half of that."""

MOST_TURN_ARGUMENT_BYTES: Final = 4 * MOST_ARGUMENT_BYTES
"""The arguments of all calls of a turn. The next request holds them, and writing a MiB of quotes takes 3 ms."""


def require_few_calls(count: int) -> None:
    """Raise `UpstreamError` if a turn has too many calls."""
    if count > MOST_CALLS:
        raise UpstreamError(f"The upstream's turn has more than {MOST_CALLS} tool calls.")


def require_short_arguments(size: int, in_all: int) -> None:
    """Raise `UpstreamError` if the arguments of a call, or of all calls of its turn so far, have too many bytes."""
    if size > MOST_ARGUMENT_BYTES:
        raise UpstreamError(f"The upstream's tool call has more than {MOST_ARGUMENT_BYTES} bytes of arguments.")
    if in_all > MOST_TURN_ARGUMENT_BYTES:
        raise UpstreamError(f"The upstream's tool calls have more than {MOST_TURN_ARGUMENT_BYTES} bytes of arguments.")
