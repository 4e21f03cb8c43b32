"""Answers that have to fit a JSON Schema: if one does not, the model is shown the fault and asked once more."""

from collections.abc import Sequence
from secrets import token_hex
from typing import Any

import orjson
from msgspec.structs import replace

from proxy.api.request import ResolvedRequest
from proxy.api.schema import SchemaCheck
from proxy.api.surface import Keep, Surface, keep_all
from proxy.execution.driver import release
from proxy.loop.actions import Respond, Stop
from proxy.loop.offer import Offer
from proxy.loop.prompts import DOES_NOT_FIT
from proxy.loop.tally import sum_of
from proxy.ports import Audience, ExecuteTool
from proxy.wire.chat import BROKEN_OFF
from proxy.wire.errors import NoFinalAnswer


class CheckingSurface(Surface):
    """The base of an endpoint whose answers may have to fit a schema."""

    async def run_checked(
        self,
        request: ResolvedRequest,
        run_id: str,
        check: SchemaCheck | None,
        audience: Audience,
        *,
        execute: ExecuteTool | None = None,
        keep: Keep = keep_all,
    ) -> Respond:
        """The answer to a request.

        Args:
            request: the request.
            run_id: the id of its run.
            check: checks the answer; None: any answer will do.
            audience: as for `run`. With a check, it is shown the text only of the answer that fits.
            execute: as for `run`.
            keep: as for `run`.

        Raises:
            NoFinalAnswer: the second answer does not fit either.
        """
        awaits_check = check is not None
        [answer] = await self.run(request, [run_id], [audience], execute=execute, keep=keep, awaits_check=awaits_check)
        if check is not None:
            answer = await self._fitting(request, check, answer, audience)
            await release(answer.turn, audience)
        return answer

    async def _fitting(
        self, request: ResolvedRequest, check: SchemaCheck, answer: Respond, audience: Audience
    ) -> Respond:
        """The answer, or a second one if it does not fit. Raises `NoFinalAnswer`."""
        if answer.stop is Stop.CLIENT_TOOL_CALLS or is_broken_off(answer) or _refuses(answer):
            return answer
        fault = check.fault(answer.turn.text)
        if fault is None:
            return answer
        output_left = request.limits.output_left(answer.tally)
        if output_left == 0:  # the answer has used all tokens that the model may write
            return replace(answer, finish_reason="length")
        self.ports.observe("answer.unfit")
        again = _retry(request, check, answer.turn.text, fault, output_left)
        [second] = await self.run(again, [token_hex(16)], [audience], awaits_check=True)
        tally = sum_of([answer.tally, second.tally])
        if not (is_broken_off(second) or _refuses(second)) and check.fault(second.turn.text) is not None:
            raise NoFinalAnswer("The model's answer does not fit the JSON Schema, although it was asked twice.")
        earlier = (*answer.earlier_turns, answer.turn)
        of_first = {"stop": answer.stop, "step": answer.step, "sources": answer.sources, "added": answer.added}
        return replace(second, tally=tally, earlier_turns=earlier, **of_first)


def is_broken_off(answer: Respond) -> bool:
    """Whether the model was stopped in the middle of its answer."""
    return answer.finish_reason in BROKEN_OFF


def _refuses(answer: Respond) -> bool:
    """Whether the model refuses to answer, in the field `refusal`."""
    return bool(answer.turn.message.get("refusal")) and not answer.turn.text.strip()


def needs_check(request: ResolvedRequest) -> bool:
    """Whether the proxy has to check the answer to a request with a schema.

    Without tools, the answer of an upstream that enforces schemas itself is not checked, so that it can be streamed at
    once. With tools, the end has to be waited for anyway.
    """
    return request.offer.in_play or not request.model.upstream.traits.json_schema


def _retry(
    request: ResolvedRequest, check: SchemaCheck, text: str, fault: str, output_left: int | None
) -> ResolvedRequest:
    """The request, without tools, to correct an answer that does not fit."""
    demand = DOES_NOT_FIT.format(fault=fault, schema=orjson.dumps(check.schema).decode())
    turns: Sequence[Any] = [{"role": "user", "content": demand}]
    if text.strip():  # GLM refuses an empty message
        turns = [{"role": "assistant", "content": text}, *turns]
    chat = {**request.chat, "messages": [*request.chat["messages"], *turns]}
    limits = replace(request.limits, max_output_tokens=output_left)
    return replace(request, chat=chat, limits=limits, offer=Offer())
