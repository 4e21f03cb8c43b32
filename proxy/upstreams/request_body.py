"""A run's requests as JSON: what a turn has in common with the one before it is made to fit, and written, once.

A turn adds the model's message and a few results to a conversation that may be long. Nothing else of the request
changes, until the model has to be made to answer.
"""

from typing import Any

import orjson
from msgspec import Struct

from proxy.loop.actions import CallUpstream
from proxy.loop.errors import InvalidJson
from proxy.loop.forcing import AnswerStep
from proxy.upstreams.names import ToolNames, are_good, called_in, renamed_in
from proxy.upstreams.profile import Profile, fit_messages, prepare

# A copy is kept for each choice of a request while its run goes on, and a request may have 128.
MOST_KEPT = 256 * 1024
_BEFORE = len(b'{"messages":[')


def request_of(call: CallUpstream, profile: Profile, model: str) -> tuple[bytes, ToolNames | None]:
    """A turn's request as an upstream takes it, and the mapping of its tools' names; None: they are all good.

    Args:
        call: what is asked; what was written is kept in it for the next turn.
        profile: of the upstream.
        model: the upstream's name for it.

    Raises:
        RequestError: it asks for what the upstream cannot do, or is nested too deep to be written.
    """
    last = call.kept.pop("request", None)
    if last is not None and last.goes_on(call, profile, model):
        _keep(last, call)
        return last.content, None
    body = {**prepare(call.body, profile), "model": model}
    if call.step is AnswerStep.RETELL:
        body |= profile.retelling
    if body.get("stream"):
        body["stream_options"] = {**(body.get("stream_options") or {}), "include_usage": True}
    body["messages"] = body.pop("messages")  # at the end, so that more of them can be added
    names = renamed_in(body)
    if names is not None:
        return as_json(names.outward(body)), names
    content = as_json(body)
    _keep(_Written(profile, model, len(call.body["messages"]), content), call)
    return content, None


def _keep(written: "_Written", call: CallUpstream) -> None:
    if len(written.content) <= MOST_KEPT:
        call.kept["request"] = written


class _Written(Struct, eq=False):
    """The latest request of a run.

    Attributes:
        profile: of the upstream that it was written for.
        model: the upstream's name for it.
        count: of its messages, as they were asked.
        content: the request as JSON, its messages at the end.
    """

    profile: Profile
    model: str
    count: int
    content: bytes

    def goes_on(self, call: CallUpstream, profile: Profile, model: str) -> bool:
        """Add the messages that `call` has at its end beside these; False: it has to be written anew."""
        messages = call.body["messages"]
        if profile is not self.profile or model != self.model or len(messages) < self.count:
            return False
        more = fit_messages(messages[self.count :], profile)
        if not are_good(called_in(more)):
            return False
        if more:
            added = as_json({"messages": more})[_BEFORE:]  # as deep as they are in a first request
            self.count, self.content = len(messages), b"".join((self.content[:-2], b",", added))
        return True


def as_json(value: Any) -> bytes:
    """A request, or part of one, as JSON. orjson reads 1024 levels of nesting and writes 254.

    Raises:
        InvalidJson: it is nested deeper than that.
    """
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError as exc:
        raise InvalidJson("The request body is nested too deep.") from exc
