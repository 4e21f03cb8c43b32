"""What config.yaml may say: frozen values with their defaults.

Each class is one mapping of the file and each field one of its keys; `config_file` reads the file into them. What
stands behind a field is its description: `docs/configuration.md` is made of it. The fields of `limits:` are in
`loop.limits`, where the loop acts on them.
"""

import re
from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal, TypeAlias, get_args
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from proxy.loop.limits import Count, CountOrNone, LimitOverrides, Limits, Seconds

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
Sha256: TypeAlias = Annotated[str, Meta(pattern=r"^[0-9a-fA-F]{64}\Z")]
FunctionName: TypeAlias = Annotated[str, Meta(pattern=r"^([\w.]+:[\w.]+|[\w.-]+)\Z")]
OfferMode: TypeAlias = Literal["always", "declared", "on_request", "never"]


class Value(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A mapping of the configuration file."""


class ServerConfig(Value, frozen=True, kw_only=True):
    """`server:`: where the proxy listens and how much it takes on."""

    host: Text = "127.0.0.1"  # the address to listen on; beyond loopback only with clients, or with allow_anonymous
    port: Port = 8080  # 0: any free one
    workers: Count = 1  # processes that share the port
    max_body_bytes: Count = 32 * 1024 * 1024  # a larger request: 413
    # bytes that bodies of a worker's open requests may take, parsed; beyond: 503; None: half of the memory there is
    max_body_memory: Count | None = None
    max_concurrent_requests: Count = 1000  # of each worker
    max_queued_requests: CountOrNone | None = None  # wait for a place among those; None: a tenth as many
    queue_timeout_seconds: Seconds = 0.5  # that long; it absorbs a burst, and what waits longer is overload
    keepalive_seconds: Seconds = 15  # an SSE comment whenever a stream would be silent this long
    shutdown_grace_seconds: Seconds = 30  # open requests may finish after SIGTERM
    allow_anonymous: bool = False  # serve beyond loopback without clients
    max_headers: Count = 100  # as Envoy and HAProxy
    max_header_bytes: Count = 64 * 1024  # Envoy: 60 KiB
    header_timeout_seconds: Seconds = 20  # for a whole head, from connecting on; Apache's RequestReadTimeout
    body_timeout_seconds: Seconds = 30  # of silence in a body
    min_body_rate: Count = 500  # bytes per second, after the first body_timeout_seconds; Apache's MinRate
    send_timeout_seconds: Seconds = 60  # in which a client has to take something of what is sent; nginx's send_timeout
    idle_timeout_seconds: Seconds = 75  # between two requests of one connection; nginx's keepalive_timeout


class ClientConfig(Value, frozen=True, kw_only=True):
    """An entry of `clients:`: who may call, and how far."""

    name: Text  # for logs, metrics and the debug pages; unique
    key: Key | None = None  # what the client sends as its key; either this or key_sha256
    key_sha256: Sha256 | None = None  # what `toolproxy hash-key` prints
    models: tuple[Text, ...] = ("*",)  # glob patterns
    tools: tuple[Text, ...] | None = None  # the server tools that its requests may use; None: all
    requests_per_minute: Count | None = None  # beyond: 429
    max_concurrent_requests: Count | None = None  # beyond: 429
    limits: LimitOverrides | None = None  # what is different for it
    admin: bool = False  # may read /debug


class Timeouts(Value, frozen=True, kw_only=True):
    """Of one upstream, in seconds; `read` is the silence between two reads."""

    connect: Seconds = 10  # seconds
    read: Seconds = 300  # seconds of silence between two reads; a whole tool turn of GLM has been seen to take 78 s
    write: Seconds = 60  # seconds of silence while the request is sent
    pool: Seconds = 10  # seconds to wait for a connection


class BreakerConfig(Value, frozen=True, kw_only=True):
    """`breaker:`: when something that fails again and again is left alone, and for how long."""

    failures: Count = 10  # in a row; of one client's requests at most half of them count against others
    seconds: Seconds = 10  # until one call tries whether it has recovered; nginx's fail_timeout


class UpstreamConfig(Value, frozen=True, kw_only=True):
    """An entry of `upstreams:`."""

    base_url: Url  # '/chat/completions' is appended, never '/v1'
    api_key: Key  # or from_client: the key that the app sends goes there (then without clients)
    profile: Literal["glm", "gpt_oss", "openai"] = "openai"  # what is particular about its models
    timeouts: Timeouts = Timeouts()  # in seconds
    retries: CountOrNone = 2  # of one request, over all of its turns
    breaker: BreakerConfig = BreakerConfig()  # when it is left alone, and for how long
    max_connections: Count = 1000  # at the same time
    transport: Literal["auto", "httpx"] = "auto"  # what carries the requests; httpx: the stock one
    headers: dict[HeaderName, HeaderValue] = {}  # sent with every request
    forward_headers: tuple[HeaderName, ...] = ("traceparent", "tracestate")  # of the client's, with every request


class ModelConfig(Value, frozen=True, kw_only=True):
    """An entry of `models:`: a name that clients send."""

    upstream: Text  # a name in `upstreams`
    model: Text | None = None  # the upstream's name for it; None: the same
    fallbacks: tuple[Text, ...] = ()  # other names in `models`, tried in order when its upstream fails
    vision_model: Text | None = None  # takes its place where the last user message carries an image
    tools: tuple[Text, ...] | None = None  # the server tools that it may use; None: all
    limits: LimitOverrides | None = None  # what is different for it


class ToolConfig(Value, frozen=True, kw_only=True):
    """What every entry of `tools:` may say."""

    aliases: tuple[Text, ...] = ()  # other names under which a model or a client may call it
    timeout: Seconds | None = None  # seconds for one call, its retries included; None: limits.tool_timeout
    retries: CountOrNone = 0  # after a failure that another try may mend; only for tools that may safely run twice
    max_concurrent_calls: Count | None = None  # of all requests together; the others wait; None: no limit
    cache_seconds: Annotated[float, Meta(ge=0)] = 0  # how long equal calls of the same client get the same result
    max_calls: Count | None = None  # in one request; None: no limit
    fallback: Text | None = None  # another tool of this file, tried when this one fails
    offer: OfferMode | None = None  # None: what `offer.mode` says
    eager: bool = True  # false for a tool that changes things: its calls wait for the end of their turn


class SerperConfig(ToolConfig, frozen=True, kw_only=True):
    """`type: serper`: Google's results from serper.dev."""

    api_key: Key  # of serper.dev
    base_url: Url = "https://google.serper.dev"  # where it is reached
    endpoint: Literal["search", "news", "scholar", "images", "places", "shopping"] = "search"  # what is searched
    retries: CountOrNone = 1  # after a failure that another try may mend


class SerperScrapeConfig(ToolConfig, frozen=True, kw_only=True):
    """`type: serper_scrape`: one web page as text, read by serper.dev."""

    api_key: Key  # of serper.dev
    base_url: Url = "https://scrape.serper.dev"  # where it is reached
    retries: CountOrNone = 1  # after a failure that another try may mend


class ZaiSearchConfig(ToolConfig, frozen=True, kw_only=True):
    """`type: zai_search`: GLM's own search."""

    api_key: Key  # of Z.AI
    base_url: Url = "https://api.z.ai/api/paas/v4"  # /web_search or /chat/completions is appended
    mode: Literal["api", "chat"] = "api"  # the search endpoint, or a request to GLM with its own search
    retries: CountOrNone = 1  # after a failure that another try may mend
    model: Text = "glm-4.7"  # mode chat: the model that searches
    search_engine: Text | None = None  # Z.AI's name for it; None: what suits the mode


class WebFetchConfig(ToolConfig, frozen=True, kw_only=True):
    """`type: web_fetch`: one web page as text.

    Every public host is open at ports 80 and 443. `allow_hosts` adds to that what it names, private addresses and other
    ports too, and closes nothing; `deny_hosts` closes, and wins. `deny_hosts: ["*"]` closes all that `allow_hosts` does
    not name. An entry is `host`, `*.host`, an address or a network such as 10.1.0.0/16; `host:port` is that port only.
    """

    max_concurrent_calls: Count | None = 32  # each may hold max_bytes several times over
    allow_hosts: tuple[Text, ...] = ()  # opened beyond what is open anyway
    deny_hosts: tuple[Text, ...] = ()  # closed, whatever is open
    max_bytes: Count = 5 * 1024 * 1024  # of one page, unpacked; what is behind is not read
    max_characters: Count = 20_000  # of its text, in one result; three bytes each still fit into max_result_bytes
    user_agent: HeaderValue | None = None  # None: toolproxy's own
    respect_robots: bool = True  # what robots.txt closes is not read


class ClockConfig(ToolConfig, frozen=True, kw_only=True):
    """`type: clock`: the current date and time."""


class HttpToolConfig(ToolConfig, frozen=True, kw_only=True):
    """`type: http`: any HTTP API. `{name}` stands for an argument; what it may be is in `tools.http_template`."""

    description: Text  # for the model: what it does, and when to use it
    url: Text  # placeholders in path and query, never in scheme, host or port
    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"] = "GET"  # of HTTP
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

    url: Url | None = None  # of the server; either this or command
    command: tuple[Text, ...] | None = None  # starts the server, spoken to over its standard input and output
    headers: dict[HeaderName, HeaderValue] = {}  # sent to the url
    env: dict[str, str] = {}  # environment of the command
    allow: tuple[Text, ...] = ("*",)  # glob patterns of its tools
    # of its tools' names; None: the entry's name and '_'
    prefix: Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_-]{0,64}\Z")] | None = None

    def prefix_of(self, name: str) -> str:
        """What its tools' names begin with, for an entry of that name."""
        return f"{name}_" if self.prefix is None else self.prefix


class PythonToolConfig(ToolConfig, frozen=True, kw_only=True):
    """`type: python`: a function."""

    # module:function, or the name of an installed entry point; None: the entry point of the tool's own name
    function: FunctionName | None = None
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

    mode: OfferMode = "always"  # of tools without an `offer:` of their own
    prefix: Text | None = None  # on_request: the last user message begins with it (it is taken off)
    model_suffix: Text | None = None  # on_request: the model's name ends with it (it is taken off)


class StateConfig(Value, frozen=True, kw_only=True):
    """`state:`: what outlives a request."""

    url: StateUrl = "memory://"  # or redis://host:6379/0, for several workers or replicas
    ttl: Seconds = 86400  # seconds from the last write, or from when a response was last continued
    max_entries: Count = 10000  # beyond: the oldest of the client that has most make room
    max_bytes: Count = 256 * 1024 * 1024  # the same; with memory:// an eighth of the memory there is, if that is less


class TelemetryConfig(Value, frozen=True, kw_only=True):
    """`telemetry:`: what operators see."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"  # the quietest events that are written
    log_format: Literal["json", "console"] = "json"  # JSON lines, or text for people
    log_content: bool = False  # what was said, in log, traces and debug pages; keys never
    metrics: bool = True  # GET /metrics
    otlp_endpoint: Url | None = None  # base URL of an OTLP/HTTP receiver for traces; needs the extra otel


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

    server: ServerConfig = ServerConfig()  # where it listens and how much it takes on
    clients: tuple[ClientConfig, ...] = ()  # who may call; none: anyone, on loopback only
    upstreams: dict[str, UpstreamConfig] = {}  # where models are, by a name of your own
    models: dict[str, ModelConfig] = {}  # the names that clients send; `*`: any other
    tools: dict[ToolName, ToolConfig] = {}  # the whitelist, by the name that models call; nothing else is ever run
    offer: OfferConfig = OfferConfig()  # which tools are shown to the model
    limits: Limits = Limits()  # of one request
    state: StateConfig = StateConfig()  # what outlives a request
    telemetry: TelemetryConfig = TelemetryConfig()  # what operators see
    disabled: dict[str, Disabled] = {}
    secrets: frozenset[str] = frozenset()  # what variables with a secret's name have put into it
    places: dict[str, str] = {}  # where each part of the file stands: path -> `config.yaml:LINE`
    warnings: tuple[str, ...] = ()  # what is no fault, but hardly what was meant: `config.yaml:LINE: path: what`


SECRET_NAME: Final = re.compile("key|token|secret|passw|credential|auth|cookie", re.IGNORECASE)
"""What the name of a variable or of a header says that it holds."""


def place_of(path: str, config: Config) -> str:
    """Where a part of the configuration stands, or else what it would stand in: `config.yaml:LINE: path`."""
    known = path
    while known and known not in config.places:
        known = known.rpartition(".")[0]
    return f"{config.places[known]}: {path}" if known else path


_NO_KEY: Final = "from_client"  # stands where a key would


def secrets_of(config: Config) -> frozenset[str]:
    """Every value of a configuration that nobody may see: keys, passwords in URLs, headers that carry either."""
    password = urlsplit(config.state.url).password
    return (
        config.secrets | {*_keys_in(msgspec.structs.replace(config, places={})), *([password] if password else [])}
    ) - {_NO_KEY, ""}


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
