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

from proxy.config import HeaderName, HeaderValue, Text, Value
from proxy.loop.limits import Count

Meaning: TypeAlias = Literal["key", "quota", "busy", "input", "empty", "down"]
"""The meaning of a refusal: the key is refused, the credit is used up, there are too many requests at the moment, no
provider would accept the request, nothing was found, or the provider does not work."""


class Fields(Value, frozen=True, kw_only=True):
    """The places of the fields of a result, as JSON pointers with ` or ` between alternatives."""

    url: Text  # the page
    title: str = ""  # its title
    text: str = ""  # a snippet; the texts of a list are joined
    published: str = ""  # the day on which the page appeared
    updated: str = ""  # the day on which it was changed
    site: str = ""  # the name of its site
    score: str = ""  # relevance


class Most(Value, frozen=True, kw_only=True):
    """The most that the provider accepts."""

    count: Count = 10  # results of one search
    query_characters: Count | None = None  # characters of a query
    query_words: Count | None = None  # words of a query
    allow: Count | None = None  # domains to search in
    block: Count | None = None  # domains to leave out


class Refusal(Value, frozen=True, kw_only=True):
    """A rule of `errors`: the meaning of an answer with this status or content. The first rule that fits applies."""

    means: Meaning  # what it means
    status: int | tuple[int, ...] = ()  # the statuses that it is about; none: every one
    at: str = ""  # a pointer into the answer
    text: str | tuple[str, ...] = ()  # what stands there, or is part of it, in any case of letters; none: anything
    hint: Text | None = None  # what the operator can do about it
    unless: str = ""  # a pointer to something that is there and not empty where the rule does not hold


class Wait(Value, frozen=True, kw_only=True):
    """The place, besides `Retry-After`, of the seconds until a provider that refused may be called again."""

    header: str | None = None  # a header; of several numbers the first
    at: str = ""  # a pointer into the answer


class PageText(Value, frozen=True, kw_only=True):
    """The differences of a request with `content: page`."""

    headers: dict[HeaderName, HeaderValue] = {}  # in place of some of the headers
    query: dict[str, Any] = {}  # added to the query
    body: dict[str, Any] = {}  # added to the body
    text: str = ""  # where a result has the page's text, with ` or ` between alternatives
    whole: bool = False  # it is all of the page's text, so that the page need not be opened any more


class Keyless(Value, frozen=True, kw_only=True):
    """The differences of a request with `api_key: none`, for a provider that answers without a key."""

    url: Text | None = None  # another address
    headers: dict[HeaderName, HeaderValue] = {}  # sent in place of `headers`


class Description(Value, frozen=True, kw_only=True):
    """A search provider as data."""

    url: Text  # placeholders in path and query, never in scheme, host or port
    fields: Fields  # where a result has what
    title: Text | None = None  # the provider's name for people
    about: Text | None = None  # what it is good at, in a sentence
    site: Text | None = None  # where a key is to be had
    method: Literal["GET", "POST"] = "GET"  # of HTTP
    headers: dict[HeaderName, HeaderValue] = {}  # `{api_key}` is the only placeholder
    query: dict[str, Any] = {}  # parameters behind the URL's own
    body: Any = None  # sent as JSON
    values: dict[str, Any] = {}  # the provider's words for a placeholder's values; `country: names` are English names
    options: dict[str, Any] = {}  # placeholders of its own, with their defaults; `options:` of the tool changes them
    site_operator: bool = False  # its query understands `site:` and `-site:`
    exclusive: bool = False  # it takes domains to search in or to leave out, not both
    most: Most = Most()  # what it accepts at the most
    # Where the answer has the list of results, empty if it is that list itself; several lists follow each other.
    results: str | tuple[str, ...] | None = None
    beside: tuple[str, ...] = ()  # lists beside the results, such as top stories; they do not count as results
    answer: str = ""  # where it has a direct answer in words
    answer_url: str = ""  # where it has the page that the direct answer comes from
    page: PageText | None = None  # it can give the text of pages
    errors: tuple[Refusal, ...] = ()  # how it refuses, where the status does not say it
    wait: Wait = Wait()  # where it says when to come back
    keyless: Keyless | None = None  # it answers without a key
    needs_base_url: bool = False  # it is run by its users: the tool says where


def read_description(data: object) -> Description:
    """An inline description.

    Raises:
        msgspec.ValidationError: it is not valid; the message has the place and the reason.
    """
    return msgspec.convert(data, Description)


def shipped() -> tuple[str, ...]:
    """The names of the providers that are shipped with the program."""
    return tuple(sorted(file.name.removesuffix(".yaml") for file in _folder().iterdir() if file.name.endswith(".yaml")))


@cache
def description(name: str) -> Description:
    """A shipped provider. Raises `KeyError`."""
    if name not in shipped():
        raise KeyError(name)
    return read_description(yaml.safe_load((_folder() / f"{name}.yaml").read_text("utf-8")))


def description_of(provider: str | dict[str, Any]) -> Description:
    """The description that a tool names, or has inline.

    Raises:
        KeyError: there is no such provider.
        msgspec.ValidationError: the description is not valid.
    """
    if isinstance(provider, dict):
        return read_description(provider)
    return description(provider)


def _folder() -> Any:
    return resources.files(__package__) / "providers"
