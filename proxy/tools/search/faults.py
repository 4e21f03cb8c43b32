"""What is wrong with a provider's description, or with a tool that uses one: found when the configuration is read."""

from collections.abc import Iterator

from proxy.config import SearchConfig
from proxy.loop.search import DOMAIN
from proxy.tools import json_pointer
from proxy.tools.search.description import Description, description_of
from proxy.tools.search.provider import KEYLESS, PLACEHOLDERS
from proxy.tools.search.template import faults_in, names_in


def faults(description: Description) -> Iterator[str]:
    """What is wrong with a description beyond its types, for the configuration's messages."""
    known = PLACEHOLDERS | description.options.keys() | {"api_key"}
    templates = [(name, getattr(description, name), known) for name in ("url", "query", "body")]
    templates += [(f"headers.{name}", value, frozenset({"api_key"})) for name, value in description.headers.items()]
    yield from (f"{where}: {fault}" for where, template, names in templates for fault in faults_in(template, names))
    if "query" not in names_in([description.url, description.query, description.body]):
        yield "{query} stands neither in url nor in query nor in body"
    if description.method == "GET" and description.body is not None:
        yield "body: GET has none"
    for where, pointers in _pointers(description):
        for pointer in pointers.split(" or "):
            try:
                json_pointer.parse(pointer.strip())
            except ValueError as exc:
                yield f"{where}: {pointer!r}: {exc}"


def _pointers(description: Description) -> Iterator[tuple[str, str]]:
    listed = description.results
    for pointers in (listed,) if isinstance(listed, str) else listed:
        yield "results", pointers
    yield from (("beside", pointers) for pointers in description.beside)
    fields = description.fields
    yield from ((f"fields.{name}", value) for name in fields.__struct_fields__ if (value := getattr(fields, name)))
    yield from ((name, value) for name in ("answer", "answer_url") if (value := getattr(description, name)))
    if description.page and description.page.text:
        yield "page.text", description.page.text
    for rule in description.errors:
        yield from (("errors", pointer) for pointer in (rule.at, rule.unless) if pointer)
    if description.wait.at:
        yield "wait.at", description.wait.at


def config_faults(config: SearchConfig) -> Iterator[tuple[str, str]]:
    """What is wrong with an entry of `type: search`: the key that is at fault, and why."""
    try:
        described = description_of(config.provider)
    except ValueError as exc:
        yield "provider", str(exc)
        return
    yield from (("provider", fault) for fault in faults(described))
    needs_key = "api_key" in names_in([described.url, described.query, described.body, *described.headers.values()])
    if needs_key and config.api_key is None:
        yield "api_key", "is missing"
    if config.api_key == KEYLESS and needs_key and described.keyless is None:
        yield "api_key", "this provider does not answer without a key"
    if described.needs_base_url and config.base_url is None:
        yield "base_url", "is missing: this provider is a server of your own"
    if config.content == "page" and described.page is None:
        yield "content", "this provider does not give the text of pages"
    for name in config.options.keys() - described.options.keys():
        known = ", ".join(sorted(described.options)) or "none"
        yield f"options.{name}", f"there is no such option of this provider; there are: {known}"
    for rule in config.block_domains:
        if not DOMAIN.fullmatch(rule):
            yield "block_domains", f"{rule!r} is no domain such as example.com, or example.com/path"
