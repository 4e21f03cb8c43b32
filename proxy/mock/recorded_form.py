"""A recorded answer in the form that is asked for now: a stream, folded, or a whole answer as a stream."""

from collections.abc import Iterator
from typing import Final

import orjson
from msgspec.structs import replace

from proxy.cases.answers import fold
from proxy.cases.replies import Reply, parsed
from proxy.cases.unmet import Unmet
from proxy.wire import sse
from proxy.wire.chat import Json

_OK: Final = 200


def as_asked(reply: Reply, asked: Json, request: Json) -> Reply:
    """The reply to a request for the other form than `asked`; as it was recorded if it is no finished completion."""
    streamed = request.get("stream") is True
    if streamed == (asked.get("stream") is True) or reply.status != _OK:
        return reply
    body = b"".join(part for part in reply.parts if isinstance(part, bytes))
    seconds = sum(part for part in reply.parts if not isinstance(part, bytes))
    if not streamed:
        try:
            answer = fold(body, "chat", streamed=True)
        except (Unmet, KeyError, TypeError, IndexError):
            return reply
        content, kind = orjson.dumps(answer.whole), b"application/json"
    else:
        whole = parsed(body)
        if not isinstance(whole, dict) or not isinstance(whole.get("choices"), list):
            return reply
        content = b"".join(map(sse.encode, _chunks(whole, request))) + sse.DONE
        kind = b"text/event-stream"
    headers = [(name, value) for name, value in reply.headers if name != b"content-type"]
    return replace(reply, headers=[*headers, (b"content-type", kind)], parts=[seconds, content])


def _chunks(whole: Json, request: Json) -> Iterator[Json]:
    """A whole answer as the chunks of a stream."""
    head = {key: value for key, value in whole.items() if key not in ("choices", "usage")}
    head["object"] = "chat.completion.chunk"
    for choice in whole["choices"]:
        message = {key: value for key, value in (choice.get("message") or {}).items() if value is not None}
        if calls := message.get("tool_calls"):
            message["tool_calls"] = [{"index": at, **call} for at, call in enumerate(calls)]
        rest = {key: value for key, value in choice.items() if key not in ("message", "finish_reason")}
        yield {**head, "choices": [{**rest, "delta": message, "finish_reason": None}]}
        end = {"index": choice.get("index", 0), "delta": {}, "finish_reason": choice.get("finish_reason")}
        yield {**head, "choices": [end]}
    if (request.get("stream_options") or {}).get("include_usage") and whole.get("usage") is not None:
        yield {**head, "choices": [], "usage": whole["usage"]}
