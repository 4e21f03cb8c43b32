"""The response object, and the stream of events that ends in it."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from proxy.api.reply import Events, Reply
from proxy.api.request import ResolvedRequest
from proxy.api.responses.encrypted_content import Seal
from proxy.api.responses.output import OutputBuilder, OutputOptions
from proxy.api.responses.request import CODE_OUTPUTS, ENCRYPTED, SOURCES, ResponsesRequest
from proxy.api.responses.stored import RESPONSE_PREFIX, StoredResponse, with_ids
from proxy.api.responses.tools import ResponseTools
from proxy.loop.actions import Respond
from proxy.loop.continuation import storable
from proxy.loop.tally import Tally
from proxy.turn.opaque_fields import has_opaque_fields
from proxy.wire import sse
from proxy.wire.chat import Json
from proxy.wire.errors import ProxyError
from proxy.wire.usage import token_count

# Fields that a response echoes -> their values if the request does not have them.
_ECHOED: Json = {
    **dict.fromkeys(("instructions", "max_output_tokens", "max_tool_calls", "previous_response_id"), None),
    **dict.fromkeys(("prompt_cache_key", "safety_identifier", "user"), None),
    **dict.fromkeys(("frequency_penalty", "presence_penalty", "top_logprobs"), 0),
    **dict.fromkeys(("temperature", "top_p"), 1),
    **dict.fromkeys(("parallel_tool_calls", "store"), True),
    "background": False,
    "metadata": {},
    "service_tier": "default",
    "tool_choice": "auto",
    "tools": [],
    "truncation": "disabled",
}
_UNFINISHED: Json = {
    "object": "response",
    "output": (),
    **dict.fromkeys(("completed_at", "error", "incomplete_details", "usage"), None),
}
_OF_FUNCTION: Json = {"description": None, "parameters": None, "strict": None}  # which a response requires of each
_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
# The `error.code` of a failed response by the status of its error; for any other status it is `server_error`.
_CODES = {400: "invalid_prompt", 429: "rate_limit_exceeded"}


def usage_of(tally: Tally) -> Json:
    """The `usage` of a response with every total and detail that OpenAI has, and `server_tool_use`."""
    usage = tally.as_usage()
    count = partial(token_count, usage)
    return {
        "input_tokens": count("prompt_tokens") or 0,
        "input_tokens_details": {
            "cached_tokens": count("prompt_tokens_details", "cached_tokens") or 0,
            "cache_write_tokens": count("prompt_tokens_details", "cache_write_tokens") or 0,
        },
        "output_tokens": count("completion_tokens") or 0,
        "output_tokens_details": {"reasoning_tokens": count("completion_tokens_details", "reasoning_tokens") or 0},
        "total_tokens": count("total_tokens") or 0,
        **{name: usage[name] for name in ("server_tool_use", "cost") if usage.get(name) is not None},
    }


def _echoed(fields: Json) -> Json:
    """The fields of a request as its response has them."""
    given = {key: value for key, value in fields.items() if value is not None}
    text = {key: value for key, value in given.get("text", {}).items() if value is not None}
    tools = given.get("tools", ())
    return {
        **_ECHOED,
        **{key: value for key, value in given.items() if key in _ECHOED},
        "reasoning": {"effort": None, "summary": None, **given.get("reasoning", {})},
        "text": {"format": {"type": "text"}, **text},
        "tools": [{**_OF_FUNCTION, **tool} if tool["type"] == "function" else tool for tool in tools],
    }


class ResponseReply(Reply):
    """The reply to a Responses request.

    The events of its stream are numbered from 0; `created` and `in_progress` precede all others.

    Args:
        asked: the client's request, whose fields the response echoes.
        request: the request, resolved.
        tools: the tools of the request.
        run_id: the id of the run.
        items: the items of the request, without the conversation before it.
        seal: seals the thoughts, and the part of the run that the items do not show if nothing is stored here.
        now: the time, in seconds since 1970.
    """

    def __init__(
        self,
        asked: ResponsesRequest,
        request: ResolvedRequest,
        tools: ResponseTools,
        run_id: str,
        *,
        items: Sequence[Json],
        seal: Seal,
        now: Callable[[], float],
    ) -> None:
        self._asked, self._request, self._items, self._seal, self._now = asked, request, items, seal, now
        include = asked.asked.include or ()
        options = OutputOptions(
            tools,
            request.own.toolset.arguments_of,
            server_calls=request.tool_events != "none",
            sources=SOURCES in include,
            code_outputs=CODE_OUTPUTS in include,
            summary=asked.summary,
            seal=seal.thoughts if ENCRYPTED in include else None,
        )
        self._output = OutputBuilder(run_id, options, request.sources)
        self.folds = (self._output,)
        named = {"id": RESPONSE_PREFIX + run_id, "created_at": int(now()), "model": request.model.name}
        self._begun = {**_UNFINISHED, **_echoed(asked.fields), **named}
        self._is_stored = asked.asked.store is not False
        self._has_begun = False
        self._response: Json = {}  # the finished one

    def keeps_hidden(self, answer: Respond) -> bool:
        """Whether the hidden part of a run is stored: if the response is."""
        del answer
        return self._is_stored

    def encode(self, events: Events) -> bytes:
        """The bytes of events, each with its number."""
        if not self._has_begun:
            self._has_begun = True
            response = self._object("in_progress")
            begun = [{"type": f"response.{kind}", "response": response} for kind in ("created", "in_progress")]
            events = [*begun, *events]
        data = bytearray()
        for event in events:
            kind: str = event["type"]
            numbered = {**event, "sequence_number": next(self._output.numbers)}
            data += b"event: " + kind.encode() + b"\n" + sse.encode(numbered)
        return bytes(data)

    def _object(self, status: str, **changes: Any) -> Json:
        """The response object in one of its states; its model is the upstream's, if the upstream has named it."""
        model = self._output.model
        named = {"model": model} if model and isinstance(model, str) else {}
        return {**self._begun, **named, "status": status, **changes}

    def end(self, answers: Sequence[Respond]) -> Events:
        """Close all items, and keep the finished response if the client wants it stored."""
        [answer] = answers
        hidden, carried = None if self._is_stored else answer.continuation, None
        if hidden is not None and (hidden.before or hidden.results or has_opaque_fields(hidden.message)):
            carried = self._seal.hidden(self._output.run_id, hidden)
        events = self._output.finish(answer, carried=carried)
        ended: Json = {"output": self._output.items, "usage": usage_of(answer.tally)}
        if (reason := _INCOMPLETE.get(answer.finish_reason)) is not None:
            self._response = self._object("incomplete", **ended, incomplete_details={"reason": reason})
        else:
            self._response = self._object("completed", **ended, completed_at=int(self._now()))
        if self._is_stored:
            self.kept = self._as_stored(answer).as_kept()
        return events

    def _as_stored(self, answer: Respond) -> StoredResponse:
        request = self._request
        # After a mixed turn, the hidden messages are stored apart; the client's results have the ids to find them.
        added = storable(answer.added)
        holds_more = (added or has_opaque_fields(answer.message)) and answer.continuation is None
        return StoredResponse(
            self._response,
            with_ids(self._items, self._output.run_id),
            self._asked.asked.previous_response_id,
            turns=[*added, answer.message] if holds_more else (),
            sources={url: title for url, title in answer.sources.items() if url not in request.sources},
            conversation=request.conversation.decode() if request.conversation else None,
            bound=request.own.credentials.bound(),
        )

    def last(self, answers: Sequence[Respond]) -> bytes:
        """The event with the finished response, and the end mark."""
        del answers
        kind = f"response.{self._response['status']}"
        return self.encode([{"type": kind, "response": self._response}]) + sse.DONE

    def whole(self, answers: Sequence[Respond]) -> Json:
        """The finished response."""
        del answers
        return self._response

    def error(self, error: ProxyError) -> bytes:
        """The error in two events: SDKs raise an exception for `error`, and `response.failed` has the response."""
        envelope = error.envelope()["error"]
        fields = {key: envelope[key] for key in ("code", "message", "param")}
        data = self.encode([*self._output.fail(), {"type": "error", **fields, "error": envelope}])
        failure = {"code": _CODES.get(error.status, "server_error"), "message": error.message}
        self._response = self._object("failed", output=self._output.items, error=failure)
        return data + self.last(())
