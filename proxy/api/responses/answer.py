"""The response object, and the stream of events that ends in it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from proxy.api.responses.request import ResponsesRequest
from proxy.loop import sse
from proxy.loop.actions import Tally
from proxy.loop.chat import Json
from proxy.loop.errors import ProxyError

# Fields that an answer echoes -> what stands there when the request says nothing.
_ECHOED: Json = {
    "background": False,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "safety_identifier": None,
    "service_tier": "default",
    "store": True,
    "temperature": 1,
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": 1,
    "truncation": "disabled",
    "user": None,
}
_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
# What may stand in a failed response's `error.code`, by status; everything else is `server_error`.
_CODES = {400: "invalid_prompt", 429: "rate_limit_exceeded"}


class Head(Struct, frozen=True):
    """What is the same in every state of one response; `model` stands in where the upstream does not name its own."""

    id: str
    created: int
    model: str
    request: ResponsesRequest

    def response(self, status: str, output: Sequence[Json] = (), **changes: Any) -> Json:
        """The response object."""
        given = self.request.fields
        echoed = {key: default if given.get(key) is None else given[key] for key, default in _ECHOED.items()}
        reasoning = {"effort": None, "summary": None, **(given.get("reasoning") or {})}
        wanted = {"format": {"type": "text"}, **_said(given.get("text") or {})}
        echoed |= {"reasoning": reasoning, "text": wanted, "tools": [_echoed_tool(tool) for tool in echoed["tools"]]}
        state = {"id": self.id, "object": "response", "created_at": self.created, "completed_at": None}
        state |= {"status": status, "error": None, "incomplete_details": None, "model": self.model}
        return {**state, **echoed, "output": list(output), "usage": None, **changes}

    def finished(self, output: Sequence[Json], finish_reason: str, tally: Tally, *, at: int) -> Json:
        """The response object at the end."""
        usage = usage_of(tally)
        if finish_reason in _INCOMPLETE:
            details = {"reason": _INCOMPLETE[finish_reason]}
            return self.response("incomplete", output, incomplete_details=details, usage=usage)
        return self.response("completed", output, completed_at=at, usage=usage)

    def failed(self, output: Sequence[Json], error: ProxyError) -> Json:
        """The response object where there is no answer."""
        code = _CODES.get(error.status, "server_error")
        return self.response("failed", output, error={"code": code, "message": error.message})


def _said(fields: Json) -> Json:
    return {key: value for key, value in fields.items() if value is not None}


def _echoed_tool(tool: Json) -> Json:
    """A tool as the client sent it; a function with every field that it has to have in an answer."""
    if tool["type"] != "function":
        return tool
    return {"description": None, "parameters": None, "strict": None, **tool}


def usage_of(tally: Tally) -> Json:
    """OpenAI's `usage` of a response, every total and detail in it, with `server_tool_use` beside it."""
    usage = tally.as_usage()
    read, wrote = usage.get("prompt_tokens_details"), usage.get("completion_tokens_details")
    return {
        "input_tokens": usage["prompt_tokens"] or 0,
        "input_tokens_details": _counts(read, "cached_tokens", "cache_write_tokens"),
        "output_tokens": usage["completion_tokens"] or 0,
        "output_tokens_details": _counts(wrote, "reasoning_tokens"),
        "total_tokens": usage["total_tokens"] or 0,
        "server_tool_use": usage["server_tool_use"],
    }


def _counts(details: Any, *names: str) -> Json:
    return {name: (details.get(name) if isinstance(details, dict) else None) or 0 for name in names}


@dataclass(slots=True)
class Transcript:
    """A response's events on the wire: numbered from 0, `created` and `in_progress` before all others."""

    head: Head
    _next: int = field(default=0)

    def settle(self, model: Any) -> None:
        """The upstream's own name for the model, if it comes before the first event."""
        if not self._next and isinstance(model, str) and model:
            self.head = replace(self.head, model=model)

    def write(self, events: Iterable[Json]) -> bytes:
        """The events as bytes; nothing where there are none."""
        return b"".join(self._encode(event) for event in events)

    def finish(self, response: Json) -> bytes:
        """The last event, and the end mark."""
        kind = f"response.{response['status']}"
        return self.write([{"type": kind, "response": response}]) + sse.DONE

    def fail(self, output: Sequence[Json], error: ProxyError) -> bytes:
        """A failure: the `error` that SDKs raise, then the response as it is, and the end mark."""
        envelope = error.envelope()["error"]
        told = {"type": "error", **{key: envelope[key] for key in ("code", "message", "param")}, "error": envelope}
        return self.write([told]) + self.finish(self.head.failed(output, error))

    def _encode(self, event: Json) -> bytes:
        opening = b"" if self._next else self._open()
        return opening + self._number(event)

    def _open(self) -> bytes:
        response = self.head.response("in_progress")
        return b"".join(
            self._number({"type": f"response.{kind}", "response": response}) for kind in ("created", "in_progress")
        )

    def _number(self, event: Json) -> bytes:
        numbered = {**event, "sequence_number": self._next}
        self._next += 1
        kind: str = event["type"]
        return b"event: " + kind.encode() + b"\n" + sse.encode(numbered)
