"""The request of an HTTP tool: the templates of its entry, filled with a call's arguments. Pure.

`{name}` stands for an argument, and `{{name}}` for the text `{name}`. An argument cannot leave its place: scheme, host
and port are never templates, and in the path each argument is percent-encoded and stays within its segment.
"""

import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal
from urllib.parse import parse_qsl, quote, unquote

import orjson

from proxy.loop.results import InvalidArguments
from proxy.tools.exchange import Request
from proxy.tools.kinds.http.entry import HttpToolConfig
from proxy.tools.search.template import strings_in
from proxy.wire.chat import Json

PLACEHOLDER = re.compile(r"\{\{([A-Za-z_][\w-]*)\}\}|\{([A-Za-z_][\w-]*)\}")
URL = re.compile(
    r"(?P<scheme>https?)://(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:(?P<port>[0-9]{1,5}))?"
    r"(?P<path>/[^?#\\\s]*)?(\?(?P<query>[^#\s]*))?",
    re.ASCII,
)
# The characters that a path may have unencoded (RFC 3986, pchar and "/"), and "%" for those that are encoded already.
_PATH_CHARACTERS = "/%:@!$&'()*+,;=~"
# No file name and hardly any id is longer, and most servers refuse a URL of more than 8 KB.
_LONGEST_IN_PATH = 1024
CHANGING = ("POST", "PUT", "PATCH")
_ABSENT: Final = object()  # stands for a value that is left out of a query or a body


@dataclass(frozen=True, slots=True)
class Template:
    """The parts of an entry.

    Attributes:
        base: scheme, host and port, which are the same for every call.
        path: the segments of the path, without the first slash.
        query: names and templates, first those of the URL, then those of the entry.
        rest: the place for arguments without a placeholder; None: every argument has one.
        placed: the arguments that have a placeholder.
        defaults: the schema's defaults for arguments that are left out.
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
        """The request of one call. Raises `InvalidArguments`: an argument is not valid in its place."""
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
    """The template of an entry without faults."""
    parts = parts_of(config)
    in_body = config.method in CHANGING
    return Template(
        method=config.method,
        base=parts["scheme"] + "://" + host_of(config),
        path=tuple(_encoded(segment) for segment in parts["path"].removeprefix("/").split("/")),
        query=query_of(config),
        body=config.body,
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


def names_in(template: Any) -> list[str]:
    """The arguments with a placeholder in a template."""
    return [found[2] for text in strings_in(template) for found in PLACEHOLDER.finditer(text) if found[2]]


def _encoded(segment: str) -> str:
    """A segment of the entry's path, with everything but the placeholders encoded for a URL."""
    pieces = PLACEHOLDER.split(segment)  # text, escaped name, name, text, ...
    return "".join(
        quote(piece, safe=_PATH_CHARACTERS) if at % 3 == 0 else ("{{%s}}" if at % 3 == 1 else "{%s}") % piece
        for at, piece in enumerate(pieces)
        if piece is not None
    )


def _segment(template: str, arguments: Json) -> str:
    """A filled segment of the path, with its slashes encoded."""

    def put(found: re.Match[str]) -> str:
        escaped, name = found.groups()
        return quote(f"{{{escaped}}}" if escaped else _in_path(name, arguments.get(name)), safe="")

    return PLACEHOLDER.sub(put, template)


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


def _filled(template: Any, arguments: Json) -> Any:
    """A template with its arguments in place, or `_ABSENT` if an optional argument was not given."""
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
    """A filled string. If it is only a placeholder, it becomes the argument itself, with the argument's type."""
    whole = PLACEHOLDER.fullmatch(template)
    if whole and whole[2]:
        return arguments.get(whole[2], _ABSENT)
    if any(arguments.get(name) is None for name in names_in(template)):
        return _ABSENT
    return PLACEHOLDER.sub(lambda found: f"{{{found[1]}}}" if found[1] else _text(arguments[found[2]]), template)


def _texts(value: Any) -> Iterator[str]:
    """The texts of one parameter of the query: a list repeats the parameter, None leaves it out."""
    if value is None or value is _ABSENT:
        return
    for item in value if isinstance(value, list) else [value]:
        if item is not None:
            yield _text(item)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode().strip('"')
