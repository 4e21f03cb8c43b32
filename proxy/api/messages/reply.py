"""The message object of the Messages API, and the stream of events that describes it."""

from collections.abc import Sequence
from functools import partial

from proxy.api.messages.errors import MESSAGES_ERRORS, REQUEST_ID
from proxy.api.messages.message import MessageBuilder, MessageOptions
from proxy.api.messages.tools import execute_within
from proxy.api.reply import Events, Kept, Reply, hidden_as_stored
from proxy.api.request import ResolvedRequest
from proxy.kit import request_context
from proxy.loop.actions import Respond
from proxy.loop.continuation import CarriedTurns
from proxy.turn.opaque_fields import has_opaque_fields
from proxy.wire import sse
from proxy.wire.chat import BROKEN_OFF, Json
from proxy.wire.errors import ProxyError
from proxy.wire.tokens import count_tokens
from proxy.wire.usage import token_count

_PING = b'event: ping\ndata: {"type":"ping"}\n\n'


def request_id() -> str:
    """The id of the current request."""
    return str(request_context.fields.get({}).get("request_id"))


class MessageReply(Reply):
    """The reply to a Messages request.

    Args:
        run_id: the id of its run.
        request: the resolved request.
        options: the other parts of the request.
    """

    measures = True

    def __init__(self, run_id: str, request: ResolvedRequest, options: MessageOptions) -> None:
        self._run_id = run_id
        self._request = request
        self._options = options
        self._message = MessageBuilder(run_id, request, options)
        model = options.fields.model
        self._head: Json = {"id": f"msg_{run_id}", "type": "message", "role": "assistant", "model": model}
        self._request_id = request_id()
        self._input_tokens: int | None = None  # of a stream, estimated; None: it has begun, or there is none
        self._carried: CarriedTurns = ()
        if options.tools.shown:
            self.execute = partial(execute_within, request.own.toolset.execute, options.tools)
        self.folds = (self._message,)
        self.headers = ((REQUEST_ID, self._request_id.encode()),)

    def keeps_hidden(self, answer: Respond) -> bool:
        """Whether the hidden part of a run is stored: if the client is not shown some of its calls or thoughts."""
        offer, shown = self._request.offer, self._options.tools.shown
        visible = {*offer.client_tools, *(name for name, tool in offer.server_tools.items() if tool.name in shown)}
        for turn in (*answer.earlier_turns, answer.turn):
            if not self._options.fields.thinks and (
                turn.message.get("reasoning_content") or turn.message.get("reasoning")
            ):
                return True
            if any(call.name not in visible for call in turn.calls):
                return True
        return False

    def measure(self) -> None:
        """Estimate the tokens of the request, with all tools that the model is offered."""
        self._input_tokens = count_tokens({**self._request.chat, "tools": self._request.offer.tools})

    def heartbeat(self) -> bytes:
        """A `ping`."""
        return self.encode([]) + _PING

    def encode(self, events: Events) -> bytes:
        """The bytes of events, after `message_start` if they are the first."""
        tokens, self._input_tokens = self._input_tokens, None
        if tokens is not None:
            ending = {"stop_reason": None, "stop_sequence": None, "stop_details": None}
            cache = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
            usage = {"input_tokens": tokens, "output_tokens": 1, **cache}
            message = {**self._head, "content": [], **ending, "usage": usage}
            events = [{"type": "message_start", "message": message}, *events]
        return b"".join([b"event: %b\n%b" % (event["type"].encode(), sse.encode(event)) for event in events])

    def end(self, answers: Sequence[Respond]) -> Events:
        """Close all blocks, and keep what the client cannot bring back and the hidden part of the run does not hold."""
        [answer] = answers
        if answer.finish_reason in BROKEN_OFF:  # the last input may only be incomplete
            self._message.blocks.mended = None
        events = self._message.end_turn(())
        turns = (*answer.earlier_turns, answer.turn)
        if any(has_opaque_fields(turn.message) for turn in turns):
            tools = self._request.offer.server_tools
            self._carried = tuple([self._message.carried_by(turn, tools) for turn in turns])
            # A signature holds these fields too where it can: in a stream, the thoughts end before the calls begin.
            carried = tuple([turn for turn in self._carried if turn and turn.calls])
            if carried and not (answer.continuation is not None and self.keeps_hidden(answer)):
                self.kept = Kept(self._run_id, hidden_as_stored(carried, self._request.own.credentials))
        return events

    def last(self, answers: Sequence[Respond]) -> bytes:
        """The end of the message, and of the stream."""
        [answer] = answers
        usage = _usage_of(answer, self._message.uses)
        delta = {"type": "message_delta", "delta": self._message.ending(answer), "usage": usage}
        return self.encode([delta, {"type": "message_stop"}])

    def whole(self, answers: Sequence[Respond]) -> Json:
        """The message object."""
        [answer] = answers
        # The turns of a corrected answer are numbered from 1 again; the later ones are the answer.
        numbers = [turn.number for turn in (*answer.earlier_turns, answer.turn)]
        for number, carried in dict(zip(numbers, self._carried, strict=False)).items():
            if carried:
                self._message.blocks.sign_again(number, carried)
        usage = _usage_of(answer, self._message.uses)
        return {**self._head, "content": self._message.blocks.content, **self._message.ending(answer), "usage": usage}

    def error(self, error: ProxyError) -> bytes:
        """The error in the envelope of this API."""
        return MESSAGES_ERRORS.last_event(error, self._request_id)


def _usage_of(answer: Respond, server_tool_use: Json | None) -> Json:
    """The tokens of all turns, as this API counts them (cached ones apart), and the `cost` if there are prices.

    `server_tool_use` are the numbers of hosted calls; None: the client has not declared hosted tools.
    """
    usage = answer.tally.usage
    cached = token_count(usage, "prompt_tokens_details", "cached_tokens") or 0
    counted: Json = {
        "input_tokens": max(0, (token_count(usage, "prompt_tokens") or 0) - cached),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": token_count(usage, "completion_tokens") or 0,
    }
    if thought := token_count(usage, "completion_tokens_details", "reasoning_tokens"):
        counted["output_tokens_details"] = {"thinking_tokens": thought}
    if server_tool_use is not None:
        counted["server_tool_use"] = server_tool_use
    if (cost := answer.tally.total_cost) is not None:
        counted["cost"] = cost
    return counted
