"""What an MCP server asks instead of giving a result, in words for the model. Pure.

A server may want an answer of the user (elicitation), of a model (sampling) or a list of directories (roots) before it
goes on. The proxy has nobody to ask in the middle of a call, so the model is told what is asked.
"""

from collections.abc import Iterator
from typing import Any

from mcp_types import URL_ELICITATION_REQUIRED, ErrorData

from proxy.wire.chat import Json

_NO_RESULT = "The tool has given no result: its server asks something first, which cannot be answered within a call."
_ADVICE = "Ask the user for it in your answer; if the tool has an argument for it, call it again with what they say."
_NOT_FINISHED = "The tool has given no result: its server has not finished, and wants to be asked again later."
_MOST_QUESTIONS = 5
_LONGEST = 600  # characters of the server's own words


def question_in(result: Json) -> str:
    """The questions of a result of the type `input_required` (MCP 2026-07-28), as text for the model."""
    requests = result.get("inputRequests")
    asked = [*requests.values()][:_MOST_QUESTIONS] if isinstance(requests, dict) else []
    words = [word for request in asked if isinstance(request, dict) for word in _words(request)]
    return _told(words) if asked else _NOT_FINISHED


def question_of_error(error: ErrorData) -> str | None:
    """The questions of an error that sends the user to a URL (MCP 2025-11-25), as text; None: another error."""
    if error.code != URL_ELICITATION_REQUIRED:
        return None
    asked = error.data.get("elicitations") if isinstance(error.data, dict) else None
    visits = asked[:_MOST_QUESTIONS] if isinstance(asked, list) else []
    return _told([word for visit in visits for word in _elicitation(visit)] or [error.message])


def _told(words: list[str]) -> str:
    return " ".join((_NO_RESULT, *words, _ADVICE))


def _words(request: Json) -> Iterator[str]:
    match request.get("method"):
        case "elicitation/create":
            yield from _elicitation(request.get("params"))
        case "sampling/createMessage":
            yield "It asks for the answer of a language model."
        case "roots/list":
            yield "It asks for the directories that it may use."
        case _:
            yield "It asks for something unknown."


def _elicitation(params: Any) -> Iterator[str]:
    params = params if isinstance(params, dict) else {}
    if isinstance(message := params.get("message"), str):
        yield f'It asks the user: "{message[:_LONGEST]}"'
    schema = params.get("requestedSchema")
    fields = schema.get("properties") if isinstance(schema, dict) else None
    if isinstance(fields, dict) and fields:
        yield f"(fields: {', '.join(fields)[:_LONGEST]})"
    if isinstance(url := params.get("url"), str):
        yield f"The user is to open {url[:_LONGEST]}"
