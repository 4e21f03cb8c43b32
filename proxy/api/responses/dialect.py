"""Requests of the Responses API, read into chat requests."""

from collections.abc import Sequence
from functools import partial

import orjson

from proxy.api.credentials import RequestTools
from proxy.api.dialect import Chosen, Context, Parsed, Request, Stored
from proxy.api.known import History
from proxy.api.parsing import expect_few_blocks, parse_object
from proxy.api.remembered import text_of
from proxy.api.reply import Kept
from proxy.api.request import Access, ResolvedRequest
from proxy.api.responses.conversation import read_conversation
from proxy.api.responses.encrypted_content import Seal
from proxy.api.responses.output import OutputBuilder, OutputOptions
from proxy.api.responses.parts import holds_files
from proxy.api.responses.reply import ResponseReply
from proxy.api.responses.request import CODE_OUTPUTS, ENCRYPTED, SOURCES, ResponsesRequest, read_request
from proxy.api.responses.stored import RESPONSE_PREFIX, ItemHistory, ResponseStore, StoredResponse, with_ids
from proxy.api.responses.tools import WITH_TOOLS, ResponseTools, declared_in, late_names, read_tools
from proxy.loop.actions import Respond
from proxy.loop.continuation import storable
from proxy.loop.offer import SEARCH
from proxy.turn.opaque_fields import has_opaque_fields
from proxy.wire.chat import Json, ToolSpec
from proxy.wire.errors import PreviousResponseNotFound, ProxyError


class ResponsesDialect:
    """The Responses API."""

    history_field = "input"
    loads = staticmethod(orjson.loads)
    seals = True

    def parse(self, body: bytes, history: History | None) -> "_ParsedResponses":
        """Parse a body and check its fields. Raises `RequestError`, `InvalidJson`."""
        fields = parse_object(body, history)
        expect_few_blocks(fields.get("input"), "input", of=body)
        request = read_request(fields)
        return _ParsedResponses(
            request=request,
            history=ItemHistory((), request.items, {}),
            continues=request.asked.previous_response_id is not None
            or any(item["type"] == "item_reference" for item in request.items),
        )


class _ParsedResponses(Parsed):
    request: ResponsesRequest
    history: ItemHistory

    async def continued(self, stored: Stored) -> None:
        """Look up the conversation that it continues. Raises as `ResponseStore.history` does."""
        responses, previous = ResponseStore(stored), self.request.asked.previous_response_id
        try:
            self.history = await responses.history(self.request.items, previous)
        except PreviousResponseNotFound:
            stored.observe("continuation.sought", sought=1, found=0)
            raise
        if previous is not None:
            stored.observe("continuation.sought", sought=1, found=1)
        self.bytes_read = responses.bytes_read
        self.is_slow = self.is_slow or holds_files(self.history.items)

    def _listed(self) -> list[Json]:
        """All declared tools, those of the conversation among them. Raises `RequestError`."""
        return declared_in(self.request.fields, before=self.history.before, own=self.history.own)

    def calling(self) -> Json:
        """The fields of the request, with all declared tools."""
        return {**self.request.fields, "tools": self._listed()}

    def read(self, context: Context) -> "_ResponsesRequest":
        """Read its tools and its conversation. Raises `RequestError`."""
        request, history = self.request, self.history
        fields, seal = request.fields, Seal(context.sealer)
        items = history.items
        text = text_of(fields.get("tools"), fields.get("tool_choice"))
        if any(item["type"] in WITH_TOOLS for item in items):  # what they declare is not in these fields
            text = None
        declared, tool_fields, late = context.once(text, partial(self._tools, context.own), step="read")
        conversation = read_conversation(
            items, instructions=fields.get("instructions"), name_of=declared.name_of, unseal=seal.open
        )
        return _ResponsesRequest(
            context=context,
            chat=request.as_chat(conversation.messages, tool_fields),
            check=request.check,
            max_output_tokens=fields.get("max_output_tokens"),
            named=fields.get("prompt_cache_key"),
            conversation=history.conversation.encode() if history.conversation else None,
            hidden=conversation.hidden,
            sources=history.sources,
            unshown=request.unshown.types,
            request=request,
            items=history.own,
            declared=declared,
            late=late,
            text=text,
            seal=seal,
        )

    def _tools(self, own: RequestTools) -> tuple[ResponseTools, Json, Sequence[str]]:
        """The declared tools, their fields of the chat request, and the names of those that came in later."""
        fields = self.request.fields
        where = "tools" if fields.get("tools") else "input"
        choice, code = fields.get("tool_choice"), own.code_interpreter
        declared = read_tools(self._listed(), choice, own.toolset.names, code_interpreter=code, where=where)
        return declared, declared.fields(), late_names(declared, fields, self.history.items)

    def as_sent(self, error: ProxyError) -> None:
        """Replace the field of the chat request that an error names by the one that the client has sent."""
        self.request.as_sent(error)


class _ResponsesRequest(Request, frozen=True, kw_only=True):
    request: ResponsesRequest
    items: Sequence[Json]  # its own, without the conversation before it
    declared: ResponseTools
    late: Sequence[str]
    text: bytes | None  # of the declared tools, by which what is made of them is remembered
    seal: Seal

    def within(self, access: Access) -> "_ResponsesChosen":
        """The tools of the request within what it may use. Raises `RequestError` if it demands one that it may not."""
        narrows = access.drops_unavailable_tools
        within = partial(self._within, access.tools, drop=narrows)
        tools, fields = self.context.once(self.text, within, same=(access.tools,), narrows=narrows)
        return _ResponsesChosen(
            fields=fields,
            tools=tuple([tool for tool in access.tools if tool.name != SEARCH]) if tools.offline else None,
            ignored=tools.ignored,
            late=self.late,
            text=self.text,
            asked=self,
            declared=tools,
        )

    def _within(self, usable: Sequence[ToolSpec], *, drop: bool) -> tuple[ResponseTools, Json]:
        """The tools within the usable ones, and their fields of the chat request."""
        has = self.context.own.has
        names = frozenset(name for tool in usable if has(tool.name) for name in tool.names)
        tools = self.declared.within(names, drop=drop)
        return tools, tools.fields()


class _ResponsesChosen(Chosen, frozen=True, kw_only=True):
    asked: _ResponsesRequest
    declared: ResponseTools

    def reply(self, request: ResolvedRequest, run_ids: Sequence[str]) -> ResponseReply:
        """The response."""
        asked, [run_id], now = self.asked.request, run_ids, self.asked.context.now
        include = asked.asked.include or ()
        options = OutputOptions(
            self.declared,
            request.own.toolset.arguments_of,
            server_calls=request.tool_events != "none",
            sources=SOURCES in include,
            code_outputs=CODE_OUTPUTS in include,
            summary=asked.summary,
            seal=self.asked.seal.thoughts if ENCRYPTED in include else None,
        )
        return ResponseReply(
            {"id": RESPONSE_PREFIX + run_id, "created_at": int(now()), "model": request.model.name},
            asked.fields,
            OutputBuilder(run_id, options, request.sources),
            keep=partial(self._kept, request, run_id) if asked.asked.store is not False else None,
            seal=self.asked.seal.hidden,
            now=now,
        )

    def _kept(self, request: ResolvedRequest, run_id: str, response: Json, answer: Respond) -> Kept:
        """The finished response as it is stored."""
        # After a mixed turn, the hidden messages are stored apart; the client's results have the ids to find them.
        added = storable(answer.added)
        holds_more = (added or has_opaque_fields(answer.message)) and answer.continuation is None
        turns = [*added, answer.message] if holds_more else ()
        found = {url: title for url, title in answer.sources.items() if url not in request.sources}
        conversation = request.conversation.decode() if request.conversation else None
        items, bound = with_ids(self.asked.items, run_id), request.own.credentials.bound()
        previous = self.asked.request.asked.previous_response_id
        return StoredResponse(response, items, previous, turns, found, conversation, bound).as_kept()
