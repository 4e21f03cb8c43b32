"""The response object, and the stream of events that ends in it."""

from collections.abc import Awaitable, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from proxy.api.event_stream import EventStream, Outbox
from proxy.api.fold import Events
from proxy.api.responses.output import OutputBuilder
from proxy.api.responses.request import ResponsesRequest
from proxy.loop.actions import Respond
from proxy.loop.shown import RunEvent
from proxy.loop.tally import Tally
from proxy.wire import rawjson, sse
from proxy.wire.chat import Json
from proxy.wire.errors import ProxyError
from proxy.wire.usage import token_count

# Fields that a response echoes -> their values if the request does not have them.
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
_TEXT_DELTA = b'event: response.output_text.delta\ndata: %b%b,"sequence_number":%d}\n\n'
_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
# The `error.code` of a failed response by the status of its error; for any other status it is `server_error`.
_CODES = {400: "invalid_prompt", 429: "rate_limit_exceeded"}


class ResponseHead(Struct, frozen=True):
    """The properties that a response has from its beginning to its end.

    Attributes:
        id: the id of the response.
        created: seconds since 1970.
        model: the name of the model; the upstream's name, once it is known.
        request: the request, whose fields the response echoes.
    """

    id: str
    created: int
    model: str
    request: ResponsesRequest

    def response(self, status: str, output: Sequence[Json] = (), **changes: Any) -> Json:
        """The response object in one of its states."""
        given = _without_nulls(self.request.fields)
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "completed_at": None,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "model": self.model,
            **_ECHOED,
            **{key: value for key, value in given.items() if key in _ECHOED},
            "reasoning": {"effort": None, "summary": None, **given.get("reasoning", {})},
            "text": {"format": {"type": "text"}, **_without_nulls(given.get("text", {}))},
            "tools": [_echoed_tool(tool) for tool in given.get("tools", ())],
            "output": list(output),
            "usage": None,
            **changes,
        }

    def finished(self, output: Sequence[Json], finish_reason: str, tally: Tally, *, at: int) -> Json:
        """The response object at the end of a run."""
        usage = usage_of(tally)
        if finish_reason in _INCOMPLETE:
            details = {"reason": _INCOMPLETE[finish_reason]}
            return self.response("incomplete", output, incomplete_details=details, usage=usage)
        return self.response("completed", output, completed_at=at, usage=usage)

    def failed(self, output: Sequence[Json], error: ProxyError) -> Json:
        """The response object after a failure."""
        code = _CODES.get(error.status, "server_error")
        return self.response("failed", output, error={"code": code, "message": error.message})


def _without_nulls(fields: Json) -> Json:
    return {key: value for key, value in fields.items() if value is not None}


def _echoed_tool(tool: Json) -> Json:
    """A tool as the client sent it; a function has every field that a response requires."""
    if tool["type"] != "function":
        return tool
    return {"description": None, "parameters": None, "strict": None, **tool}


def usage_of(tally: Tally) -> Json:
    """The `usage` of a response with every total and detail that OpenAI has, and `server_tool_use`."""
    usage = tally.as_usage()
    cost = {} if usage.get("cost") is None else {"cost": usage["cost"]}
    return {
        "input_tokens": token_count(usage, "prompt_tokens") or 0,
        "input_tokens_details": _counts(usage, "prompt_tokens_details", "cached_tokens", "cache_write_tokens"),
        "output_tokens": token_count(usage, "completion_tokens") or 0,
        "output_tokens_details": _counts(usage, "completion_tokens_details", "reasoning_tokens"),
        "total_tokens": token_count(usage, "total_tokens") or 0,
        "server_tool_use": usage["server_tool_use"],
        **cost,
    }


def _counts(usage: Json, details: str, *names: str) -> Json:
    return {name: token_count(usage, details, name) or 0 for name in names}


class ResponseStream:
    """Writes a response to a client with `stream: true`.

    The events are numbered from 0; `created` and `in_progress` precede all others. An event gets its number when it is
    put into the outbox, so that events of several tasks are sent in the order of their numbers.

    Args:
        stream: the stream to the client.
        head: the properties of the response.
        output: makes the events of its items.
    """

    def __init__(self, stream: EventStream, head: ResponseHead, output: OutputBuilder) -> None:
        self._head = head
        self.output = output
        self._outbox = Outbox(stream)
        self._next_number = 0

    @property
    def head(self) -> ResponseHead:
        """The properties of the response; its `model` is the upstream's, if that was known before the first event."""
        return replace(self._head, model=self.output.model or self._head.model)

    def show(self, chunk: Json) -> Awaitable[None]:
        """Write a chunk of the only choice."""
        choices = chunk["choices"]
        if len(choices) != 1 or choices[0].get("logprobs"):
            return self._write(self.output.take(chunk))
        delta: Json = choices[0]["delta"]
        text: Any = delta.get("content")
        if text and isinstance(text, str) and len(delta) == 1 and (beginning := self.output.grow_text(text)):
            event = _TEXT_DELTA % (beginning, rawjson.dumps_answer(text), self._next_number)
            self._next_number += 1
            return self._outbox.write(event)
        return self._write(self.output.take(chunk))

    async def hear(self, event: RunEvent) -> bool:
        """Write the changes that an event of the run makes to the output; returns whether there are any."""
        events = self.output.hear(event)
        await self._write(events)
        return bool(events)

    async def end_items(self, answer: Respond, *, carried: str | None) -> None:
        """Write the end of the output."""
        await self._write(self.output.finish(answer, carried=carried))

    async def finish(self, response: Json) -> None:
        """Write the last event, and end the stream."""
        self._encode_last(response)
        await self._outbox.finish()

    def encode_error(self, error: ProxyError) -> bytes:
        """The last bytes of a stream that fails: the events in the outbox, and the error.

        The error is in two events: SDKs raise an exception for `error`, and `response.failed` has the response.
        """
        envelope = error.envelope()["error"]
        fields = {key: envelope[key] for key in ("code", "message", "param")}
        self._append_all([*self.output.fail(), {"type": "error", **fields, "error": envelope}])
        self._encode_last(self.head.failed(self.output.items, error))
        return bytes(self._outbox.pending)

    def _encode_last(self, response: Json) -> None:
        self._append_all([{"type": f"response.{response['status']}", "response": response}])
        self._outbox.pending += sse.DONE

    def _append_all(self, events: Events) -> None:
        """Number events and put them into the outbox."""
        for event in events:
            if not self._next_number:
                response = self.head.response("in_progress")
                self._append({"type": "response.created", "response": response})
                self._append({"type": "response.in_progress", "response": response})
            self._append(event)

    def _append(self, event: Json) -> None:
        self._outbox.pending += b"event: " + event["type"].encode() + b"\n"
        self._outbox.pending += sse.encode({**event, "sequence_number": self._next_number})
        self._next_number += 1

    async def _write(self, events: Events) -> None:
        self._append_all(events)
        await self._outbox.flush()
