"""What an HTTP tool sends: the templates of its entry, filled with a call's arguments. Pure.

`{name}` stands for an argument, `{{name}}` for itself. An argument cannot leave its place: scheme, host and port are
never templates, and in the path each argument is percent-encoded and stays within its segment.
"""

import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import parse_qsl, quote, unquote

import orjson

from proxy.config import HttpToolConfig
from proxy.loop.chat import Json
from proxy.loop.errors import InvalidArguments
from proxy.tools.arguments import schema_fault
from proxy.tools.http import json_pointer

Fault: TypeAlias = tuple[str, str]
"""The key of an entry that is at fault, and what is wrong with it."""

_PLACEHOLDER = re.compile(r"\{\{([A-Za-z_][\w-]*)\}\}|\{([A-Za-z_][\w-]*)\}")
_URL = re.compile(
    r"(?P<scheme>https?)://(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:(?P<port>[0-9]{1,5}))?"
    r"(?P<path>/[^?#\\\s]*)?(\?(?P<query>[^#\s]*))?",
    re.ASCII,
)
_LARGEST_PORT = 65535
# What may stand in a path as it is (RFC 3986, pchar and "/"), and "%" for what is encoded already.
_PATH_CHARACTERS = "/%:@!$&'()*+,;=~"
# No file name and hardly any id is longer; a URL of more than 8 KB is refused by most servers.
_LONGEST_IN_PATH = 1024
_CHANGING = ("POST", "PUT", "PATCH")
_NOT_IDEMPOTENT = ("POST", "PATCH")
# What HTTP itself needs to be right about; `accept-encoding`: the size of an answer is bounded as it is read.
_OURS = ("accept-encoding", "connection", "content-length", "host", "te", "trailer", "transfer-encoding", "upgrade")
_ABSENT: Final = object()  # what is left out of a query or a body


@dataclass(frozen=True, slots=True)
class Request:
    """What one call sends; `body`: JSON, or None."""

    method: str
    url: str
    body: bytes | None


@dataclass(frozen=True, slots=True)
class Template:
    """An entry made ready: its parts, and where the arguments go that stand in none of them.

    Attributes:
        base: scheme, host and port, the same for every call.
        path: its segments, without the first slash.
        query: names and templates, in the order of the URL's own and then the entry's.
        rest: the place of arguments without a placeholder; None: there is none.
        placed: the arguments that have a placeholder.
        defaults: what the schema says of arguments that are left out.
    """

    method: str
    base: str
    path: tuple[str, ...]
    query: tuple[tuple[str, Any], ...]
    body: Any
    rest: Literal["query", "body"] | None
    placed: frozenset[str]
    defaults: Json

    def fill(self, arguments: Json) -> Request:
        """The request of one call.

        Raises:
            InvalidArguments: an argument cannot stand where it belongs.
        """
        try:
            arguments = self.defaults | orjson.loads(orjson.dumps(arguments))
        except orjson.JSONEncodeError as exc:
            raise InvalidArguments("The arguments hold text or a number that cannot be written as JSON.") from exc
        rest = {name: value for name, value in arguments.items() if name not in self.placed}
        path = "/".join(_segment(segment, arguments) for segment in self.path)
        query = self._query(arguments, rest if self.rest == "query" else {})
        body = _filled(self.body, arguments) if self.body is not None else rest if self.rest == "body" else _ABSENT
        return Request(
            method=self.method,
            url=f"{self.base}/{path}{'?' if query else ''}{query}",
            body=None if body is _ABSENT else orjson.dumps(body),
        )

    def _query(self, arguments: Json, rest: Json) -> str:
        if taken := rest.keys() & dict(self.query).keys():
            raise InvalidArguments(f"There is no argument {min(taken)!r}.")
        filled = [(name, _filled(value, arguments)) for name, value in self.query]
        pairs = [(name, text) for name, value in (*filled, *rest.items()) for text in _texts(value)]
        return "&".join(f"{quote(name, safe='')}={quote(text, safe='')}" for name, text in pairs)


def template_of(config: HttpToolConfig) -> Template:
    """An entry as a template; it has no `faults`."""
    parts = _parts(config)
    in_body = config.method in _CHANGING
    return Template(
        method=config.method,
        base=parts["scheme"] + "://" + host_of(config),
        path=tuple(_encoded(segment) for segment in parts["path"].removeprefix("/").split("/")),
        query=_query_of(config),
        body=config.body,
        rest="query" if not in_body else "body" if config.body is None else None,
        placed=frozenset(_placed(config)),
        defaults={name: schema["default"] for name, schema in _properties(config).items() if _has_default(schema)},
    )


def host_of(config: HttpToolConfig) -> str:
    """Host and port, as the entry says them."""
    parts = _parts(config)
    return parts["host"] + (f":{parts['port']}" if parts["port"] else "")


def parameters_of(config: HttpToolConfig) -> Json:
    """The schema that a model sees: what the path needs is required, and nothing that is not named is taken."""
    needed = [name for name in _names_in(_parts(config)["path"]) if not _has_default(_properties(config)[name])]
    schema = {"type": "object", "properties": {}, "additionalProperties": False, **config.parameters}
    required = list(dict.fromkeys((*schema.get("required", ()), *needed)))
    return {**schema, "required": required} if required else schema


def faults(config: HttpToolConfig) -> Iterator[Fault]:
    """What is wrong with an entry, found at start."""
    if fault := schema_fault({"type": "object", **config.parameters}):
        yield "parameters", fault
        return
    if url_fault := _url_fault(config):
        yield "url", url_fault
        return
    yield from _placeholder_faults(config)
    yield from _place_faults(config)
    yield from _header_faults(config)
    if result_fault := _result_fault(config.result):
        yield "result", result_fault
    if config.retries and config.method in _NOT_IDEMPOTENT and not config.idempotent:
        yield "retries", f"{config.method} may not be sent twice, unless idempotent: true says that it may"


def pointer_in(result: Any) -> tuple[str, ...] | None:
    """The steps of `result: {json_pointer: ...}`; None for text. Raises `ValueError` for anything else."""
    match result:
        case "text":
            return None
        case {"json_pointer": str(pointer)} if len(result) == 1:
            return json_pointer.parse(pointer)
        case _:
            raise ValueError("must be text, or {json_pointer: /a/b}")


def _result_fault(result: Any) -> str | None:
    try:
        pointer_in(result)
    except ValueError as exc:
        return str(exc)
    return None


def _url_fault(config: HttpToolConfig) -> str | None:
    found = _URL.fullmatch(config.url)
    if found is None or int(found["port"] or 0) > _LARGEST_PORT:
        return (
            "must be http:// or https://, a host and a path, without user, fragment and blanks; "
            "a placeholder may stand in the path and the query only"
        )
    return None


def _placeholder_faults(config: HttpToolConfig) -> Iterator[Fault]:
    """Placeholders that mean nothing, or stand where none may."""
    templates = [("url", config.url), ("body", config.body)]
    templates += [(f"query.{name}", value) for name, value in config.query.items()]
    for key, template in templates:
        for name in _names_in(template):
            if name not in _properties(config):
                yield key, f"{{{name}}} is none of the properties of parameters"
        if any(_PLACEHOLDER.search(name) for name in _keys_in(template)):
            yield key, "a placeholder cannot be a key"
    for name, value in _query_of(config):
        where = f"query.{name}" if name in config.query else "url"
        if _PLACEHOLDER.search(name):
            yield where, "a placeholder cannot be a key"
        if isinstance(value, dict):
            yield where, "must be a single value or a list"


def _place_faults(config: HttpToolConfig) -> Iterator[Fault]:
    """A body that cannot be sent, and properties that would be sent nowhere or twice."""
    unplaced = _properties(config).keys() - _placed(config)
    if config.body is not None and config.method == "GET":
        yield "body", "GET has none"
    if not _is_json(config.body):
        yield "body", "cannot be written as JSON (a key such as on, yes or 1 needs quotes)"
    if config.method in _CHANGING and config.body is not None:
        for name in sorted(unplaced):
            yield "parameters", f"{name} stands neither in url nor in query nor in body"
    if config.method not in _CHANGING:
        for name in sorted(unplaced & dict(_query_of(config)).keys()):
            yield f"query.{name}", f"{name} is a property too: write '{{{name}}}', or take it out of parameters"


def _header_faults(config: HttpToolConfig) -> Iterator[Fault]:
    for name, value in config.headers.items():
        if name.lower() in _OURS:
            yield f"headers.{name}", "is set by the proxy"
        if _PLACEHOLDER.search(value):
            yield f"headers.{name}", "a model's words cannot stand in a header; put the placeholder in query or body"


def _parts(config: HttpToolConfig) -> Mapping[str, str]:
    found = _URL.fullmatch(config.url)
    if found is None:  # `faults` comes first
        raise ValueError("url is none")
    return found.groupdict(default="")


def _query_of(config: HttpToolConfig) -> tuple[tuple[str, Any], ...]:
    of_url = parse_qsl(_parts(config)["query"], keep_blank_values=True)
    return (*of_url, *config.query.items())


def _placed(config: HttpToolConfig) -> set[str]:
    return {*_names_in(config.url), *_names_in(config.query), *_names_in(config.body)}


def _properties(config: HttpToolConfig) -> Mapping[str, Any]:
    properties: Mapping[str, Any] = config.parameters.get("properties", {})
    return properties


def _has_default(schema: Any) -> bool:
    return isinstance(schema, dict) and "default" in schema


def _names_in(template: Any) -> Iterator[str]:
    """The arguments that stand in a template."""
    match template:
        case str():
            yield from (found[2] for found in _PLACEHOLDER.finditer(template) if found[2])
        case list():
            for item in template:
                yield from _names_in(item)
        case dict():
            for item in template.values():
                yield from _names_in(item)


def _keys_in(template: Any) -> Iterator[str]:
    match template:
        case list():
            for item in template:
                yield from _keys_in(item)
        case dict():
            for key, item in template.items():
                yield str(key)
                yield from _keys_in(item)


def _is_json(value: Any) -> bool:
    try:
        orjson.dumps(value)
    except orjson.JSONEncodeError:
        return False
    return True


def _encoded(segment: str) -> str:
    """A segment of the entry's own path with what is no placeholder made fit for a URL."""
    pieces = _PLACEHOLDER.split(segment)  # text, escaped name, name, text, ...
    return "".join(
        quote(piece, safe=_PATH_CHARACTERS) if at % 3 == 0 else ("{{%s}}" if at % 3 == 1 else "{%s}") % piece
        for at, piece in enumerate(pieces)
        if piece is not None
    )


def _segment(template: str, arguments: Json) -> str:
    """One segment of the path, which stays one."""

    def put(found: re.Match[str]) -> str:
        escaped, name = found.groups()
        return quote(f"{{{escaped}}}" if escaped else _in_path(name, arguments.get(name)), safe="")

    return _PLACEHOLDER.sub(put, template)


def _in_path(name: str, value: Any) -> str:
    if value is None or isinstance(value, (dict, list)):
        raise InvalidArguments(f"The argument {name!r} must be text or a number: it stands in the path.")
    if _leaves_its_segment(text := _text(value)):
        raise InvalidArguments(
            f"The argument {name!r} stands in the path: it cannot be empty, '.' or '..', longer than "
            f"{_LONGEST_IN_PATH} characters, or hold a slash, a backslash or control characters."
        )
    return text


def _leaves_its_segment(text: str) -> bool:
    """Whether a server that decodes once more than it should, or folds Unicode, may read another path in it.

    An encoded slash is no way out: many servers decode the path before they look for the route.
    """
    if len(text) > _LONGEST_IN_PATH:
        return True
    plain = unicodedata.normalize("NFKC", text)
    while (decoded := unicodedata.normalize("NFKC", unquote(plain))) != plain:
        plain = decoded
    steps = plain.strip() in ("", ".", "..")
    return steps or any(character in "/\\" or unicodedata.category(character) == "Cc" for character in plain)


def _filled(template: Any, arguments: Json) -> Any:
    """A template with its arguments in place, or `_ABSENT` where an optional one was not given."""
    match template:
        case str():
            return _filled_text(template, arguments)
        case list():
            return [value for item in template if (value := _filled(item, arguments)) is not _ABSENT]
        case dict():
            filled = {key: _filled(item, arguments) for key, item in template.items()}
            return {key: value for key, value in filled.items() if value is not _ABSENT}
        case _:
            return template


def _filled_text(template: str, arguments: Json) -> Any:
    """A string that is nothing but a placeholder becomes the argument itself, with its type."""
    whole = _PLACEHOLDER.fullmatch(template)
    if whole and whole[2]:
        return arguments.get(whole[2], _ABSENT)
    if any(arguments.get(name) is None for name in _names_in(template)):
        return _ABSENT
    return _PLACEHOLDER.sub(lambda found: f"{{{found[1]}}}" if found[1] else _text(arguments[found[2]]), template)


def _texts(value: Any) -> Iterator[str]:
    """A value of the query: a list repeats its name, nothing leaves it out."""
    if value is None or value is _ABSENT:
        return
    for item in value if isinstance(value, list) else [value]:
        if item is not None:
            yield _text(item)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode().strip('"')
