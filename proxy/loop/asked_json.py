"""Whether a client asks for JSON, so that a JSON text may be the answer and need not be a tool call that leaked.

    a `response_format` demands it     every JSON text is an answer
    its messages ask for it            a JSON text is an answer, unless it is sure to be a call: it names a tool, or has
                                       arguments that only gpt-oss's own browser has
    neither                            an object that could be the arguments of a call is one

A message asks for JSON where it names it as the form of what is to be written: "answer in JSON", "valid JSON only",
"als JSON". "Never show raw JSON" and "How do I parse json?" only mention it. In doubt a message asks, for an answer
that is refused is worse than a leak that is shown: the pattern is wide, and in a text with letters beyond ASCII, whose
language it cannot judge, every mention counts.
"""

import re
from collections.abc import Iterable
from enum import Enum, auto

from proxy.loop.chat import Json, text_of

_ROLES = frozenset({"system", "developer", "user"})  # whose messages may ask for JSON

_FILLERS = (
    r"(?:\W+(?:an?|the|this|that|one|single|only|just|pure|plain|raw|valid|strict\w*|proper|minified|compact|following"
    r"|format\w*|ein\w*|une?|uma?|una|nur|reine[mns]?|solo|puro)){0,4}\W+"
)
_ASKING = re.compile(
    # in JSON, as a single JSON object, must be valid JSON, en JSON, en formato JSON, im JSON-Format
    rf"\b(?:in|into|as|to|with|using|be|write|create|make|build|als|im|mit|en|au|em|como|come|con|com|avec|met|jako|som"
    rf"|sebagai|dalam){_FILLERS}json"
    # only JSON, minified JSON, nothing but JSON
    r"|\b(?:only|just|valid|pure|strictly|minified|but|than|except|nur|solo|seulement|apenas|alleen)\W+(?:an?\W+|the\W+)?json"
    # return the JSON, output: JSON, respond with nothing else: {_a few words_} JSON
    r"|\b(?:answer|respon[ds]|repl(?:y|ies)|return|output|give|provide|produce|generate|emit|send|format|result|schema"
    r"|example|antwort|gib|ausgabe|devuelv|retorn|rispond|restitui|renvoi)\w*(?:[^\w.!?]+\w+){0,4}?[^\w.!?]+json"
    # JSON only, JSON format, JSON-Objekt, and a prompt that ends with "JSON:"
    r"|\bjson\W{1,3}(?:only|format|mode|schema|output|please|objekt|antwort|ausgabe|bitte)|\bjson:\s*\Z",
    re.IGNORECASE,
)
# Never output raw JSON, do not answer in JSON.
_FORBIDDING = re.compile(
    r"\b(?:never|not|avoid|\w+n['\u2019]t)\s+(?:ever\s+)?(?:answer|respond|reply|return|output|give|send|write|use|show)\w*"
    r"(?:\W+(?:to|with|in|as|any|an?|users?|them|raw|plain)){0,4}\W+json\b",
    re.IGNORECASE,
)
_FOREIGN_LETTER = re.compile(r"[^\W\d_\x00-\x7f]")


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
    if "json" not in text.lower():
        return False
    return bool(_FOREIGN_LETTER.search(text) or _ASKING.search(_FORBIDDING.sub("", text)))
