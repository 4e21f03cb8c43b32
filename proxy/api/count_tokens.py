"""The tokens of a request of Messages, counted without asking a model."""

from functools import partial
from typing import cast

from starlette.types import Receive, Scope, Send

from proxy.api.exchange import send_json
from proxy.api.messages.dialect import MessagesChosen, MessagesDialect
from proxy.api.messages.errors import REQUEST_ID
from proxy.api.messages.reply import request_id
from proxy.api.ports import Ports
from proxy.api.preparation import Preparation
from proxy.kit.beside import beside


class CountTokens:
    """`POST /v1/messages/count_tokens`, as an ASGI callable."""

    def __init__(self, ports: Ports) -> None:
        dialect = MessagesDialect(for_answer=False, keeps_marks=ports.config.passes_cache_marks)
        self._preparation = Preparation(ports, dialect)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one ASGI connection."""
        prepared = await self._preparation.of(scope, await self._preparation.parse(scope, receive))
        chosen = cast(MessagesChosen, prepared.chosen)
        tokens = await beside(prepared.size, partial(chosen.declared_tokens, prepared.request))
        await send_json(send, {"input_tokens": tokens}, headers={REQUEST_ID.decode(): request_id()})
