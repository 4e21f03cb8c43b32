r"""Characters that an upstream splits between two chunks.

JSON escapes a character beyond U+FFFF, such as an emoji, as two halves: `\ud83d\ude00`. Servers that cut a text by
UTF-16 units send the first half at the end of one chunk and the second at the beginning of the next. No parser can make
a text of either, so the first half waits for the second.
"""

import re
from typing import Any

import orjson
from msgspec import Struct

# At the end and at the beginning of a string; an even number of backslashes before it escape each other.
_FIRST_HALF = re.compile(rb'(?<!\\)(?:\\\\)*+(\\u[dD][89abAB][0-9a-fA-F]{2})"')
_SECOND_HALF = re.compile(rb'"(?=\\u[dD][c-fC-F][0-9a-fA-F]{2})')


class SplitCharacters(Struct):
    """Parses the chunks of one stream, and puts the halves of characters together."""

    _half: bytes = b""

    def loads(self, data: bytes) -> Any:
        """The JSON value in a chunk, without half a character at the end of a text, and with that of the chunk before.

        Raises:
            orjson.JSONDecodeError: it is not JSON for any other reason.
        """
        try:
            return orjson.loads(data)
        except orjson.JSONDecodeError:
            half, self._half = self._half, b""
            joined = _SECOND_HALF.sub(lambda match: match[0] + half, data, count=1) if half else data
            if match := _FIRST_HALF.search(joined):
                self._half = match[1]
                joined = joined[: match.start(1)] + joined[match.end(1) :]
            return orjson.loads(joined)
