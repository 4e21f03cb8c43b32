"""The calls of an MCP server's tools, in a session that is open: what is asked, and what becomes of the answer."""

import re
from collections.abc import Iterator
from typing import Any

from mcp import Client, MCPError
from mcp_types import (
    CONNECTION_CLOSED,
    HEADER_MISMATCH,
    INVALID_REQUEST,
    URL_ELICITATION_REQUIRED,
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
)
from msgspec.structs import replace
from pydantic import TypeAdapter, ValidationError

from proxy.config.redaction import Redact
from proxy.loop.results import ToolError, ToolOutput, ToolUnavailable
from proxy.tools.kinds.mcp.content import output_of
from proxy.tools.kinds.mcp.transport import DELIVERY, Delivery
from proxy.wire.chat import Json

AWAY = "The server of this tool cannot be reached now."
_BROKE = "The connection to this tool's server broke; whether the call was carried out is not known."
_NO_RESULT = "The tool's server answered with something that is no result."
_TOO_LARGE = "The tool's result is larger than any that can be read."
# The proxy has nobody to ask in the middle of a call.
_QUESTION = (
    "The tool has given no result: its server asks something first, which cannot be answered within a call{asked}. Ask "
    "the user for it in your answer; if the tool has an argument for it, call it again with what they say."
)
_LONGEST_QUESTION = 600  # characters of the server's own words
_BUSY = frozenset((429, 502, 503, 504))
# The errors of a server that has restarted and no longer knows the session: "Session terminated" from our own SDK,
# "Session not found" from servers in Python and TypeScript, "No valid session ID provided" from TypeScript examples.
_SESSION_LOST = re.compile(
    r"\bsession (?:id )?(?:terminated|not found|expired|unknown)|\b(?:no valid|invalid|unknown|expired) session",
    re.IGNORECASE,
)
_SESSION_CODES = (INVALID_REQUEST, -32001, -32000)
# What the SDK says of a closed connection. Servers use its code, -32000, for errors of their own.
_CLOSED = "Connection closed"
_ANY_OBJECT = TypeAdapter(dict[str, Any])


class NotCarriedOut(Exception):
    """The server has not carried a call out, and will in another session."""


class ConnectionBroke(ToolUnavailable):
    """The session has ended in the middle of a call."""


async def make_call(client: Client, name: str, arguments: Json, *, runs_code: bool, mask: Redact) -> ToolOutput:
    """The output of one call; `mask` hides the secrets that the server was sent.

    Raises:
        NotCarriedOut: another session has to be begun for it.
        ToolError: the call failed.
    """
    delivery = Delivery()
    token = DELIVERY.set(delivery)
    try:
        # Not `call_tool`, which validates results with the server's schema, whose patterns may take forever.
        request = CallToolRequest(params=CallToolRequestParams(name=name, arguments=arguments))
        raw = await client.session.send_request(request, _ANY_OBJECT)  # type: ignore[type-var]  # it takes any type
        if raw.get("resultType") == "input_required":
            raise ToolError(mask(_question(_messages_in(raw))))
        result = CallToolResult.model_validate(raw, by_name=False)
    except MCPError as exc:
        raise _fault(exc, delivery, mask) from exc
    except ValidationError as exc:
        raise ToolError(_NO_RESULT) from exc
    finally:
        DELIVERY.reset(token)
    output = output_of(result, runs_code=runs_code)
    text = mask(output.text)
    if result.is_error:
        raise ToolError(text)
    return replace(output, text=text, sources={mask(url): mask(title) for url, title in output.sources.items()})


def _fault(error: MCPError, delivery: Delivery, mask: Redact) -> Exception:
    """The error of a call: `ToolUnavailable` if a retry may succeed."""
    is_lost = error.code in _SESSION_CODES and _SESSION_LOST.search(error.message) is not None
    # After a mismatch of headers, the session needs the tool's new definition.
    if is_lost or delivery.was_lost or error.code == HEADER_MISMATCH:
        return NotCarriedOut()
    if delivery.was_too_large:
        return ToolError(_TOO_LARGE)
    if error.code == CONNECTION_CLOSED and error.message == _CLOSED:
        return ConnectionBroke(_BROKE, blame="nobody")
    if delivery.status in _BUSY:
        return ToolUnavailable(f"The server of this tool is busy or down now (HTTP {delivery.status}).")
    if error.code == URL_ELICITATION_REQUIRED:
        return ToolError(mask(_question([error.message])))
    return ToolError(mask(error.message))


def _messages_in(result: Json) -> Iterator[str]:
    """The words of the questions in a result of the type `input_required` (MCP 2026-07-28)."""
    requests = result.get("inputRequests")
    for request in requests.values() if isinstance(requests, dict) else ():
        match request:
            case {"params": {"message": str(message)}}:
                yield message


def _question(asked: Iterator[str] | list[str]) -> str:
    words = " ".join(asked)[:_LONGEST_QUESTION]
    return _QUESTION.format(asked=f': "{words}"' if words else "")
