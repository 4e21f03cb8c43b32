"""Whether a client asks for JSON, so that a JSON text may be the answer and need not be a tool call that leaked.

    a `response_format` demands it     every JSON text is an answer
    its messages name JSON             a JSON text is an answer, unless it is sure to be a call: it names a tool, or has
                                       arguments that only gpt-oss's own browser has
    neither                            an object that could be the arguments of a call is one

Whoever names JSON is taken to ask for it, except where it is forbidden ("Never show raw JSON"): there are too many ways
to ask, in too many languages, and an answer that is refused is worse than a leak that is shown.
"""

import re
from collections.abc import Iterable
from enum import Enum, auto

from proxy.loop.chat import Json, text_of

_ROLES = frozenset({"system", "developer", "user"})  # whose messages may ask for JSON

# Never output raw JSON, do not answer in JSON.
_FORBIDDING = re.compile(
    r"\b(?:never|not|avoid|\w+n['\u2019]t)\s+(?:ever\s+)?(?:answer|respond|reply|return|output|give|send|write|use|show)\w*"
    r"(?:\W+(?:to|with|in|as|any|an?|users?|them|raw|plain)){0,4}\W+json\b",
    re.IGNORECASE,
)


class AskedJson(Enum):
    """How a client asks for JSON."""

    NO = auto()
    IN_WORDS = auto()
    BY_FORMAT = auto()


def asked_json(request: Json, messages: Iterable[Json]) -> AskedJson:
    """How a client asks for JSON: by the `response_format` of its request, in the words of its messages, or not at all.

    This searches the whole conversation, for the rare text that may be a call in JSON.
    """
    if demands_json(request):
        return AskedJson.BY_FORMAT
    is_asked = any(message.get("role") in _ROLES and _asks(text_of(message)) for message in messages)
    return AskedJson.IN_WORDS if is_asked else AskedJson.NO


def demands_json(request: Json) -> bool:
    """Whether a request's `response_format` permits nothing but JSON."""
    response_format = request.get("response_format")
    return isinstance(response_format, dict) and response_format.get("type") in ("json_object", "json_schema")


def _asks(text: str) -> bool:
    return "json" in text.lower() and "json" in _FORBIDDING.sub("", text).lower()
