"""Warnings about a configuration: settings that are permitted, but probably mistakes."""

from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from typing import TypeAlias
from urllib.parse import urlsplit

from proxy.config import model as c
from proxy.config.keys import FROM_CLIENT, SHORT_CLIENT_KEY, SHORTEST_SECRET, texts_in
from proxy.config.rules import ReadableConfig

_Warnings: TypeAlias = Iterator[tuple[str, str]]


def warnings_in(parts: ReadableConfig) -> _Warnings:
    """The path of each setting that is permitted, but probably a mistake, with the warning about it."""
    if parts.config.upstreams and not parts.config.models:
        yield "models", "is empty, so every request is answered with 404"
    if parts.config.server.cors and "*" in parts.config.server.cors.origins:
        yield "server.cors.origins", "'*' lets every web page call the proxy from its visitors' browsers"
    yield from _odd_clients(parts)
    yield from _odd_keys(parts)
    # With a secret that can be guessed, clients could forge what they keep for the proxy.
    if any(len(secret) < SHORT_CLIENT_KEY for secret in parts.config.state.secrets):
        yield "state.secret", f"has fewer than {SHORT_CLIENT_KEY} characters, and can be guessed"
    for name, model in parts.config.models.items():
        if model.vision == "conversation" and model.vision_model is None:
            yield f"models.{name}.vision", "does nothing without a vision_model"
    yield from _offers_without_effect(parts)
    for name, tool in parts.config.tools.items():
        found = parts.kinds[tool.type].warnings(tool, parts.config)
        yield from ((f"tools.{name}.{key}", message) for key, message in found)


def _odd_clients(parts: ReadableConfig) -> _Warnings:
    for path, client in parts.clients.items():
        for pattern in client.models:
            if parts.config.models and not _matches_a_model(pattern, parts.names_in("models")):
                yield f"{path}.models", f"{pattern!r} matches no model"
        if any(0 < len(key) < SHORT_CLIENT_KEY for key in client.keys):
            yield f"{path}.key", f"has fewer than {SHORT_CLIENT_KEY} characters, and can be guessed"
        if client.budget and client.budget.cost is not None and not parts.config.has_prices:
            yield f"{path}.budget.cost", "counts only costs that upstreams report: no model or tool has a price"


def _odd_keys(parts: ReadableConfig) -> _Warnings:
    """Keys that are none of their provider's."""
    for path, entry in parts.entries.items():
        listed, url = getattr(entry, "api_key", None), getattr(entry, "base_url", None) or ""
        keys = c.keys_of(listed)
        if any(len(one) < SHORTEST_SECRET for one in keys.values() if one != FROM_CLIENT) and _is_public(url):
            yield f"{path}.api_key", f"has fewer than {SHORTEST_SECRET} characters: is it this provider's key?"
        if keys and len(keys) < len(texts_in(listed)):
            yield f"{path}.api_key", "has a placeholder, which is left out"


def _offers_without_effect(parts: ReadableConfig) -> _Warnings:
    """The prefix or suffix of `offer:` if no tool is offered on request."""
    offer = parts.config.offer
    if "on_request" in {offer.mode, *(tool.offer for tool in parts.tools.values())}:
        return
    for key in ("prefix", "model_suffix"):
        if getattr(offer, key) is not None:
            yield f"offer.{key}", "does nothing unless offer.mode, or a tool's own offer, is on_request"


def _matches_a_model(pattern: str, models: Iterable[str]) -> bool:
    """Whether a client's pattern matches a model, or may match names that the pattern of a model matches."""
    example = pattern.replace("*", "")
    return any(fnmatchcase(name, pattern) or fnmatchcase(example, name) for name in models)


def _is_public(url: str) -> bool:
    """Whether a URL is that of a provider, not of the operator's own server, for which any word may be the key."""
    host = urlsplit(url).hostname or ""
    return "." in host and not host.replace(".", "").isdigit() and not host.endswith((".local", ".internal", ".svc"))
