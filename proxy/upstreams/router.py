"""From the name of a model to the upstream that serves it, with that upstream's key, and to what stands in for it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from msgspec import Struct

from proxy import request_context
from proxy.breaker import Breaker
from proxy.config import Config, ModelConfig
from proxy.loop.chat import Json, carries_image
from proxy.loop.errors import InvalidApiKey, ModelNotFound
from proxy.ports import Clock, Headers, Model, Observer
from proxy.upstreams.connection import Connection
from proxy.upstreams.glm import GLM
from proxy.upstreams.gpt_oss import GPT_OSS
from proxy.upstreams.openai_compat import OpenAICompatible
from proxy.upstreams.profile import OPENAI
from proxy.upstreams.resilient import BreakerGuard, Resilient
from proxy.upstreams.retry import Backoff

PROFILES = {profile.name: profile for profile in (GLM, GPT_OSS, OPENAI)}

_ANY = "*"
_FROM_CLIENT = "from_client"
# With `*` the names are for strangers to choose, and they are remembered, here and by whoever asks. The longest real
# ones (ARNs) have some 200 characters.
_LONGEST_NAME = 512
_MOST_BOUND = 1000


class _Client(Struct, frozen=True):
    """Whose request it is: the key for upstreams with `api_key: from_client`, and the headers that it sent."""

    key: str | None
    headers: Headers


class ConfigRouter:
    """The `models:` of the configuration. Implements `ports.Router`."""

    def __init__(
        self,
        config: Config,
        connections: Mapping[str, Connection],
        *,
        breakers: Mapping[str, Breaker],
        observe: Observer,
        clock: Clock,
    ) -> None:
        self._models = config.models
        self._upstreams = config.upstreams
        self._connections = connections
        self._guards = {
            name: BreakerGuard(name, breaker, observe=observe, clock=clock) for name, breaker in breakers.items()
        }
        self._observe = observe
        self._tells_relays = observe.wants("relay.started") or observe.wants("relay.completed")
        self._clock = clock
        self._bound: dict[tuple[str, str], OpenAICompatible] = {}
        self._backoffs = {name: Backoff(upstream.retries) for name, upstream in config.upstreams.items()}

    def resolve(
        self, name: str, *, client_key: str | None, messages: Sequence[Json] = (), headers: Headers = ()
    ) -> Model:
        """The model of that name, for one request."""
        client = _Client(client_key, headers)
        entry = self._find(name)
        pictured = bool(entry.vision_model) and carries_image(messages)
        candidates = self._candidates(name, entry, client, pictured=pictured)
        upstream = Resilient(
            candidates,
            backoff=self._backoffs[entry.upstream],
            guards=self._guards,
            client=_client_of(self._key(entry, client)),
            clock=self._clock,
            observe=self._observe,
            tells_relays=self._tells_relays,
        )
        tools = None if entry.tools is None else frozenset(entry.tools)
        return Model(name, candidates[0].model, upstream, tools, entry.limits)

    def _candidates(
        self, name: str, entry: ModelConfig, client: _Client, *, pictured: bool
    ) -> Sequence[OpenAICompatible]:
        """What answers for a model, best first."""
        if pictured and entry.vision_model:
            first = self._stand_in(entry.vision_model, entry, client)
        else:
            first = self._bind(name, entry, client)
        return (first, *self._fallbacks(entry, client)) if entry.fallbacks else (first,)

    def names(self) -> Sequence[str]:
        """The models that are listed."""
        return [name for name, model in self._models.items() if name != _ANY and model.upstream in self._upstreams]

    def _find(self, name: str) -> ModelConfig:
        """The entry for a name; one that is not listed is taken by `*`, if there is one."""
        if len(name) > _LONGEST_NAME:
            raise ModelNotFound(f"{name[:_LONGEST_NAME]}...")
        model = self._models.get(name) if name != _ANY else None
        if model is not None and model.upstream not in self._upstreams:
            raise ModelNotFound(name, why="is not available: its upstream is disabled")
        model = model or self._models.get(_ANY)
        if model is None or model.upstream not in self._upstreams:
            raise ModelNotFound(name)
        return model

    def _stand_in(self, name: str, model: ModelConfig, client: _Client) -> OpenAICompatible:
        """A model that a configured one names: a configured one itself, or another model of the same upstream."""
        listed = self._models.get(name)
        if listed is not None and listed.upstream in self._upstreams:
            return self._bind(name, listed, client)
        return self._bind(name, ModelConfig(upstream=model.upstream), client)

    def _fallbacks(self, model: ModelConfig, client: _Client) -> list[OpenAICompatible]:
        """The models that stand in for one, as far as their upstreams are there and there is a key for them."""
        usable = [other for other in model.fallbacks if self._models[other].upstream in self._upstreams]
        keyed = [other for other in usable if self._key(self._models[other], client)]
        return [self._bind(other, self._models[other], client) for other in keyed]

    def _key(self, model: ModelConfig, client: _Client) -> str | None:
        key = self._upstreams[model.upstream].api_key
        return client.key if key == _FROM_CLIENT else key

    def _bind(self, name: str, model: ModelConfig, client: _Client) -> OpenAICompatible:
        """The model at its upstream; kept where it is the same for everybody, as the key of a client is not."""
        bound = self._bound.get((model.upstream, model.model or name))
        if bound is None:
            upstream = self._upstreams[model.upstream]
            key = self._key(model, client)
            if not key:
                raise InvalidApiKey
            connection = self._connections[model.upstream]
            of_client = upstream.api_key == _FROM_CLIENT
            bound = OpenAICompatible(connection, PROFILES[upstream.profile], model.model or name, key, of_client)
            if not of_client:
                if len(self._bound) >= _MOST_BOUND:
                    self._bound.clear()
                self._bound[model.upstream, bound.model] = bound
        connection = bound.connection.forwarding(client.headers)
        return bound if connection is bound.connection else replace(bound, connection=connection)


def _client_of(key: str | None) -> str:
    """Whose request this is, so that clients' failures are told apart: the name, else the key that goes upstream."""
    name = request_context.fields().get("client")
    return str(name) if name is not None else str(hash(key))
