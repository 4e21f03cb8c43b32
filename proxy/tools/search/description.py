"""The format of a search provider's description, for the files in `providers/` and for an inline `provider:`.

A description is only data: the request of a search, with placeholders for the query, and the places of the results in
the answer:

    url: https://search.corp.example/api
    method: POST
    headers: {X-Key: "{api_key}"}
    body: {q: "{query}", n: "{count}", sites: "{allow|join:,}"}
    results: /hits
    fields: {url: /link, title: /name, text: /summary or /snippet, published: /day}

docs/search.md explains every key and placeholder with examples.
"""

from functools import cache
from importlib import resources
from typing import Any, Literal, TypeAlias

import msgspec
import yaml

from proxy.config.model import Characters, HeaderName, HeaderValue, Text, Value
from proxy.loop.limits import Count

_FOLDER: Any = resources.files(__package__) / "providers"

Meaning: TypeAlias = Literal["key", "quota", "busy", "input", "empty", "down"]
"""The meaning of a refusal: the key is refused, the credit is used up, there are too many requests at the moment, no
provider would accept the request, nothing was found, or the provider does not work."""


class Fields(Value, frozen=True, kw_only=True):
    """The places of the fields of a result, as JSON pointers with ` or ` between alternatives."""

    url: Text  # the page
    title: str = ""  # the title of the page
    text: str = ""  # the snippet; the texts of a list are joined
    published: str = ""  # the day of publication
    updated: str = ""  # the day of the last change
    site: str = ""  # the name of the site
    score: str = ""  # relevance


class Most(Value, frozen=True, kw_only=True):
    """The most that the provider accepts."""

    count: Count = 10  # results of one search
    query_characters: Characters | None = None  # characters of a query
    query_words: Count | None = None  # words of a query
    allow: Count | None = None  # domains to search in
    block: Count | None = None  # domains to leave out


class Refusal(Value, frozen=True, kw_only=True):
    """A rule of `errors`: the meaning of an answer with this status or content. The first rule that fits applies."""

    means: Meaning  # the meaning of the answer
    status: int | tuple[int, ...] = ()  # the statuses to which the rule applies; empty: any
    at: str = ""  # a pointer into the answer
    text: str | tuple[str, ...] = ()  # part of the text there, in any case; empty: any text
    hint: Text | None = None  # advice for the operator
    unless: str = ""  # a pointer; the rule does not apply if its value exists and is not empty


class Wait(Value, frozen=True, kw_only=True):
    """The place, besides `Retry-After`, of the seconds until a provider that refused may be called again."""

    header: str | None = None  # a header; the first of several numbers counts
    at: str = ""  # a pointer into the answer


class PageText(Value, frozen=True, kw_only=True):
    """The differences of a request with `content: page`."""

    headers: dict[HeaderName, HeaderValue] = {}  # replace headers with the same names
    query: dict[str, Any] = {}  # added to the query
    body: dict[str, Any] = {}  # added to the body
    text: str = ""  # the place of the page's text in a result, with ` or ` between alternatives
    whole: bool = False  # whether that is the whole text, so that the page need not be opened


class Keyless(Value, frozen=True, kw_only=True):
    """The differences of a request with `api_key: none`, for a provider that answers without a key."""

    url: Text | None = None  # another address
    headers: dict[HeaderName, HeaderValue] = {}  # replace `headers`


class Description(Value, frozen=True, kw_only=True):
    """A search provider as data."""

    url: Text  # may have placeholders in path and query, not in scheme, host and port
    fields: Fields  # the places of the fields in a result
    title: Text | None = None  # the provider's name for people
    about: Text | None = None  # its strengths, in a sentence
    site: Text | None = None  # the web site that issues keys
    method: Literal["GET", "POST"] = "GET"  # the HTTP method
    headers: dict[HeaderName, HeaderValue] = {}  # `{api_key}` is the only placeholder
    query: dict[str, Any] = {}  # parameters after those of the URL
    body: Any = None  # sent as JSON
    values: dict[str, Any] = {}  # the provider's terms for values of placeholders; `country: names`: English names
    options: dict[str, Any] = {}  # further placeholders with defaults, which `options:` of the tool overrides
    site_operator: bool = False  # whether queries may have `site:` and `-site:`
    exclusive: bool = False  # whether it accepts only one list of domains, allowed or blocked ones
    most: Most = Most()  # the provider's limits
    # The places of the lists of results in the answer, which are joined; empty if the answer itself is the list.
    results: str | tuple[str, ...] | None = None
    beside: tuple[str, ...] = ()  # lists beside the results, such as top stories; they do not count as results
    answer: str = ""  # the place of a direct answer
    answer_url: str = ""  # the place of the URL of the direct answer's page
    page: PageText | None = None  # for the text of pages; None: not supported
    errors: tuple[Refusal, ...] = ()  # the refusals that the status does not show
    wait: Wait = Wait()  # the place of the time to wait
    keyless: Keyless | None = None  # for requests without a key; None: not supported
    needs_base_url: bool = False  # whether users run it themselves, so that the tool has to give the address


def shipped() -> tuple[str, ...]:
    """The names of the providers that are shipped with the program."""
    return tuple(sorted(file.name.removesuffix(".yaml") for file in _FOLDER.iterdir() if file.name.endswith(".yaml")))


@cache
def description(name: str) -> Description:
    """A shipped provider. Raises `KeyError`."""
    if name not in shipped():
        raise KeyError(name)
    return msgspec.convert(yaml.safe_load((_FOLDER / f"{name}.yaml").read_text("utf-8")), Description)


def description_of(provider: str | Description) -> Description:
    """The description that a tool names, or has inline. Raises `KeyError`: there is no such provider."""
    return description(provider) if isinstance(provider, str) else provider
