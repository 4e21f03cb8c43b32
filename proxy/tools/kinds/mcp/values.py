"""A bound on the values of a JSON message, counted before it is parsed.

Eight megabytes of one text are parsed in ten milliseconds, and of `{"a":1}` in half a second, in which nobody else has
a turn.
"""

# Fifty to a hundred milliseconds. A list of 128 tools with a hundred parameters each has half as many.
MOST_VALUES = 100_000


class Values:
    """Counts the values of a JSON message while its bytes arrive, or of each message of a stream of events.

    Args:
        is_stream: whether the bytes are a stream of events, in which a blank line ends each message.
    """

    def __init__(self, *, is_stream: bool = False) -> None:
        self._is_stream = is_stream
        self._count = 0
        self._in_string = False
        self._backslash = b""  # at the end of the last bytes, if it escapes what follows

    def permit(self, data: bytes) -> bool:
        """Count the values in further bytes; returns whether the message is still within the bound."""
        if self._is_stream:
            _, blank_line, after = data.replace(b"\r\n", b"\n").rpartition(b"\n\n")
            if blank_line:  # what ends here began in the bytes before, or is short
                self._count, self._in_string, self._backslash = 0, False, b""
                data = after
        data = self._backslash + data
        text = data.rstrip(b"\\")
        self._backslash = b"\\" * ((len(data) - len(text)) % 2)
        # Every second part is outside of strings.
        parts = text.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        outside = b"".join(parts[self._in_string :: 2])
        self._in_string ^= len(parts) % 2 == 0
        self._count += outside.count(b",") + outside.count(b"{") + outside.count(b"[")
        return self._count <= MOST_VALUES
