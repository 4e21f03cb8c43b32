"""Whether a client asks for JSON, so that a JSON text may be the answer and need not be a leaked tool call.

    a `response_format` demands JSON   every JSON text is an answer
    the messages name JSON             a JSON text is an answer unless it is sure to be a call: it names a tool, or has
                                       arguments that only gpt-oss's own browser has
    neither                            an object that could be the arguments of a call is a call

A message that names JSON counts as asking for it, unless it forbids it ("Never show raw JSON"): there are too many ways
to ask, in too many languages, and refusing an answer is worse than showing a leak.
"""

import re
from collections.abc import Iterable
from enum import Enum, auto

from proxy.wire.chat import Json, text_of

_ROLES = frozenset({"system", "developer", "user"})  # the roles whose messages may ask for JSON

# "Never output raw JSON", "do not answer in JSON".
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

    The whole conversation is searched, so this is called only for the rare text that may be a call in JSON.
    """
    if demands_json(request):
        return AskedJson.BY_FORMAT
    texts = (text_of(message) for message in messages if message.get("role") in _ROLES)
    is_asked = any("json" in text.lower() and "json" in _FORBIDDING.sub("", text).lower() for text in texts)
    return AskedJson.IN_WORDS if is_asked else AskedJson.NO


def demands_json(request: Json) -> bool:
    """Whether a request's `response_format` permits nothing but JSON."""
    response_format = request.get("response_format")
    return isinstance(response_format, dict) and response_format.get("type") in ("json_object", "json_schema")
