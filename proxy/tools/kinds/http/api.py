"""`type: http`: any HTTP API as a tool.

    arguments -> template -> one request, no redirects -> bounded bytes -> text or a part of JSON -> secrets masked

The operator sets the address, so it may be a private one; the template keeps arguments from changing it.
"""

import re
from collections.abc import Iterable
from dataclasses import replace
from urllib.parse import urlsplit

import httpx
import orjson

from proxy.http.client import ServiceClient
from proxy.http.connect import reason
from proxy.kit import json_pointer
from proxy.loop.call_context import NO_CONTEXT, CallContext
from proxy.loop.results import InvalidArguments, ToolError, ToolUnavailable
from proxy.tools.exchange import ServiceAnswer, ServiceRequest, blame_of, send
from proxy.tools.kinds.http.faults import pointer_in
from proxy.tools.kinds.http.template import HttpToolConfig, host_of, parameters_of, template_of
from proxy.tools.sent_headers import SentHeaders
from proxy.tools.template import strings_in
from proxy.tools.tool import Tool
from proxy.tools.tool_type import Resources
from proxy.wire.chat import Json

_MOST_ERROR_BYTES = 64 * 1024  # how much of an error's body is looked at
_MOST_ERROR_CHARACTERS = 500  # how much of it the model sees: a message, not a page
_SUCCESS, _REDIRECTS = range(200, 300), range(300, 400)
_BUSY = frozenset((429, 502, 503, 504))  # a retry may succeed
_TEXT_TYPE = re.compile(r"text/.*|application/(.*\+)?(json|xml|yaml|javascript|x-ndjson|x-www-form-urlencoded)")
_PICTURE_OR_SOUND = ("image/", "audio/", "video/", "font/")


def http_tool(name: str, config: HttpToolConfig, resources: Resources) -> Tool:
    """The tool with this name for the API of an entry without faults."""
    template = template_of(config)
    pointer = pointer_in(config.result)
    sent = SentHeaders(config.headers, secrets_in(config, resources.secrets))

    async def run(arguments: Json, call: CallContext) -> str:
        credentials = call.credentials
        headers = httpx.Headers(sent.for_user(credentials))
        request, mask = replace(template.fill(arguments), headers=headers), sent.mask_for(credentials)
        answer = await _answer(resources.client, request, most=config.max_response_bytes)
        if answer.status not in _SUCCESS:
            kind = ToolUnavailable if answer.status in _BUSY else ToolError
            raise kind(_shortened(mask(_refusal(answer))))
        return mask(_as_text(answer) if pointer is None else _part(answer, pointer))

    return Tool(
        name=name,
        description=config.description,
        parameters=parameters_of(config),
        run=lambda arguments: run(arguments, NO_CONTEXT),
        run_in_call=run,
        eager=config.method == "GET",
        serves=config.serves,
        needs=sent.needs,
        origin=host_of(config),
    )


async def _answer(client: ServiceClient, request: ServiceRequest, *, most: int) -> ServiceAnswer:
    """The answer of an API, whatever its status. Raises `ToolError` if there is none."""
    try:
        return await send(client, request, most=most)
    except httpx.InvalidURL as exc:
        raise InvalidArguments("The arguments are too long for an address.") from exc
    except httpx.DecodingError as exc:
        raise ToolError(f"The API's answer cannot be decompressed: {exc}.") from exc
    except httpx.HTTPError as exc:
        told = "The API could not be reached, or broke off."
        raise ToolUnavailable(told, why=reason(exc), blame=blame_of(exc)) from exc


def _refusal(answer: ServiceAnswer) -> str:
    """The words for an answer without success, which may still hold secrets."""
    if answer.status in _REDIRECTS and "location" in answer.headers:
        where = answer.headers["location"]
        return f"The API answered HTTP {answer.status}, a redirect to {where}; it is not followed."
    try:
        message = _text_of(replace(answer, body=answer.body[:_MOST_ERROR_BYTES]))
    except ToolError:  # a binary body: the status is enough
        message = ""
    told = f"The API answered HTTP {answer.status}"
    return f"{told}: {message}" if message.strip() else f"{told}."


def _as_text(answer: ServiceAnswer) -> str:
    """The text of an answer for the model."""
    text = _text_of(answer)
    if not answer.whole:
        return f"{text}\n[cut: no more than {len(answer.body)} bytes of the answer were read]"
    return text if text.strip() else f"The API answered HTTP {answer.status} without content."


def _text_of(answer: ServiceAnswer) -> str:
    """The body as text. Raises `ToolError` if it is not text."""
    content_type = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
    is_text = bool(_TEXT_TYPE.fullmatch(content_type))
    if not is_text and content_type.startswith(_PICTURE_OR_SOUND):
        raise ToolError("The API's answer is a picture, a sound or the like, not text.")
    text = _decoded(answer)
    if not is_text and ("\0" in text or (answer.whole and "\ufffd" in text)):
        raise ToolError("The API's answer is binary, not text.")
    return text


def _decoded(answer: ServiceAnswer) -> str:
    charset = httpx.Response(answer.status, headers=answer.headers).charset_encoding or "utf-8"
    try:
        return answer.body.decode(charset, "replace")
    except (LookupError, UnicodeError):  # a charset that does not exist, or is not a text encoding
        return answer.body.decode("utf-8", "replace")


def _part(answer: ServiceAnswer, pointer: tuple[str, ...]) -> str:
    """The value at the pointer: a string as it is, any other value as JSON."""
    if not answer.whole:
        raise ToolError(f"The API's answer is longer than {len(answer.body)} bytes.")
    try:
        found = json_pointer.resolve(orjson.loads(answer.body), pointer)
    except orjson.JSONDecodeError as exc:
        raise ToolError("The API's answer is not JSON.") from exc
    if found is json_pointer.MISSING:
        raise ToolError("The API's answer lacks the configured part.")
    try:
        return found if isinstance(found, str) else orjson.dumps(found).decode()
    except orjson.JSONEncodeError as exc:
        raise ToolError("The API's answer is nested too deep.") from exc


def secrets_in(config: HttpToolConfig, variables: Iterable[str]) -> set[str]:
    """The `variables` that are secrets: a call sends them in its path, query, headers or body."""
    parts = urlsplit(config.url)
    sent = [parts.path, parts.query, *config.headers.values(), *strings_in(config.query), *strings_in(config.body)]
    return {value for value in variables if any(value in text for text in sent)}


def _shortened(text: str) -> str:
    """A text on one line, cut to a message; secrets are masked before, so that none is cut in two."""
    line = " ".join(text.split())
    return line if len(line) <= _MOST_ERROR_CHARACTERS else f"{line[:_MOST_ERROR_CHARACTERS]}..."
