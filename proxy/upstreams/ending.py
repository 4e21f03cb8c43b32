"""How long an upstream may take to end a stream whose answer is complete.

A `finish_reason` completes an answer. Usage, `[DONE]` and the end of the body follow at once at most servers, but some
leave the connection open, silent or with comments, until a timeout. So what may still follow is waited for briefly, and
no failure of the connection takes back an answer that is complete.
"""

from msgspec import Struct

from proxy.http.response import Response
from proxy.upstreams.profile import Profile

AFTER_FINISH = 2.0
"""The seconds after a finish reason. Servers that count tokens at the end of an answer need some milliseconds."""
# The seconds after a finish reason of a profile that repeats it with each call, while the next call is being written.
_AFTER_CALL = 10.0


class Ending(Struct, eq=False):
    """The end of one stream.

    Attributes:
        profile: the profile of the upstream.
        response: the response whose body is the stream; None: all of it has been read already.
        has_begun: whether the answer is complete.
    """

    profile: Profile
    response: Response | None = None
    has_begun: bool = False
    _is_final: bool = False

    def begin(self, *, beside_call: bool) -> None:
        """Begin the wait for the end of the body; further calls of the model begin it again, and nothing else does.

        Args:
            beside_call: whether the chunk of the finish reason has a part of a tool call.
        """
        if self._is_final and not beside_call:
            return
        self.has_begun = True
        self._is_final = not (beside_call and self.profile.finishes_each_call)
        if self.response is not None:
            self.response.end_within(AFTER_FINISH if self._is_final else _AFTER_CALL)
