"""The endpoints of the three APIs: the one of `model_endpoint` with the dialect of each, and the count of tokens."""

from functools import partial
from typing import cast

from starlette.types import Receive, Scope, Send

from proxy.api.chat.dialect import ChatDialect
from proxy.api.exchange import send_json
from proxy.api.messages.dialect import MessagesChosen, MessagesDialect
from proxy.api.messages.errors import REQUEST_ID
from proxy.api.messages.reply import request_id
from proxy.api.model_endpoint import ModelEndpoint
from proxy.api.ports import Ports
from proxy.api.preparation import Preparation
from proxy.api.responses.dialect import ResponsesDialect
from proxy.kit.beside import beside


def chat_completions(ports: Ports) -> ModelEndpoint:
    """The endpoint `POST /v1/chat/completions`."""
    return ModelEndpoint(ports, ChatDialect())


def create_response(ports: Ports) -> ModelEndpoint:
    """The endpoint `POST /v1/responses`."""
    return ModelEndpoint(ports, ResponsesDialect())


def create_message(ports: Ports) -> ModelEndpoint:
    """`POST /v1/messages`."""
    return ModelEndpoint(ports, MessagesDialect(keeps_marks=ports.config.passes_cache_marks))


class CountTokens:
    """`POST /v1/messages/count_tokens`, as an ASGI callable: counts the tokens of a request without asking a model."""

    def __init__(self, ports: Ports) -> None:
        dialect = MessagesDialect(for_answer=False, keeps_marks=ports.config.passes_cache_marks)
        self._preparation = Preparation(ports, dialect)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        prepared = await self._preparation.of(scope, await self._preparation.parse(scope, receive))
        chosen = cast(MessagesChosen, prepared.chosen)
        tokens = await beside(prepared.size, partial(chosen.declared_tokens, prepared.request))
        await send_json(send, {"input_tokens": tokens}, headers={REQUEST_ID.decode(): request_id()})
