"""Finds the faults of an entry of `type: http` at start."""

from collections.abc import Iterator
from typing import Any

from proxy.config.model import address_fault
from proxy.config.rules import Faults
from proxy.kit import json_pointer
from proxy.kit.header_names import header_faults
from proxy.tools.kinds.http.template import CHANGING, URL, HttpToolConfig, placed_in, properties_of, query_of
from proxy.tools.schema import schema_fault, serving_fault
from proxy.tools.search.faults import NO_JSON, is_json
from proxy.tools.template import PLACEHOLDER, faults_in

_NOT_IDEMPOTENT = ("POST", "PATCH")
_WRONG_URL = (
    "must be http:// or https://, a host and a path, without user, fragment and blanks; "
    "a placeholder may stand in the path and the query only"
)


def faults(config: HttpToolConfig) -> Faults:
    """All faults of an entry."""
    if fault := schema_fault({"type": "object", **config.parameters}):
        yield "parameters", fault
        return
    if fault := _WRONG_URL if URL.fullmatch(config.url) is None else address_fault(config.url):
        yield "url", fault
        return
    if config.serves and (fault := serving_fault(config.parameters)):
        yield "serves", fault
    yield from _placeholder_faults(config)
    yield from _place_faults(config)
    yield from header_faults(config.headers)
    for name, value in config.headers.items():
        if PLACEHOLDER.search(value):
            yield f"headers.{name}", "a model's words cannot stand in a header; put the placeholder in query or body"
    try:
        pointer_in(config.result)
    except ValueError as exc:
        yield "result", str(exc)
    if config.retries and config.method in _NOT_IDEMPOTENT and not config.idempotent:
        yield "retries", f"{config.method} may not be sent twice, unless idempotent: true says that it may"


def pointer_in(result: Any) -> tuple[str, ...] | None:
    """The steps of `result: {json_pointer: ...}` (RFC 6901); None: it is `result: text`.

    Raises:
        ValueError: it is neither of these.
    """
    match result:
        case "text":
            return None
        case {"json_pointer": str(pointer)} if len(result) == 1:
            return json_pointer.parse(pointer)
        case _:
            raise ValueError("must be text, or {json_pointer: /a/b}")


def _placeholder_faults(config: HttpToolConfig) -> Faults:
    """Placeholders that are unknown or misplaced."""
    templates = [("url", config.url), ("body", config.body)]
    templates += [(f"query.{name}", value) for name, value in config.query.items()]
    for key, template in templates:
        for fault in faults_in(template, frozenset(properties_of(config)), are="the properties of parameters"):
            yield key, fault
        if any(PLACEHOLDER.search(name) for name in _keys_in(template)):
            yield key, "a placeholder cannot be a key"
    for name, value in query_of(config):
        where = f"query.{name}" if name in config.query else "url"
        if PLACEHOLDER.search(name):
            yield where, "a placeholder cannot be a key"
        if isinstance(value, dict):
            yield where, "must be a single value or a list"


def _place_faults(config: HttpToolConfig) -> Faults:
    """A body that cannot be sent, and properties that would not be sent, or be sent twice."""
    unplaced = properties_of(config).keys() - placed_in(config)
    if config.body is not None and config.method == "GET":
        yield "body", "a GET request has no body: use query, or method: POST"
    if not is_json(config.body):
        yield "body", NO_JSON
    if config.method in CHANGING and config.body is not None:
        for name in sorted(unplaced):
            yield "parameters", f"{name} stands neither in url nor in query nor in body"
    if config.method not in CHANGING:
        for name in sorted(unplaced & dict(query_of(config)).keys()):
            yield f"query.{name}", f"{name} is a property too: write '{{{name}}}', or take it out of parameters"


def _keys_in(template: Any) -> Iterator[str]:
    match template:
        case list():
            for item in template:
                yield from _keys_in(item)
        case dict():
            for key, item in template.items():
                yield str(key)
                yield from _keys_in(item)
