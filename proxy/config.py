"""What config.yaml may say: frozen values with their defaults; no behaviour but the layering of defaults.

Each class is one mapping of the file and each field one of its keys; `config_file` reads the file into them. What
stands behind a field is its description: `docs/configuration.md` is made of it.
"""

import re
from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal, TypeAlias, get_args
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from proxy.core.limits import Limits

Seconds: TypeAlias = Annotated[float, Meta(gt=0, le=10**9)]
Count: TypeAlias = Annotated[int, Meta(ge=1)]
CountOrNone: TypeAlias = Annotated[int, Meta(ge=0)]
Port: TypeAlias = Annotated[int, Meta(ge=0, le=65535)]
Text: TypeAlias = Annotated[str, Meta(min_length=1)]
# Scheme, host (no user: keys belong into api_key), port, path; no query.
_URL = r"^https?://(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?(/[\x21\x24-\x3e\x40-\x7e]*)?\Z"
Url: TypeAlias = Annotated[str, Meta(pattern=_URL)]
# User and password are percent-encoded where they hold any of "@/?#[]" or a blank.
_TO_65535 = "(6553[0-5]|655[0-2][0-9]|65[0-4][0-9]{2}|6[0-4][0-9]{3}|[1-5]?[0-9]{1,4})"
_REDIS = rf"rediss?://([^@/?#\[\]\s]*@)?(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(:{_TO_65535})?(/[0-9]{{0,4}})?"
StateUrl: TypeAlias = Annotated[str, Meta(pattern=rf"^(memory://|{_REDIS})\Z")]
# What may stand in a header.
Key: TypeAlias = Annotated[str, Meta(pattern=r"^[\x21-\x7e]*\Z")]
# RFC 9110: a token, and printable ASCII without blanks at its ends.
HeaderName: TypeAlias = Annotated[str, Meta(pattern=r"^[!#$%&'*+.^_`|~0-9A-Za-z-]+\Z")]
HeaderValue: TypeAlias = Annotated[str, Meta(pattern=r"^([\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?)?\Z")]
# The rule of OpenAI and GLM for a function's name.
ToolName: TypeAlias = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_-]{1,64}\Z")]
OfferMode: TypeAlias = Literal["always", "declared", "on_request", "never"]


class Value(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A mapping of the configuration file."""


class ServerConfig(Value, frozen=True, kw_only=True):
    """`server:`: where the proxy listens and how much it takes on."""

    host: Text = "127.0.0.1"
    port: Port = 8080
    workers: Count = 1
    max_body_bytes: Count = 32 * 1024 * 1024
    max_concurrent_requests: Count = 1000
    max_queued_requests: CountOrNone | None = None  # wait for a place among those; None: a tenth as many
    queue_timeout_seconds: Seconds = 0.5  # that long; it absorbs a burst, and what waits longer is overload
    keepalive_seconds: Seconds = 15
    shutdown_grace_seconds: Seconds = 30
    allow_anonymous: bool = False
    max_headers: Count = 100  # as Envoy and HAProxy
    max_header_bytes: Count = 64 * 1024  # Envoy: 60 KiB
    header_timeout_seconds: Seconds = 20  # for a whole head, from connecting on; Apache's RequestReadTimeout
    body_timeout_seconds: Seconds = 30  # of silence in a body
    min_body_rate: Count = 500  # bytes per second, after the first body_timeout_seconds; Apache's MinRate
    send_timeout_seconds: Seconds = 60  # in which a client has to take something of what is sent; nginx's send_timeout
    idle_timeout_seconds: Seconds = 75  # between two requests of one connection; nginx's keepalive_timeout


class LimitsConfig(Value, frozen=True, kw_only=True):
    """`limits:`, whole or in part: what is None was not said, and a wider setting holds."""

    max_turns: Count | None = None
    max_tool_calls: CountOrNone | None = None
    guidance: bool | None = None
    deadline: Seconds | None = None
    max_duration: Seconds | None = None
    tool_timeout: Seconds | None = None
    max_parallel_tools: Count | None = None
    max_result_bytes: Count | None = None
    max_total_result_bytes: Count | None = None
    max_total_tokens: Count | None = None


class RequestLimits(Value, frozen=True, kw_only=True):
    """The limits of one request, with nothing left open."""

    max_turns: int = 5
    max_tool_calls: int = 8
    guidance: bool = True
    deadline: float = 240
    max_duration: float = 1200
    tool_timeout: float = 30
    max_parallel_tools: int = 8
    max_result_bytes: int = 65536
    max_total_result_bytes: int = 524288
    max_total_tokens: int | None = None

    def overridden(self, *layers: LimitsConfig | None) -> "RequestLimits":
        """These limits with what each layer says put over them, the last layer last."""
        said = {
            field: value
            for layer in layers
            if layer is not None
            for field in layer.__struct_fields__
            if (value := getattr(layer, field)) is not None
        }
        return msgspec.structs.replace(self, **said)

    def budget(self, *, max_tool_calls: int | None = None) -> Limits:
        """What the core counts; a client may lower `max_tool_calls`, never raise it."""
        calls = self.max_tool_calls if max_tool_calls is None else min(self.max_tool_calls, max_tool_calls)
        return Limits(
            max_turns=self.max_turns,
            max_tool_calls=calls,
            max_total_tokens=self.max_total_tokens,
            guidance=self.guidance,
        )


class ClientConfig(Value, frozen=True, kw_only=True):
    """An entry of `clients:`: who may call, and how far."""

    name: Text
    key: Key | None = None
    key_sha256: Annotated[str, Meta(pattern=r"^[0-9a-fA-F]{64}\Z")] | None = None
    models: tuple[Text, ...] = ("*",)
    tools: tuple[Text, ...] | None = None
    requests_per_minute: Count | None = None
    max_concurrent_requests: Count | None = None
    limits: LimitsConfig | None = None
    admin: bool = False


class Timeouts(Value, frozen=True, kw_only=True):
    """Of one upstream, in seconds; `read` is the silence between two reads."""

    connect: Seconds = 10
    read: Seconds = 300  # a whole tool turn of GLM has been seen to take 78 s
    write: Seconds = 60
    pool: Seconds = 10


class BreakerConfig(Value, frozen=True, kw_only=True):
    """`breaker:`: when something that fails again and again is left alone, and for how long."""

    failures: Count = 10  # in a row; a single request alone makes three attempts
    seconds: Seconds = 10  # until one call tries whether it has recovered; nginx's fail_timeout


class UpstreamConfig(Value, frozen=True, kw_only=True):
    """An entry of `upstreams:`."""

    base_url: Url
    api_key: Key
    profile: Literal["glm", "gpt_oss", "openai"] = "openai"
    timeouts: Timeouts = Timeouts()
    retries: CountOrNone = 2
    breaker: BreakerConfig = BreakerConfig()
    max_connections: Count = 1000
    transport: Literal["auto", "httpx"] = "auto"


class ModelConfig(Value, frozen=True, kw_only=True):
    """An entry of `models:`: a name that clients send."""

    upstream: Text
    model: Text | None = None
    fallbacks: tuple[Text, ...] = ()
    vision_model: Text | None = None
    tools: tuple[Text, ...] | None = None
    limits: LimitsConfig | None = None


class ToolConfig(Value, frozen=True, kw_only=True):
    """What every entry of `tools:` may say."""

    aliases: tuple[Text, ...] = ()
    timeout: Seconds | None = None
    retries: CountOrNone = 0  # after a failure that another try may mend; only for tools that may safely run twice
    max_concurrent_calls: Count | None = None
    cache_seconds: Annotated[float, Meta(ge=0)] = 0
    max_calls: Count | None = None
    fallback: Text | None = None
    offer: OfferMode | None = None
    eager: bool = True  # false for a tool that changes things: its calls wait for the end of their turn


class SerperConfig(ToolConfig, frozen=True, kw_only=True):
    """`type: serper`: Google's results from serper.dev."""

    api_key: Key
    base_url: Url = "https://google.serper.dev"
    endpoint: Literal["search", "news", "scholar", "images", "places", "shopping"] = "search"
    retries: CountOrNone = 1


class SerperScrapeConfig(ToolConfig, frozen=True, kw_only=True):
    """`type: serper_scrape`: one web page as text, read by serper.dev."""

    api_key: Key
    base_url: Url = "https://scrape.serper.dev"
    retries: CountOrNone = 1


class ZaiSearchConfig(ToolConfig, frozen=True, kw_only=True):
    """`type: zai_search`: GLM's own search."""

    api_key: Key
    base_url: Url = "https://api.z.ai/api/paas/v4"
    mode: Literal["api", "chat"] = "api"
    retries: CountOrNone = 1
    model: Text = "glm-4.7"  # mode chat: the model that searches
    search_engine: Text | None = None


class WebFetchConfig(ToolConfig, frozen=True, kw_only=True):
    """`type: web_fetch`: one web page as text.

    Every public host is open at ports 80 and 443. `allow_hosts` adds to that what it names, private addresses and other
    ports too, and closes nothing; `deny_hosts` closes, and wins. `deny_hosts: ["*"]` closes all that `allow_hosts` does
    not name. An entry is `host`, `*.host`, an address or a network such as 10.1.0.0/16; `host:port` is that port only.
    """

    max_concurrent_calls: Count | None = 32  # each may hold max_bytes several times over
    allow_hosts: tuple[Text, ...] = ()
    deny_hosts: tuple[Text, ...] = ()
    max_bytes: Count = 5 * 1024 * 1024  # of one page, unpacked; what is behind is not read
    max_characters: Count = 20_000  # of its text, in one result; three bytes each still fit into max_result_bytes
    user_agent: HeaderValue | None = None
    respect_robots: bool = True


class ClockConfig(ToolConfig, frozen=True, kw_only=True):
    """`type: clock`: the current date and time."""


class HttpToolConfig(ToolConfig, frozen=True, kw_only=True):
    """`type: http`: any HTTP API. `{name}` stands for an argument; what it may be is in `tools.http_template`."""

    description: Text  # for the model: what it does, and when to use it
    url: Text  # placeholders in path and query, never in scheme, host or port
    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"] = "GET"
    headers: dict[HeaderName, HeaderValue] = {}  # the place of keys; no placeholders
    query: dict[str, Any] = {}  # single values or lists, each literal or with placeholders
    body: Any = None  # sent as JSON; None: arguments that stand nowhere else, for POST, PUT and PATCH
    parameters: dict[str, Any] = {}  # a JSON Schema of type object
    result: Any = "text"  # or {json_pointer: /a/b}: that part of a JSON answer (RFC 6901)
    idempotent: bool = False  # POST or PATCH: another try does no harm, so `retries` may be set
    max_response_bytes: Count = 4 * 1024 * 1024  # no more is read; text is cut there, JSON is refused
    secrets: tuple[str, ...] = ()  # not in the file: what the environment put into the entry, masked in results


class McpConfig(ToolConfig, frozen=True, kw_only=True):
    """`type: mcp`: the tools of an MCP server, at a URL or of a command that is started."""

    url: Url | None = None
    command: tuple[Text, ...] | None = None
    headers: dict[HeaderName, HeaderValue] = {}
    env: dict[str, str] = {}
    allow: tuple[Text, ...] = ("*",)
    prefix: Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_-]{0,64}\Z")] | None = None

    def prefix_of(self, name: str) -> str:
        """What its tools' names begin with, for an entry of that name."""
        return f"{name}_" if self.prefix is None else self.prefix


class PythonToolConfig(ToolConfig, frozen=True, kw_only=True):
    """`type: python`: a function."""

    # module:function, or the name of an installed entry point; None: the entry point of the tool's own name
    function: Annotated[str, Meta(pattern=r"^([\w.]+:[\w.]+|[\w.-]+)\Z")] | None = None
    description: Text | None = None  # None: the docstring's first paragraph
    parameters: dict[str, Any] | None = None  # None: from the type hints and the docstring


TOOL_TYPES: dict[str, type[ToolConfig]] = {
    "clock": ClockConfig,
    "http": HttpToolConfig,
    "mcp": McpConfig,
    "python": PythonToolConfig,
    "serper": SerperConfig,
    "serper_scrape": SerperScrapeConfig,
    "web_fetch": WebFetchConfig,
    "zai_search": ZaiSearchConfig,
}


class OfferConfig(Value, frozen=True, kw_only=True):
    """`offer:`: which tools are shown to the model."""

    mode: OfferMode = "always"
    prefix: Text | None = None
    model_suffix: Text | None = None


class StateConfig(Value, frozen=True, kw_only=True):
    """`state:`: what outlives a request."""

    url: StateUrl = "memory://"
    ttl: Seconds = 3600
    max_entries: Count = 10000


class TelemetryConfig(Value, frozen=True, kw_only=True):
    """`telemetry:`: what operators see."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["json", "console"] = "json"
    log_content: bool = False
    metrics: bool = True
    otlp_endpoint: Url | None = None


class Disabled(Value, frozen=True, kw_only=True):
    """An upstream, tool or client that is configured but cannot be used: why, and for want of which variables.

    `entry` is what could be read of it: a tool without a key may still have a fallback.
    """

    where: str
    why: str
    variables: tuple[str, ...] = ()
    entry: Any = None


class Config(Value, frozen=True, kw_only=True):
    """The whole file. What is disabled for want of a key is in `disabled` and in no other place."""

    server: ServerConfig = ServerConfig()
    clients: tuple[ClientConfig, ...] = ()
    upstreams: dict[str, UpstreamConfig] = {}
    models: dict[str, ModelConfig] = {}
    tools: dict[ToolName, ToolConfig] = {}
    offer: OfferConfig = OfferConfig()
    limits: RequestLimits = RequestLimits()
    state: StateConfig = StateConfig()
    telemetry: TelemetryConfig = TelemetryConfig()
    disabled: dict[str, Disabled] = {}
    secrets: frozenset[str] = frozenset()  # what variables with a secret's name have put into it


SECRET_NAME: Final = re.compile("key|token|secret|passw|credential|auth|cookie", re.IGNORECASE)
"""What the name of a variable or of a header says that it holds."""

_NO_KEY: Final = "from_client"  # stands where a key would


def secrets_of(config: Config) -> frozenset[str]:
    """Every value of a configuration that nobody may see: keys, passwords in URLs, headers that carry either."""
    password = urlsplit(config.state.url).password
    return (config.secrets | {*_keys_in(config), *([password] if password else [])}) - {_NO_KEY, ""}


def _keys_in(value: Any) -> Iterator[str]:
    match value:
        case msgspec.Struct():
            if isinstance(value, HttpToolConfig):
                yield from value.secrets
            for info in msgspec.structs.fields(value):
                held = getattr(value, info.name)
                if isinstance(held, str) and Key in (info.type, *get_args(info.type)):
                    yield held
                else:
                    yield from _keys_in(held)
        case dict():
            for name, held in value.items():
                if isinstance(held, str) and SECRET_NAME.search(str(name)):
                    yield from (held, held.rpartition(" ")[2])  # "Bearer KEY"
                else:
                    yield from _keys_in(held)
        case tuple() | list():
            for held in value:
                yield from _keys_in(held)
