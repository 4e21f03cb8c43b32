"""Finds the faults of a provider's description when the configuration is read."""

import re
from collections.abc import Iterator
from typing import Final

import orjson

from proxy.config.model import SERVER, address_fault
from proxy.kit import json_pointer
from proxy.kit.header_names import header_faults
from proxy.tools.search.description import Description
from proxy.tools.search.provider import PLACEHOLDERS
from proxy.tools.template import faults_in, items_of, names_in

_BEGINNING: Final = re.compile(rf"https?://{SERVER}([/?]|\Z)")
NO_JSON = "cannot be written as JSON (a key such as on, yes or 1 needs quotes)"
_WRONG_URL = "must begin with http:// or https:// and a host, without user and placeholders"


def faults(description: Description) -> Iterator[tuple[str, str]]:
    """The faults of a description beyond its types: the key that is at fault, empty for the whole, and the reason."""
    yield from _address_faults(description)
    yield from _template_faults(description)
    if description.method == "GET" and description.body is not None:
        yield "body", "a GET request has no body: use query, or method: POST"
    if description.results is None and not description.answer:
        yield "results", "is missing: where does the answer have its results?"
    for where, pointers in _pointers(description):
        for pointer in pointers.split(" or "):
            try:
                json_pointer.parse(pointer.strip())
            except ValueError as exc:
                yield where, f"{pointer!r}: {exc}"


def _template_faults(description: Description) -> Iterator[tuple[str, str]]:
    """Placeholders that are unknown or misplaced, and templates that cannot be sent."""
    known = PLACEHOLDERS | description.options.keys() | {"api_key"}
    for name in ("url", "query", "body"):
        yield from ((name, fault) for fault in faults_in(getattr(description, name), known))
    for name in ("query", "body", "options"):
        if not is_json(getattr(description, name)):
            yield name, NO_JSON
    yield from header_faults(description.headers)
    for name, value in description.headers.items():
        if set(names_in(value)) - {"api_key"}:
            yield f"headers.{name}", "{api_key} is the only placeholder that a header may have"
    if "query" not in names_in([description.url, description.query, description.body]):
        yield "", "{query} must be in url, query or body: without it nothing is searched for"


def is_json(value: object) -> bool:
    """Whether a value of the file can be sent as JSON."""
    try:
        orjson.dumps(value)
    except orjson.JSONEncodeError:
        return False
    return True


def _address_faults(description: Description) -> Iterator[tuple[str, str]]:
    for name, url in (("url", description.url), ("keyless.url", description.keyless and description.keyless.url)):
        if url and (fault := _WRONG_URL if _BEGINNING.match(url) is None else address_fault(url)):
            yield name, fault


def _pointers(description: Description) -> Iterator[tuple[str, str]]:
    """The key of each pointer in a description, with the pointer or its alternatives."""
    fields = description.fields
    yield from (
        ("results", pointers) for pointers in items_of(() if description.results is None else description.results)
    )
    yield from (("beside", pointers) for pointers in description.beside)
    yield from ((f"fields.{name}", getattr(fields, name)) for name in fields.__struct_fields__)
    yield from ((name, getattr(description, name)) for name in ("answer", "answer_url"))
    yield "page.text", description.page.text if description.page else ""
    yield from (("errors", pointer) for rule in description.errors for pointer in (rule.at, rule.unless))
    yield "wait.at", description.wait.at
