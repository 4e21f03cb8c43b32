"""Requests of the Responses API, read into chat requests."""

import re
from collections.abc import Sequence
from functools import partial

import orjson

from proxy.api.credentials import RequestTools
from proxy.api.dialect import Chosen, Context, Parsed, Request, Stored
from proxy.api.known import History
from proxy.api.parsing import expect_few_blocks, parse_object
from proxy.api.remembered import text_of
from proxy.api.request import Access, ResolvedRequest
from proxy.api.responses.conversation import read_conversation
from proxy.api.responses.encrypted_content import Seal
from proxy.api.responses.parts import holds_files
from proxy.api.responses.reply import ResponseReply
from proxy.api.responses.request import SENT_AS, ResponsesRequest, read_request
from proxy.api.responses.stored import ItemHistory, ResponseStore
from proxy.api.responses.tools import WITH_TOOLS, ResponseTools, declared_in, late_names, read_tools
from proxy.loop.offer import SEARCH
from proxy.wire.chat import Json, ToolSpec
from proxy.wire.errors import ProxyError


class ResponsesDialect:
    """The Responses API."""

    history_field = "input"
    loads = staticmethod(orjson.loads)

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
        responses = ResponseStore(stored)
        self.history = await responses.history(self.request.items, self.request.asked.previous_response_id)
        self.bytes_read = responses.bytes_read
        self.is_slow = self.is_slow or holds_files([*self.history.before, *self.history.own])

    def _listed(self) -> list[Json]:
        """All declared tools, those of the conversation among them. Raises `RequestError`."""
        return declared_in(self.request.fields, before=self.history.before, own=self.history.own)

    def calling(self) -> Json:
        """The fields of the request, with all declared tools."""
        return {**self.request.fields, "tools": self._listed()}

    def read(self, context: Context) -> "_ResponsesRequest":
        """Read its tools and its conversation. Raises `RequestError`."""
        request, history = self.request, self.history
        fields, items, seal = request.fields, [*history.before, *history.own], Seal(context.sealer)
        adds_tools = any(item["type"] in WITH_TOOLS for item in items)  # which are not in the fields of the request
        text = None if adds_tools else text_of(fields.get("tools"), fields.get("tool_choice"))
        declared = context.once(text, partial(self._tools, context.own), step="read")
        messages, hidden = read_conversation(
            items, instructions=fields.get("instructions"), name_of=declared.name_of, unseal=seal.open
        )
        return _ResponsesRequest(
            context=context,
            chat=request.as_chat(messages, declared.fields()),
            check=request.check,
            max_output_tokens=fields.get("max_output_tokens"),
            named=fields.get("prompt_cache_key"),
            conversation=history.conversation.encode() if history.conversation else None,
            hidden=hidden,
            sources=history.sources,
            unshown=request.unshown.types,
            parsed=self,
            declared=declared,
            late=late_names(declared, fields, items) if adds_tools else (),
            text=text,
            seal=seal,
        )

    def _tools(self, own: RequestTools) -> ResponseTools:
        fields = self.request.fields
        where = "tools" if fields.get("tools") else "input"
        choice, code = fields.get("tool_choice"), own.code_interpreter
        return read_tools(self._listed(), choice, own.toolset.names, code_interpreter=code, where=where)

    def as_sent(self, error: ProxyError) -> None:
        """Replace the field of the chat request that an error names by the one that the client has sent."""
        if error.param is None:
            return
        name = re.split(r"[.\[]", error.param, maxsplit=1)[0]
        sent = SENT_AS.get(name)
        if name == "logprobs":
            sent = "top_logprobs" if self.request.asked.top_logprobs else "include"
        if sent is not None:
            error.message = error.message.replace(f"'{error.param}'", f"'{sent}'")
            error.param = sent


class _ResponsesRequest(Request, frozen=True, kw_only=True):
    parsed: _ParsedResponses
    declared: ResponseTools
    late: Sequence[str]
    text: bytes | None  # of the declared tools, by which what is made of them is remembered
    seal: Seal

    def within(self, access: Access) -> "_ResponsesChosen":
        """The tools of the request within what it may use. Raises `RequestError` if it demands one that it may not."""
        narrows = access.drops_unavailable_tools
        within = partial(self._within, access.tools, drop=narrows)
        tools = self.context.once(self.text, within, same=(access.tools,), narrows=narrows)
        return _ResponsesChosen(
            fields=None if tools is self.declared else tools.fields(),
            tools=tuple([tool for tool in access.tools if tool.name != SEARCH])
            if SEARCH in self.declared.ignored
            else None,
            ignored=tools.ignored,
            late=self.late,
            text=self.text,
            asked=self,
            declared=tools,
        )

    def _within(self, usable: Sequence[ToolSpec], *, drop: bool) -> ResponseTools:
        has = self.context.own.has
        return self.declared.within({name for tool in usable if has(tool.name) for name in tool.names}, drop=drop)


class _ResponsesChosen(Chosen, frozen=True, kw_only=True):
    asked: _ResponsesRequest
    declared: ResponseTools

    def reply(self, request: ResolvedRequest, run_ids: Sequence[str]) -> ResponseReply:
        """The response."""
        [run_id] = run_ids
        seal, now, parsed = self.asked.seal, self.asked.context.now, self.asked.parsed
        return ResponseReply(
            parsed.request, request, self.declared, run_id, items=parsed.history.own, seal=seal, now=now
        )
