"""The contents of config.yaml: frozen values with their defaults.

Each class is a mapping of the file, and each field one of its keys; `config.reading` reads the file into them. The
comment after a field, or before it, is its description in `docs/configuration.md`. The fields of `limits:` are in
`loop.limits`, because the loop acts on them, and those of each type of tool in `tools/kinds/`.
"""

from collections.abc import Mapping
from hashlib import sha256
from ipaddress import ip_address
from typing import Annotated, ClassVar, Final, Literal, TypeAlias, TypeVar
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from proxy.config.keys import FROM_CLIENT, is_placeholder, split_keys
from proxy.loop.limits import Bytes, Count, CountOrZero, LimitOverrides, LimitsConfig, Seconds, Tokens

Port: TypeAlias = Annotated[int, Meta(ge=0, le=65535)]
Workers: TypeAlias = Annotated[int, Meta(ge=1, le=1024)]
SecondsOrZero: TypeAlias = Annotated[float, Meta(ge=0, le=10**9, extra_json_schema={"x-unit": "seconds"})]
WholeSeconds: TypeAlias = Annotated[int, Meta(ge=0, extra_json_schema={"x-unit": "seconds"})]
BytesPerSecond: TypeAlias = Annotated[int, Meta(ge=1, extra_json_schema={"x-unit": "bytes per second"})]
Characters: TypeAlias = Annotated[int, Meta(ge=1, extra_json_schema={"x-unit": "characters"})]
PageCount: TypeAlias = Annotated[int, Meta(ge=0, le=20)]  # as many as one search finds at most
Text: TypeAlias = Annotated[str, Meta(min_length=1)]
# Host and port; `address_fault` checks whether they are valid.
SERVER: Final = r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?"
# Scheme, host (without a user: keys belong in api_key), port, path; no query.
_URL = rf"^https?://{SERVER}(/[\x21\x24-\x3e\x40-\x7e]*)?\Z"
Url: TypeAlias = Annotated[str, Meta(pattern=_URL)]


class Backend(msgspec.Struct, frozen=True, kw_only=True):
    """What `state.url` may name.

    Attributes:
        pattern: the regular expression of its URLs.
        written: its URLs, for people.
        package: the package that it needs, which may not be installed.
    """

    pattern: str
    written: str
    package: str | None = None


BACKENDS: Final[Mapping[str, Backend]] = {
    "memory": Backend(pattern=r"memory://", written="memory://"),
    "sqlite": Backend(pattern=r"sqlite:///[^?#\x00-\x1f]+", written="sqlite:///PATH"),
    # User and password must be percent-encoded if they contain any of "@/?#[]" or a blank.
    "redis": Backend(
        pattern=rf"rediss?://([^@/?#\[\]\s]*@)?{SERVER}(/[0-9]{{0,4}})?",
        written="redis:// or rediss:// with [user:password@]host[:port][/db]",
        package="redis",
    ),
}
"""The backends of `state`, by the beginnings of their URLs. `stores` has a package for each that is shared."""

StateUrl: TypeAlias = Annotated[str, Meta(pattern=rf"^({'|'.join(one.pattern for one in BACKENDS.values())})\Z")]
# Printable ASCII, fit for a header.
Key: TypeAlias = Annotated[str, Meta(pattern=r"^[\x21-\x7e]*\Z")]
# One key, or several with commas between them.
Keys: TypeAlias = Annotated[str, Meta(pattern=r"^[\x21-\x2b\x2d-\x7e]*( *, *[\x21-\x2b\x2d-\x7e]*)*\Z")]
# RFC 9110: a name is a token, a value is printable ASCII without blanks at its ends.
HeaderName: TypeAlias = Annotated[str, Meta(pattern=r"^[!#$%&'*+.^_`|~0-9A-Za-z-]+\Z")]
HeaderValue: TypeAlias = Annotated[str, Meta(pattern=r"^([\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?)?\Z")]
# Such a value of a tool, in which `${request.headers.NAME}` may stand: see `wire.credentials`.
ToolHeaderValue: TypeAlias = Annotated[
    str, Meta(pattern=r"^([\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?)?\Z", extra={"refers_to_request": True})
]
# The rule of OpenAI and GLM for the name of a function.
ToolName: TypeAlias = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_-]{1,64}\Z")]
Sha256: TypeAlias = Annotated[str, Meta(pattern=r"^[0-9a-fA-F]{64}\Z")]
# An origin as browsers write it: RFC 6454, in lower case, without a path.
Origin: TypeAlias = Annotated[str, Meta(pattern=r"^(\*|null|[a-z][a-z0-9+.-]*://[a-z0-9.:\[\]_-]+)\Z")]
FunctionName: TypeAlias = Annotated[str, Meta(pattern=r"^([\w.]+:[\w.]+|[\w.-]+)\Z")]
FunctionPath: TypeAlias = Annotated[str, Meta(pattern=r"^[\w.]+:[\w.]+\Z")]
Served: TypeAlias = Literal["code_interpreter"]
Price: TypeAlias = Annotated[float, Meta(ge=0, le=10**9)]
ToolEvents: TypeAlias = Literal["none", "calls", "results"]
OfferMode: TypeAlias = Literal["always", "declared", "on_request", "never"]


class Value(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A mapping of the configuration file.

    Attributes:
        needs_restart: the keys that a process takes up when it starts; a reload leaves them as they were.
    """

    needs_restart: ClassVar[tuple[str, ...]] = ()


class CorsConfig(Value, frozen=True, kw_only=True):
    """`server.cors:`: which web pages may call the proxy from a browser. Their requests need keys like all others."""

    origins: tuple[Origin, ...]  # Origins such as `https://app.example`; `*` allows every page.
    max_age: WholeSeconds = 600  # Seconds for which a browser may cache the permission.


class ServerConfig(Value, frozen=True, kw_only=True):
    """`server:`: the address of the proxy, its processes, and the bounds of what clients may send."""

    needs_restart = ("host", "port", "workers")  # the address is bound, and the workers run

    host: Text = "127.0.0.1"  # Address to listen on. Any address but loopback requires clients, or allow_anonymous.
    port: Port = 8080  # Port to listen on. 0: any free port.
    workers: Workers = 1  # Number of worker processes, which share the port.
    max_body_bytes: Bytes = 32 * 1024 * 1024  # Largest request body in bytes; a larger one is refused with 413.
    # Memory in bytes for the parsed bodies of a worker's open requests. More: 503. None: half of its memory.
    max_body_memory: Bytes | None = None
    max_concurrent_requests: Count = 1000  # Requests that each worker answers at the same time.
    # Requests that may queue when the limit is reached. None: 10 % of max_concurrent_requests.
    max_queued_requests: CountOrZero | None = None
    queue_timeout_seconds: Seconds = 0.5  # How long a queued request waits before it is refused with 503.
    keepalive_seconds: Seconds = 15  # Seconds of silence after which a stream gets an SSE comment.
    shutdown_grace_seconds: Seconds = 30  # Seconds that open requests may take to finish after SIGTERM.
    cors: CorsConfig | None = None  # Web pages of other origins that may call. None: no page.
    # Serve GET /chat, a page to try the proxy, to anyone. None: to this machine only, and only without clients.
    chat_page: bool | None = None
    mcp: bool = False  # Serve POST /mcp: the client's tools as an MCP server. Needs the extra mcp.
    allow_anonymous: bool = False  # Allow an address other than loopback without clients.
    max_headers: Count = 100  # Largest number of headers in a request, as in Envoy and HAProxy.
    max_header_bytes: Bytes = 64 * 1024  # Largest size of all headers of a request together; Envoy allows 60 KiB.
    # Seconds for the head of a request, connecting included, like Apache's RequestReadTimeout.
    header_timeout_seconds: Seconds = 20
    body_timeout_seconds: Seconds = 30  # Longest silence in seconds within a request body.
    # Lowest average rate of a body in bytes per second, not counting body_timeout_seconds, like Apache's MinRate.
    min_body_rate: BytesPerSecond = 500
    # Longest time in seconds in which a client reads nothing, like nginx's send_timeout.
    send_timeout_seconds: Seconds = 60
    # Longest idle time of a connection between two requests, in seconds, like nginx's keepalive_timeout.
    idle_timeout_seconds: Seconds = 75


class BudgetConfig(Value, frozen=True, kw_only=True):
    """`clients[].budget:`: what a client may use in a day or month of the calendar, in UTC. Needs at least one amount.

    A request that begins within the budget is finished, and what it uses is counted when it ends.
    """

    per: Literal["day", "month"]  # Period of the budget, in UTC. It starts at midnight, or on the first of the month.
    tokens: Tokens | None = None  # Input and output tokens, as the upstreams count them. None: no limit.
    tool_calls: Count | None = None  # Calls of server tools. None: no limit.
    # Cost by the prices of models and tools, or as upstreams report it. None: no limit.
    cost: Annotated[float, Meta(gt=0, le=10**12)] | None = None


class ClientConfig(Value, frozen=True, kw_only=True):
    """An entry of `clients:`: who may call the proxy, and within which limits."""

    name: Text  # Unique name of the client in logs, metrics and the debug pages.
    # Key that the client sends, or a list of keys during a rotation. Set either this or key_sha256.
    key: Key | tuple[Key, ...] | None = None
    # SHA-256 of the client's key, as `toolproxy hash-key` prints it, or a list of several.
    key_sha256: Sha256 | tuple[Sha256, ...] | None = None
    models: tuple[Text, ...] = ("*",)  # Glob patterns of the models that the client may use.
    tools: tuple[Text, ...] | None = None  # Server tools that the client's requests may use. None: all.
    # Requests in any 60 seconds; more are refused with 429. None: no limit.
    requests_per_minute: Count | None = None
    # Open requests at the same time; more are refused with 429. None: no limit.
    max_concurrent_requests: Count | None = None
    limits: LimitOverrides | None = None  # Values that replace those of `limits` for this client.
    # What the client may use in a day or month. After that, its requests are refused with 429. None: no limit.
    budget: BudgetConfig | None = None
    tool_events: ToolEvents | None = None  # Replaces `offer.tool_events` for this client. None: no change.
    admin: bool = False  # Allow the client to read /debug.

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys in `key`."""
        return (self.key,) if isinstance(self.key, str) else self.key or ()

    @property
    def digests(self) -> frozenset[str]:
        """The SHA-256 of every key of the client, in lower-case hexadecimal digits."""
        hashed = (self.key_sha256,) if isinstance(self.key_sha256, str) else self.key_sha256 or ()
        return frozenset([*(one.lower() for one in hashed), *(sha256(key.encode()).hexdigest() for key in self.keys)])


class Timeouts(Value, frozen=True, kw_only=True):
    """Timeouts of one upstream, in seconds."""

    connect: Seconds = 10  # Seconds to establish a connection.
    read: Seconds = 300  # Longest silence in seconds between two reads. GLM has taken 78 s for a tool turn.
    write: Seconds = 60  # Longest silence in seconds while the request is sent.
    pool: Seconds = 10  # Seconds to wait for a free connection.


class BreakerConfig(Value, frozen=True, kw_only=True):
    """`breaker:`: when calls of an upstream that keeps failing are suspended, and for how long."""

    # Consecutive failures that open the breaker. One client's requests count for at most half of them.
    failures: Count = 10
    seconds: Seconds = 10  # Seconds until one call tests the upstream again, like nginx's fail_timeout.


Keyed = TypeVar("Keyed", bound=Value)


# One key, several in one text with commas between them, or a list.
ApiKeys: TypeAlias = Keys | tuple[Keys, ...]


def keys_of(api_key: str | tuple[str, ...] | None) -> dict[int, str]:
    """The keys of an `api_key` by their places, from 1, by which people know them.

    Places without a key, or with a placeholder, are left out.
    """
    listed = (api_key,) if isinstance(api_key, str) else api_key or ()
    single = [key for text in listed for key in split_keys(text)]
    return {at: key for at, key in enumerate(single, 1) if key and not is_placeholder(key)}


def only_key(api_key: str | tuple[str, ...] | None) -> str | None:
    """The key of an `api_key`, the first one of several; None: there is none."""
    return next(iter(keys_of(api_key).values()), None)


def with_single_keys(entry: Keyed) -> dict[int, Keyed]:
    """An entry that has an `api_key`, once with each of its keys, by their numbers; as it is if it has no key."""
    keys = keys_of(getattr(entry, "api_key", None))
    return {number: msgspec.structs.replace(entry, api_key=one) for number, one in keys.items()} or {1: entry}


class UpstreamConfig(Value, frozen=True, kw_only=True):
    """An entry of `upstreams:`: a server that answers with models."""

    base_url: Url  # URL to which '/chat/completions' is appended. Include '/v1' if the upstream has it.
    # Key of the upstream, or several. from_client forwards the key of each request and cannot be used with clients.
    api_key: ApiKeys
    profile: Literal["glm", "gpt_oss", "openai"] = "openai"  # Model family; the proxy handles its quirks.
    timeouts: Timeouts = Timeouts()  # Timeouts in seconds.
    retries: CountOrZero = 2  # Retries of one request, over all of its turns.
    breaker: BreakerConfig = BreakerConfig()  # When calls are suspended after failures, and for how long.
    # Pass on `cache_control` of the Messages API, for texts in system prompts and user messages.
    cache_marks: bool = False
    max_connections: Count = 1000  # Largest number of connections at the same time.
    # HTTP client for the upstream. httpx: the transport of that library.
    transport: Literal["auto", "httpx"] = "auto"
    headers: dict[HeaderName, HeaderValue] = {}  # Headers that are sent with every request.
    # Headers of the client's request that are forwarded.
    forward_headers: tuple[HeaderName, ...] = ("traceparent", "tracestate")


class PriceConfig(Value, frozen=True, kw_only=True):
    """`models.NAME.price:`: prices of a million tokens, in any one currency."""

    input: Price  # Price of a million input tokens.
    output: Price  # Price of a million output tokens, thoughts included.
    cached: Price | None = None  # Price of a million input tokens that the upstream had cached. None: same as input.


class ModelConfig(Value, frozen=True, kw_only=True):
    """An entry of `models:`: a name that clients send."""

    upstream: Text  # Name of the upstream, a key of `upstreams`.
    model: Text | None = None  # The upstream's name for the model. None: the same name.
    fallbacks: tuple[Text, ...] = ()  # Other names in `models`, tried in order when the upstream fails.
    # The name in `models` that answers requests with an image. `vision` says which images count.
    vision_model: Text | None = None
    # Images that count for `vision_model`: in the last user message (earlier ones become notes), or in any message.
    vision: Literal["last_message", "conversation"] = "last_message"
    tools: tuple[Text, ...] | None = None  # Server tools that the model may use. None: all.
    limits: LimitOverrides | None = None  # Values that replace those of `limits` for this model.
    price: PriceConfig | None = None  # Prices of the model's tokens, for `usage.cost`. None: not counted.


class CheckConfig(Value, frozen=True, kw_only=True):
    """`check:` of a tool, or `tools_check:`: judges each result before the model reads it. A text sets `function`."""

    function: FunctionPath  # module:function that judges results.
    timeout: Seconds = 5  # Seconds for one result. A result that takes longer is refused.


class ReadConfig(Value, frozen=True, kw_only=True):
    """`tools.NAME.read:` of a search: how the pages that it finds are read."""

    pages: PageCount = 3  # Pages that are read for one call: the first of its hits.
    characters: Characters = 1500  # Characters that the model gets of one page: its best passages for the query.
    seconds: Seconds = 4  # Seconds for all pages together. A page that takes longer keeps its snippet.


class ToolConfig(Value, frozen=True, kw_only=True, tag_field="type"):
    """Keys of every entry of `tools:`."""  # each type adds its own, in its module in `tools/kinds/`

    aliases: tuple[Text, ...] = ()  # Other names under which models and clients may call the tool.
    timeout: Seconds | None = None  # Seconds for one call with all its retries. None: limits.tool_timeout.
    retries: CountOrZero = 0  # Retries after a temporary failure, for tools that may safely run twice.
    # Calls at the same time, over all requests. More calls wait. None: no limit.
    max_concurrent_calls: Count | None = None
    # Seconds for which equal calls of the same client reuse a result. 0: no cache.
    cache_seconds: SecondsOrZero = 0
    max_calls: Count | None = None  # Calls in one request. None: no limit.
    # Tool of this file that is called when this one fails, or a list of tools in order.
    fallback: Text | tuple[Text, ...] | None = None
    # Price of one call, for `usage.cost`. Failed and cached calls cost nothing. None: not counted.
    price: Price | None = None
    offer: OfferMode | None = None  # When the tool is offered to the model. None: as `offer.mode` says.
    eager: bool = True  # Start calls before the turn has ended. Use false for a tool that changes things.
    # Function that judges the tool's results before the model reads them. None: as `tools_check` says.
    check: FunctionPath | CheckConfig | None = None

    @property
    def fallbacks(self) -> tuple[str, ...]:
        """The names in `fallback`."""
        return (self.fallback,) if isinstance(self.fallback, str) else self.fallback or ()

    @property
    def type(self) -> str:
        """The `type:` of the entry."""
        return str(self.__struct_config__.tag)

    @property
    def user_headers(self) -> frozenset[str]:
        """The names, in lower case, of the headers of an app's request that the tool sends on."""
        return frozenset()

    @property
    def served(self) -> tuple[str, ...]:
        """The hosted tools in whose place a tool of the entry stands."""
        return ()

    def prefix_of(self, name: str) -> str | None:  # noqa: ARG002 - for the types that need it
        """The prefix of the names of the tools of an entry of that name, if it has several; None: it is one tool."""
        return None


class OfferConfig(Value, frozen=True, kw_only=True):
    """`offer:`: when tools are offered to the model."""

    mode: OfferMode = "always"  # When tools without their own `offer` are offered.
    prefix: Text | None = None  # on_request: start of a last user message that requests tools. It is removed.
    model_suffix: Text | None = None  # on_request: end of a model's name that requests tools. It is removed.
    # Number of server tools above which the model looks up the rest with find_tools. null: all are described.
    search_above: Count | None = 40
    # Progress events for requests without the header x-tool-events: none, calls, or calls with the pages found.
    tool_events: ToolEvents = "none"


class StateConfig(Value, frozen=True, kw_only=True):
    """`state:`: what is kept between requests."""

    needs_restart = ("url", "ttl", "max_entries", "max_bytes", "secret")  # the stores are open

    # memory:// (per process, lost at exit), sqlite:///state.db (one machine) or redis://host:6379/0 (many).
    url: StateUrl = "memory://"
    ttl: Seconds = 86400  # Seconds for which an entry is kept after it was written or last continued.
    max_entries: Count = 10000  # Largest number of entries. Above it, the client with the most loses its oldest.
    # Largest size of all entries in bytes. With memory://, at most an eighth of the worker's memory.
    max_bytes: Bytes = 256 * 1024 * 1024
    # Secret that seals what clients keep. In a list, the first seals and all open. None: the store makes its own.
    secret: Key | tuple[Key, ...] | None = None

    @property
    def backend(self) -> str:
        """The name of its backend in `BACKENDS`."""
        return next(name for name in BACKENDS if self.url.startswith(name))

    @property
    def is_shared(self) -> bool:
        """Whether processes share it."""
        return self.backend != "memory"

    @property
    def secrets(self) -> tuple[str, ...]:
        """The secrets in `secret` that are not empty."""
        given = (self.secret,) if isinstance(self.secret, str) else self.secret or ()
        return tuple(secret for secret in given if secret)


class TelemetryConfig(Value, frozen=True, kw_only=True):
    """`telemetry:`: logs, metrics and traces."""

    needs_restart = ("metrics", "otlp_endpoint")  # what is off is not even imported

    log_level: Literal["debug", "info", "warning", "error"] = "info"  # Lowest level of events that are logged.
    # JSON lines, or text for people. auto: text on a terminal, JSON elsewhere.
    log_format: Literal["json", "console", "auto"] = "auto"
    # Write messages, arguments and results to log, traces and debug pages. Keys are always masked.
    log_content: bool = False
    metrics: bool = True  # Serve GET /metrics.
    # Base URL of an OTLP/HTTP receiver for traces. Needs the extra otel. None: no traces.
    otlp_endpoint: Url | None = None


class Config(Value, frozen=True, kw_only=True):
    """The whole file, without entries that cannot be used because a key is missing: see `loaded.Loaded`."""

    server: ServerConfig = ServerConfig()  # Address, processes and bounds.
    clients: tuple[ClientConfig, ...] = ()  # Clients that may call. Without any, everyone may, on loopback only.
    # File with more clients, next to this one, written by `toolproxy key`. Once it exists, every caller needs a key.
    clients_file: Text | None = None
    upstreams: dict[str, UpstreamConfig] = {}  # Servers of models, by names of your choice.
    models: dict[str, ModelConfig] = {}  # Models by the names that clients send. `*`: any other name.
    tools: dict[ToolName, ToolConfig] = {}  # Server tools by the names that models call. No other tool is ever run.
    # Function that judges the results of every tool without its own `check`. None: no check.
    tools_check: FunctionPath | CheckConfig | None = None
    offer: OfferConfig = OfferConfig()  # When tools are offered to the model.
    limits: LimitsConfig = LimitsConfig()  # Limits of one request.
    state: StateConfig = StateConfig()  # What is kept between requests.
    telemetry: TelemetryConfig = TelemetryConfig()  # Logs, metrics and traces.

    @property
    def forwards_client_keys(self) -> bool:
        """Whether the keys of requests go to an upstream (`from_client`), and so tell one client from another."""
        return any(upstream.api_key == FROM_CLIENT for upstream in self.upstreams.values())

    @property
    def passes_cache_marks(self) -> bool:
        """Whether any upstream is sent `cache_control`."""
        return any(upstream.cache_marks for upstream in self.upstreams.values())

    @property
    def has_prices(self) -> bool:
        """Whether any model or tool has a price."""
        prices = (*(model.price for model in self.models.values()), *(tool.price for tool in self.tools.values()))
        return any(price is not None for price in prices)

    @property
    def offers_on_request(self) -> bool:
        """Whether any tool is offered on request, so that the prefix and suffix of `offer:` have an effect."""
        return "on_request" in {self.offer.mode, *(tool.offer for tool in self.tools.values())}

    @property
    def has_key_pools(self) -> bool:
        """Whether any upstream has several keys, so that conversations have to stay with theirs."""
        return any(len(keys_of(upstream.api_key)) > 1 for upstream in self.upstreams.values())

    @property
    def counts_use(self) -> bool:
        """Whether the use of clients is counted: the state outlives the process, or there is a budget or a price."""
        return self.needs_use or self.state.is_shared

    @property
    def needs_use(self) -> bool:
        """Whether the upstreams' own counts are needed, because a client has a budget, or a model or tool a price."""
        return self.has_prices or any(client.budget for client in self.clients)


def address_fault(url: str) -> str | None:
    """The fault of the host or port of a URL, if it has one. The name of a host is not looked up."""
    try:
        host = urlsplit(url).hostname or ""
        if ":" in host or (host.count(".") == 3 and host.replace(".", "").isdigit()):  # noqa: PLR2004 - IPv4
            ip_address(host)
    except ValueError:
        return "has a host that is not a valid IP address"
    try:
        port = urlsplit(url).port
    except ValueError:
        port = 0
    return "has a port that is not from 1 to 65535" if port == 0 else None


def appended_path_fault(url: str, *paths: str) -> str | None:
    """The fault of a base URL that already ends with one of the paths that are appended to it."""
    end = next((path for path in paths if url.rstrip("/").endswith(path)), None)
    return f"must end before {end}, which is appended to it" if end else None
