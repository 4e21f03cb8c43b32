"""Resolves the name of a model to its upstream, with the key for it, and to its fallbacks."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fnmatch import translate
from types import MappingProxyType

import orjson
from msgspec import Struct

from proxy.config.model import Config, ModelConfig, PriceConfig
from proxy.kit import request_context
from proxy.kit.breaker import Backoff, Breaker
from proxy.loop.limits import LimitOverrides
from proxy.loop.pictures import has_picture
from proxy.ports import Clock, Observer, Upstream
from proxy.upstreams.endpoint import Endpoint
from proxy.upstreams.failures import key_advice
from proxy.upstreams.openai_compat import OpenAICompatible
from proxy.upstreams.profile import PROFILES
from proxy.upstreams.resilient import Resilient, SharedUpstreamState
from proxy.wire.chat import Json
from proxy.wire.errors import ModelNotFound
from proxy.wire.relayed import Headers

_WILDCARD = "*"
# With a pattern, strangers choose the names, which are cached here and by callers. The longest real names (ARNs) have
# some 200 characters.
_LONGEST_NAME = 512
_MOST_NAMED = 5  # models that an error names
_PLAIN = re.compile(r"[A-Za-z][\w./-]*")  # a name that YAML takes for text without quotes, except for these
_VALUES = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})
_MOST_BOUND = 1000


class RoutedModel(Struct, frozen=True):
    """A model by the name that clients send, for one request. Implements `ports.Model`.

    Attributes:
        name: the client's name for it.
        upstream_name: the upstream's name for it.
        tools: the server tools that it may use; None: all.
        limits: the model's own `limits:`, which override those of the configuration.
        hides_pictures: whether it reads notes in the place of pictures, which are for its `vision_model`.
    """

    name: str
    upstream_name: str
    upstream: Upstream
    tools: frozenset[str] | None = None
    limits: LimitOverrides | None = None
    hides_pictures: bool = False


class _Client(Struct, frozen=True):
    """The client of a request: its key, for upstreams with `api_key: from_client`, and the headers that it sent."""

    key: str | None
    headers: Headers


class ConfigRouter:
    """The `models:` of the configuration. Implements `ports.Router`."""

    def __init__(
        self,
        config: Config,
        endpoints: Mapping[str, Endpoint],
        *,
        breakers: Mapping[str, Breaker],
        observe: Observer,
        clock: Clock,
        operator_calls: bool = False,
        key_sources: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._listed = {name: model for name, model in config.models.items() if _WILDCARD not in name}
        patterns = sorted((name for name in config.models if _WILDCARD in name), key=len, reverse=True)
        self._patterns = [(re.compile(translate(name)).match, config.models[name]) for name in patterns]
        self._may_serve_any = operator_calls and _WILDCARD not in config.models
        self._upstreams = config.upstreams
        self._endpoints = endpoints
        observes_relays = observe.handles("relay.started") or observe.handles("relay.completed")
        self._shared = SharedUpstreamState(breakers, clock, observe, Backoff(), observes_relays)
        self._counts_use, self._needs_use = config.counts_use, config.needs_use
        self._key_sources = key_sources
        self._bound: dict[tuple[str, str, PriceConfig | None], OpenAICompatible] = {}

    def resolve(
        self,
        name: str,
        *,
        client_key: str | None,
        messages: Sequence[Json] = (),
        headers: Headers = (),
        conversation: bytes | None = None,
        may_use: Callable[[str], bool],
    ) -> RoutedModel:
        """The model of this name, for one request."""
        entry = self._entry(name) if len(name) <= _LONGEST_NAME else None
        if entry is None or entry.upstream not in self._upstreams:
            raise self.unknown(name, may_use)
        client = _Client(client_key, headers)
        hides_pictures = entry.vision_model is not None
        if entry.vision_model and has_picture(messages, anywhere=entry.vision == "conversation"):
            hides_pictures = False
            first = self._stand_in(entry.vision_model, entry, client)
        else:
            first = self._bind(name, entry, client)
        fallbacks = self._fallbacks(entry, client) if entry.fallbacks else ()
        # The breaker counts failures by the client's name; without one, by the key that goes upstream.
        client_name = request_context.fields.get({}).get("client") or hash(
            client.key if self._needs_key(entry) else self._upstreams[entry.upstream].api_key
        )
        retries = self._upstreams[entry.upstream].retries
        upstream = Resilient(
            (first, *fallbacks), self._shared, retries=retries, client=str(client_name), conversation=conversation
        )
        tools = None if entry.tools is None else frozenset(entry.tools)
        return RoutedModel(name, first.model, upstream, tools, entry.limits, hides_pictures=hides_pictures)

    def _entry(self, name: str) -> ModelConfig | None:
        """The entry for a model: that of its exact name, or the longest pattern that matches; None: there is none."""
        if (entry := self._listed.get(name)) is not None:
            return entry
        return next((entry for matches, entry in self._patterns if matches(name)), None)

    def names(self) -> Sequence[str]:
        """The names of the listed models; models that match a pattern have no known names."""
        return [name for name, model in self._listed.items() if model.upstream in self._upstreams]

    def unknown(self, name: str, may_use: Callable[[str], bool]) -> ModelNotFound:
        """The error about a model that is not here, with up to five that the client may use.

        Where the operator calls, it also has the line of the configuration that would serve any name.
        """
        usable = [one for one in self.names() if may_use(one)]
        named, more = ", ".join(usable[:_MOST_NAMED]), len(usable) - _MOST_NAMED
        advice = f"Models that you can use: {named}{f' and {more} more' if more > 0 else ''}. " if usable else ""
        advice += "GET /v1/models lists the models."
        if len(name) > _LONGEST_NAME:
            return ModelNotFound(f"{name[:_LONGEST_NAME]}...", advice=advice)
        entry = self._entry(name)
        if entry is not None and entry.upstream not in self._upstreams:
            return ModelNotFound(name, why="is not available: its upstream is disabled", advice=advice)
        if usable and self._may_serve_any and entry is None:
            advice += f" To serve any name, add this line to `models:` in config.yaml: {self._line_for_any(usable[0])}"
        return ModelNotFound(name, advice=advice)

    def _line_for_any(self, name: str) -> str:
        """The line of the configuration that serves every other name by the listed model of this name."""
        entry = self._listed[name]
        return f'"*": {{upstream: {_yaml(entry.upstream)}, model: {_yaml(entry.model or name)}}}'

    def upstream_of(self, name: str) -> str | None:
        """The usable upstream that serves a model, listed or matched by a pattern; None: there is none."""
        entry = self._entry(name)
        return entry.upstream if entry is not None and entry.upstream in self._upstreams else None

    def _stand_in(self, name: str, model: ModelConfig, client: _Client) -> OpenAICompatible:
        """A model that the entry of another model names: a configured model, or a model of the same upstream."""
        listed = self._listed.get(name)
        if listed is not None and listed.upstream in self._upstreams:
            return self._bind(name, listed, client)
        return self._bind(name, ModelConfig(upstream=model.upstream), client)

    def _fallbacks(self, model: ModelConfig, client: _Client) -> list[OpenAICompatible]:
        """The fallbacks of a model that have an enabled upstream and a key."""
        entries = [(name, self._entry(name)) for name in model.fallbacks]
        usable = [(name, entry) for name, entry in entries if entry and entry.upstream in self._upstreams]
        return [self._bind(name, entry, client) for name, entry in usable if client.key or not self._needs_key(entry)]

    def _needs_key(self, model: ModelConfig) -> bool:
        """Whether the upstream of a model gets the clients' own keys."""
        return self._endpoints[model.upstream].credential.uses_client_key

    def _bind(self, name: str, model: ModelConfig, client: _Client) -> OpenAICompatible:
        """The model at its upstream, with the key and the headers of the client that go there.

        Raises:
            InvalidApiKey: the client's own key is needed, and it has none.
        """
        which = (model.upstream, model.model or name, model.price)
        bound = self._bound.get(which)
        if bound is None:
            upstream = self._upstreams[model.upstream]
            profile = PROFILES[upstream.profile]
            bound = OpenAICompatible(
                name=model.upstream,
                model=model.model or name,
                endpoint=self._endpoints[model.upstream],
                profile=replace(profile, cache_marks=True) if upstream.cache_marks else profile,
                keys=self._endpoints[model.upstream].keys,
                key_advice=key_advice(profile, upstream.base_url),
                key_source=self._key_sources.get(model.upstream),
                price=model.price,
                counts_use=self._counts_use,
                asks_for_usage=self._needs_use,
            )
            if len(self._bound) >= _MOST_BOUND:  # the oldest one makes room
                del self._bound[next(iter(self._bound))]
            self._bound[which] = bound
        endpoint = bound.endpoint
        if endpoint.forwards.isdisjoint(dict(client.headers)) and not endpoint.credential.uses_client_key:
            return bound
        return replace(bound, endpoint=endpoint.for_client(client.key, client.headers))


def _yaml(text: str) -> str:
    """A text as it is written within braces in YAML."""
    return text if _PLAIN.fullmatch(text) and text.lower() not in _VALUES else orjson.dumps(text).decode()
