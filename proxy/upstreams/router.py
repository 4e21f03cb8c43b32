"""From the name of a model to the upstream that serves it, with that upstream's key."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from proxy.config import Config, ModelConfig, UpstreamConfig
from proxy.core.errors import InvalidApiKey, ModelNotFound
from proxy.ports import Model
from proxy.upstreams.connection import Connection
from proxy.upstreams.glm import GLM
from proxy.upstreams.gpt_oss import GPT_OSS
from proxy.upstreams.openai_compat import OpenAICompatible
from proxy.upstreams.profile import OPENAI

PROFILES = {profile.name: profile for profile in (GLM, GPT_OSS, OPENAI)}

_ANY = "*"
_FROM_CLIENT = "from_client"


class ConfigRouter:
    """The `models:` of the configuration. Implements `ports.Router`."""

    def __init__(self, config: Config, connections: Mapping[str, Connection]) -> None:
        self._models = config.models
        self._upstreams = config.upstreams
        self._connections = connections
        self._resolved = {
            name: self._bind(name, model, config.upstreams[model.upstream])
            for name, model in config.models.items()
            if name != _ANY and model.upstream in config.upstreams
        }

    def resolve(self, name: str, *, client_key: str | None) -> Model:
        """The model of that name."""
        model = self._resolved.get(name) or self._unnamed(name)
        upstream = model.upstream
        if isinstance(upstream, OpenAICompatible) and upstream.api_key == _FROM_CLIENT:
            if not client_key:
                raise InvalidApiKey
            return replace(model, upstream=replace(upstream, api_key=client_key))
        return model

    def names(self) -> Sequence[str]:
        """The models that are listed."""
        return tuple(self._resolved)

    def _unnamed(self, name: str) -> Model:
        """A name that the configuration does not list: `*`, if there is one, takes it as it is."""
        if name in self._models:
            raise ModelNotFound(name, why="is not available: its upstream is disabled")
        wildcard = self._models.get(_ANY)
        if wildcard is None or wildcard.upstream not in self._upstreams:
            raise ModelNotFound(name)
        return self._bind(name, wildcard, self._upstreams[wildcard.upstream])

    def _bind(self, name: str, model: ModelConfig, upstream: UpstreamConfig) -> Model:
        upstream_name = model.model or name
        bound = OpenAICompatible(
            self._connections[model.upstream], PROFILES[upstream.profile], upstream_name, upstream.api_key
        )
        tools = None if model.tools is None else frozenset(model.tools)
        return Model(name, upstream_name, bound, tools, model.limits)
