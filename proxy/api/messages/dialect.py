"""Requests of the Messages API, read into chat requests."""

from collections.abc import Sequence
from functools import partial

from msgspec import Struct

from proxy.api.affinity import session_in
from proxy.api.dialect import Chosen, Context, Parsed, Request
from proxy.api.known import History
from proxy.api.messages.conversation import read_conversation
from proxy.api.messages.history import changes_in
from proxy.api.messages.message import MessageOptions
from proxy.api.messages.pages import FoundPage
from proxy.api.messages.reply import MessageReply
from proxy.api.messages.request import MessagesRequest, read_request
from proxy.api.messages.tools import TOOL_FIELDS, MessageTools, read_tools
from proxy.api.parsing import expect_few_blocks, parse_object
from proxy.api.remembered import text_of
from proxy.api.request import Access, ResolvedRequest
from proxy.wire.chat import Json, name_of
from proxy.wire.json_text import with_exact_calls
from proxy.wire.tokens import count_tokens


class MessagesDialect(Struct, frozen=True):
    """The Messages API.

    Attributes:
        for_answer: whether requests are answered, and not only counted, so that they need `max_tokens` and a question.
        keeps_marks: whether an upstream takes marks of caches, so that they are kept until the upstream is known.
    """

    for_answer: bool = True
    keeps_marks: bool = False
    history_field = "messages"
    loads = staticmethod(with_exact_calls)  # the arguments of calls, which are objects here, keep their integers

    def parse(self, body: bytes, history: History | None) -> "_ParsedMessages":
        """Parse a body and check its fields. Raises `RequestError`, `InvalidJson`."""
        fields = parse_object(body, history)
        request = read_request(fields, needs_max_tokens=self.for_answer)
        expect_few_blocks(fields.get("messages"), "messages", of=body)
        return _ParsedMessages(fields=fields, request=request, dialect=self)


class _ParsedMessages(Parsed):
    fields: Json
    request: MessagesRequest
    dialect: MessagesDialect

    def calling(self) -> Json | None:
        """The fields of a request for an answer; one whose tokens are counted calls no tools."""
        return self.fields if self.dialect.for_answer else None

    def read(self, context: Context) -> "_MessagesRequest":
        """Read its tools and its conversation. Raises `RequestError`."""
        fields, messages, request = self.fields, self.fields.get("messages"), self.request
        changes = changes_in(messages)
        text = None if changes.tools else text_of(*map(fields.get, TOOL_FIELDS))
        tools = context.once(text, partial(read_tools, fields, context.own, changes.tools), step="read")
        check = request.schema_check()
        conversation = read_conversation(
            fields.get("system"),
            messages,
            context.sealer,
            tools.own_names,
            changes=changes,
            keeps_marks=self.dialect.keeps_marks,
            for_answer=self.dialect.for_answer,
        )
        return _MessagesRequest(
            context=context,
            chat=request.as_chat(conversation.messages, tools.for_chat, check),
            check=check,
            max_output_tokens=request.max_tokens,
            named=session_in(request.metadata) if request.metadata else None,
            has_marks=self.dialect.keeps_marks,
            unshown=conversation.unshown,
            request=request,
            tools=tools,
            text=text,
            effort=changes.effort,
            pages=conversation.pages,
        )


class _MessagesRequest(Request, frozen=True, kw_only=True):
    request: MessagesRequest
    tools: MessageTools
    text: bytes | None  # of the declared tools, by which what is made of them is remembered
    effort: str | None  # which the history asks for
    pages: Sequence[FoundPage]  # that earlier searches of the conversation have found

    def within(self, access: Access) -> "MessagesChosen":
        """The tools of the request within what it may use. Raises `RequestError` if it demands one that it may not."""
        narrows = access.drops_unavailable_tools
        within = partial(self.tools.within, access.tools, drop=narrows)
        tools = self.context.once(self.text, within, same=(access.tools,), narrows=narrows)
        return MessagesChosen(
            fields=tools.for_chat | self.request.fields_for(access.model.upstream, self.effort),
            tools=tools.server_tools,
            ignored=tools.ignored,
            filters=tools.filters,
            late=tools.late,
            text=self.text,
            asked=self,
            declared=tools,
        )


class MessagesChosen(Chosen, frozen=True, kw_only=True):
    """The tools of a request.

    Attributes:
        asked: the request.
        declared: its tools, the hosted ones among them.
    """

    asked: _MessagesRequest
    declared: MessageTools

    def reply(self, request: ResolvedRequest, run_ids: Sequence[str]) -> MessageReply:
        """The message."""
        [run_id], context = run_ids, self.asked.context
        options = MessageOptions(self.asked.request, self.declared, self.asked.pages, context.sealer, context.now)
        return MessageReply(run_id, request, options)

    def declared_tokens(self, request: ResolvedRequest) -> int:
        """The estimated tokens of the client's own request, without tools that the proxy adds."""
        declared = {*map(name_of, self.declared.functions), *self.declared.shown}
        tools = [tool for tool in request.offer.tools if name_of(tool) in declared]
        return count_tokens({**request.chat, "tools": tools})
