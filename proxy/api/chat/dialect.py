"""Requests of Chat Completions, which need no translation: a request is read by checking it."""

from collections.abc import Sequence

import orjson

from proxy.api.chat.completion import CompletionReply
from proxy.api.chat.request import parse_chat_request
from proxy.api.dialect import Chosen, Context, Parsed, Request
from proxy.api.known import History
from proxy.api.request import Access, ResolvedRequest
from proxy.wire.chat import Json


class ChatDialect:
    """Chat Completions."""

    history_field = ""
    loads = staticmethod(orjson.loads)

    def parse(self, body: bytes, history: History | None) -> "_ParsedChat":
        """Parse a body and check its fields. Raises `RequestError`, `InvalidJson`."""
        del history
        return _ParsedChat(chat=parse_chat_request(body), body=body)


class _ParsedChat(Parsed):
    chat: Json
    body: bytes

    def calling(self) -> Json:
        """The request itself."""
        return self.chat

    def read(self, context: Context) -> "_ChatRequest":
        """The request as it is."""
        return _ChatRequest(context=context, chat=self.chat, body=self.body)


class _ChatRequest(Request, frozen=True):
    def within(self, access: Access) -> "_AsDeclared":
        """The tools as they are declared."""
        del access
        return _AsDeclared(created=int(self.context.now()))


class _AsDeclared(Chosen, frozen=True, kw_only=True):
    created: int

    def reply(self, request: ResolvedRequest, run_ids: Sequence[str]) -> CompletionReply:
        """The completion."""
        options = request.chat.get("stream_options") or {}
        usage = bool(options.get("include_usage"))
        return CompletionReply(run_ids, self.created, request.model.name, request.tool_events, include_usage=usage)
