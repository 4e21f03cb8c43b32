"""The keys of an entry of `type: http`, and the request of a call: the entry's templates with its arguments. Pure.

An argument cannot leave its place: scheme, host and port are never templates, and in the path each argument is
percent-encoded and stays within its segment.
"""

import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal
from urllib.parse import parse_qsl, quote, unquote

import orjson

from proxy.config.model import HeaderName, Served, Text, ToolConfig, ToolHeaderValue
from proxy.loop.limits import Bytes
from proxy.loop.results import InvalidArguments
from proxy.tools.exchange import ServiceRequest
from proxy.tools.template import ABSENT, Placeholder, as_text, filled, names_in, parsed, pieces_of
from proxy.wire.chat import Json
from proxy.wire.credentials import headers_in

URL = re.compile(
    r"(?P<scheme>https?)://(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:(?P<port>[0-9]{1,5}))?"
    r"(?P<path>/[^?#\\\s]*)?(\?(?P<query>[^#\s]*))?",
    re.ASCII,
)
# The characters that a path may have unencoded (RFC 3986, pchar and "/"), and "%" for those that are encoded already.
_PATH_CHARACTERS = "/%:@!$&'()*+,;=~"
# No file name and hardly any id is longer, and most servers refuse a URL of more than 8 KB.
_LONGEST_IN_PATH = 1024
CHANGING: Final = ("POST", "PUT", "PATCH")


class HttpToolConfig(ToolConfig, tag="http", frozen=True, kw_only=True):
    """`type: http`: any HTTP API. `{name}` inserts an argument (docs/tools.md says where)."""

    description: Text  # What the tool does and when to use it. The model reads this.
    url: Text  # URL. Path and query may have placeholders; scheme, host and port may not.
    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"] = "GET"  # HTTP method.
    headers: dict[HeaderName, ToolHeaderValue] = {}  # Headers, for keys. They have no placeholders.
    query: dict[str, Any] = {}  # Query parameters: single values or lists, with or without placeholders.
    body: Any = None  # Body, sent as JSON. None: POST, PUT and PATCH send the arguments that have no placeholder.
    parameters: dict[str, Any] = {}  # JSON Schema of the arguments, of type object.
    result: Any = "text"  # `text`, or {json_pointer: /a/b} for that part of a JSON answer (RFC 6901).
    idempotent: bool = False  # A repeated POST or PATCH does no harm, which `retries` requires.
    serves: Served | None = None  # Hosted tool that this tool replaces in requests that declare it.
    # Bytes that are read of an answer. Longer text is cut, longer JSON is refused.
    max_response_bytes: Bytes = 4 * 1024 * 1024

    @property
    def user_headers(self) -> frozenset[str]:
        """See `ToolConfig.user_headers`."""
        return headers_in(self.headers.values())

    @property
    def served(self) -> tuple[str, ...]:
        """See `ToolConfig.served`."""
        return (self.serves,) if self.serves else ()


@dataclass(frozen=True, slots=True)
class Template:
    """The parts of an entry.

    Attributes:
        base: scheme, host and port, which are the same for every call.
        path: the pieces of each segment of the path, without the first slash; text in them is encoded.
        query: names and parsed templates, first those of the URL, then those of the entry.
        rest: the place for arguments without a placeholder; None: every argument has one.
        placed: the arguments that have a placeholder.
        defaults: the schema's defaults for arguments that are left out.
    """

    method: str
    base: str
    path: tuple[tuple[str | Placeholder, ...], ...]
    query: tuple[tuple[str, Any], ...]
    body: Any
    rest: Literal["query", "body"] | None
    placed: frozenset[str]
    defaults: Json

    def fill(self, arguments: Json) -> ServiceRequest:
        """The request of one call. Raises `InvalidArguments`: an argument is not valid in its place."""
        try:
            arguments = self.defaults | orjson.loads(orjson.dumps(arguments))
        except orjson.JSONEncodeError as exc:
            raise InvalidArguments("The arguments hold text or a number that cannot be written as JSON.") from exc
        rest = {name: value for name, value in arguments.items() if name not in self.placed}
        path = "/".join(_segment(segment, arguments) for segment in self.path)
        query = self._query(arguments, rest if self.rest == "query" else {})
        body = filled(self.body, arguments) if self.body is not None else rest if self.rest == "body" else ABSENT
        return ServiceRequest(
            method=self.method,
            url=f"{self.base}/{path}{'?' if query else ''}{query}",
            body=None if body is ABSENT else orjson.dumps(body),
        )

    def _query(self, arguments: Json, rest: Json) -> str:
        if taken := rest.keys() & dict(self.query).keys():
            raise InvalidArguments(f"There is no argument {min(taken)!r}.")
        placed = [(name, filled(value, arguments)) for name, value in self.query]
        pairs = [(name, text) for name, value in (*placed, *rest.items()) for text in _texts(value)]
        return "&".join(f"{quote(name, safe='')}={quote(text, safe='')}" for name, text in pairs)


def template_of(config: HttpToolConfig) -> Template:
    """The template of an entry without faults."""
    parts = parts_of(config)
    in_body = config.method in CHANGING
    return Template(
        method=config.method,
        base=parts["scheme"] + "://" + host_of(config),
        path=tuple(tuple(map(_encoded, pieces_of(segment))) for segment in parts["path"].removeprefix("/").split("/")),
        query=tuple((name, parsed(value)) for name, value in query_of(config)),
        body=parsed(config.body),
        rest="query" if not in_body else "body" if config.body is None else None,
        placed=frozenset(placed_in(config)),
        defaults={name: schema["default"] for name, schema in properties_of(config).items() if _has_default(schema)},
    )


def host_of(config: HttpToolConfig) -> str:
    """Host and port of the entry's URL."""
    parts = parts_of(config)
    return parts["host"] + (f":{parts['port']}" if parts["port"] else "")


def parameters_of(config: HttpToolConfig) -> Json:
    """The schema that a model sees: arguments of the path are required, and unnamed ones are not accepted."""
    needed = [name for name in names_in(parts_of(config)["path"]) if not _has_default(properties_of(config)[name])]
    schema = {"type": "object", "properties": {}, "additionalProperties": False, **config.parameters}
    required = list(dict.fromkeys((*schema.get("required", ()), *needed)))
    return {**schema, "required": required} if required else schema


def parts_of(config: HttpToolConfig) -> Mapping[str, str]:
    """Scheme, host, port, path and query of the entry's URL. Raises `ValueError` if the URL has a fault."""
    found = URL.fullmatch(config.url)
    if found is None:
        raise ValueError("the URL has a fault")
    return found.groupdict(default="")


def query_of(config: HttpToolConfig) -> tuple[tuple[str, Any], ...]:
    """Names and templates, those of the URL first."""
    of_url = parse_qsl(parts_of(config)["query"], keep_blank_values=True)
    return (*of_url, *config.query.items())


def placed_in(config: HttpToolConfig) -> set[str]:
    """The arguments that have a placeholder."""
    return {*names_in(config.url), *names_in(config.query), *names_in(config.body)}


def properties_of(config: HttpToolConfig) -> Mapping[str, Any]:
    """The schemas of the arguments, by name."""
    properties: Mapping[str, Any] = config.parameters.get("properties", {})
    return properties


def _has_default(schema: Any) -> bool:
    return isinstance(schema, dict) and "default" in schema


def _encoded(piece: str | Placeholder) -> str | Placeholder:
    """A piece of the entry's path, encoded for a URL if it is text."""
    return quote(piece, safe=_PATH_CHARACTERS) if isinstance(piece, str) else piece


def _segment(pieces: tuple[str | Placeholder, ...], arguments: Json) -> str:
    """A filled segment of the path, with the slashes of arguments encoded."""
    return "".join(
        piece if isinstance(piece, str) else quote(_in_path(piece.name, filled(piece, arguments)), safe="")
        for piece in pieces
    )


def _in_path(name: str, value: Any) -> str:
    if value is None or value is ABSENT or isinstance(value, (dict, list)):
        raise InvalidArguments(f"The argument {name!r} must be text or a number: it stands in the path.")
    if _leaves_its_segment(text := as_text(value)):
        raise InvalidArguments(
            f"The argument {name!r} stands in the path: it cannot be empty, '.' or '..', longer than "
            f"{_LONGEST_IN_PATH} characters, or hold a slash, a backslash or control characters."
        )
    return text


def _leaves_its_segment(text: str) -> bool:
    """Whether a server that decodes a segment once more than it should, or folds Unicode, may read another path in it.

    An encoded slash is not safe: many servers decode the path before they look for the route.
    """
    if len(text) > _LONGEST_IN_PATH:
        return True
    plain = unicodedata.normalize("NFKC", text)
    while (decoded := unicodedata.normalize("NFKC", unquote(plain))) != plain:
        plain = decoded
    steps = plain.strip() in ("", ".", "..")
    return steps or any(character in "/\\" or unicodedata.category(character) == "Cc" for character in plain)


def _texts(value: Any) -> Iterator[str]:
    """The texts of one parameter of the query: a list repeats the parameter, None leaves it out."""
    if value is None or value is ABSENT:
        return
    for item in value if isinstance(value, list) else [value]:
        if item is not None:
            yield as_text(item)
