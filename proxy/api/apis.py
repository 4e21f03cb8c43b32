"""The endpoints of the three APIs whose requests a model answers, each the one of `model_endpoint` with its dialect."""

from proxy.api.chat.dialect import ChatDialect
from proxy.api.messages.dialect import MessagesDialect
from proxy.api.model_endpoint import ModelEndpoint
from proxy.api.ports import Ports
from proxy.api.responses.dialect import ResponsesDialect


def chat_completions(ports: Ports) -> ModelEndpoint:
    """`POST /v1/chat/completions`."""
    return ModelEndpoint(ports, ChatDialect())


def create_response(ports: Ports) -> ModelEndpoint:
    """`POST /v1/responses`."""
    return ModelEndpoint(ports, ResponsesDialect())


def create_message(ports: Ports) -> ModelEndpoint:
    """`POST /v1/messages`."""
    return ModelEndpoint(ports, MessagesDialect(keeps_marks=ports.config.passes_cache_marks))
